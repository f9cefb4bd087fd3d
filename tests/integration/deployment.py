"""One whole stack in a folder of its own, made by the devstack's own code, and ways to hurt it."""

import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
from relay_common.testing.wait import until
from relay_devstack.daemons import Command, Daemon
from relay_devstack.kafka import KafkaCluster
from relay_devstack.ports import PortBook
from relay_devstack.postgres import PostgresServer
from relay_devstack.services import not_ready
from relay_devstack.stack import Stack
from relay_devstack.terminal import Terminal
from relay_devstack.tokens import Grant, SigningKey

SERVICES = ("intake", "matcher", "escalation", "mailbox")
LOOPBACK = "127.0.0.1"
RECOVERY_SECONDS = 40.0
# The least that a broker allows: a killed member is missed sooner.
SETTINGS = {"RELAY_SESSION_TIMEOUT_MS": "6000"}


class Deployment:
    """The stack of one state folder. Every service can be killed, paused and started again."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.postgres = PostgresServer(state_dir)
        self.kafka = KafkaCluster(state_dir)
        self.addresses: dict[str, str] = {}
        self._stack = Stack(state_dir, Terminal(), {})
        self._ports = PortBook(state_dir, {})
        self._commands: dict[str, Command] = {}
        self._extra: set[str] = set()
        self._key = SigningKey(state_dir)

    def up(self) -> None:
        """Start everything anew and remember how each service was started."""
        for name in ("gateway", *SERVICES):
            self._daemon(name).stop(signal.SIGKILL)
        with relay_variables(SETTINGS):
            self.addresses = self._stack.up()
        self._commands = {name: self._command(name) for name in SERVICES}

    def down(self) -> None:
        """Stop what `up` and `start` have started."""
        for name in list(self._extra):
            self.stop(name)
        self._stack.down()
        self.postgres.destroy()

    # ---- addresses --------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The gateway."""
        return self.addresses["RELAY_URL"]

    @property
    def bootstrap(self) -> str:
        """The broker."""
        return self.addresses["RELAY_KAFKA_BOOTSTRAP"]

    @property
    def database_url(self) -> str:
        """The database, as its superuser: for looking on, never for the services."""
        return self.addresses["RELAY_DATABASE_URL"]

    def service_url(self, name: str) -> str:
        """Return the public address of a service, past the gateway."""
        return f"http://{LOOPBACK}:{self._variable(name, 'HTTP_PORT')}"

    def internal_url(self, name: str) -> str:
        """Return the address of /healthz, /readyz and /metrics."""
        return f"http://{LOOPBACK}:{self._variable(name, 'INTERNAL_PORT')}"

    def database(self) -> psycopg.Connection[tuple[object, ...]]:
        """Return a new connection that sees everything."""
        return psycopg.connect(self.database_url, autocommit=True)

    def token(self, sub: str, tenant: str, environment: str, scope: str) -> str:
        """Return an access token as Access would make it."""
        return self._key.token(Grant(sub, tenant, environment, scope))

    def metrics(self, name: str) -> str:
        """Return what /metrics of a service says."""
        return httpx.get(f"{self.internal_url(name)}/metrics", trust_env=False).text

    def services(self) -> list[str]:
        """Return the names of the service processes that run now."""
        return [name for name in [*SERVICES, *sorted(self._extra)] if self.alive(name)]

    def logs(self) -> Mapping[str, str]:
        """Return every log file of the services, those of ended processes too, by its name."""
        files = sorted((self.state_dir / "logs").glob("*.log*"))
        services = [f for f in files if f.name.split(".")[0].split("-")[0] in SERVICES]
        return {f.name: f.read_text(errors="replace") for f in services}

    # ---- faults -----------------------------------------------------------------------------

    def start(self, name: str, **variables: str) -> None:
        """Start a service (`matcher`) or another process of it (`matcher-2`) with `variables`.

        Returns at once; `until_ready` waits.
        """
        self._keep_log(name)
        original = self._commands[service_of(name)]
        if name not in SERVICES:
            self._extra.add(name)
            self._commands[name] = self._second(name, original)
            original = self._commands[name]
        env = {**original.env, **variables}
        self._daemon(name).start(Command(original.argv, env, original.cwd))

    def stop(self, name: str) -> None:
        """End a service with SIGTERM; it must finish what it has begun, and say so."""
        self._daemon(name).stop(signal.SIGTERM)
        said = [
            line for line in self._daemon(name).tail(20).split(" / ") if "service_stopped" in line
        ]
        assert said, f"{name} was ended by force: {self._daemon(name).tail()}"
        facts = json.loads(said[-1])
        assert (facts["died"], facts["unfinished"]) == ([], []), facts
        self._keep_log(name)
        self._extra.discard(name)

    def kill(self, name: str) -> None:
        """End a service with SIGKILL."""
        self._daemon(name).stop(signal.SIGKILL)

    def restart(self, name: str, **variables: str) -> None:
        """End a service with SIGTERM and start it with `variables`; return when it is ready."""
        self.stop(name)
        self.start(name, **variables)
        self.until_ready(name)

    def pause(self, name: str) -> None:
        """Freeze a process (SIGSTOP)."""
        self._process(name).send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._process(name).send_signal(signal.SIGCONT)

    def alive(self, name: str) -> bool:
        """Return whether the process runs."""
        return self._daemon(name).process() is not None

    def pid(self, name: str) -> int:
        """Return the process id."""
        return self._process(name).pid

    def not_ready(self, name: str) -> str | None:
        """Return None when /readyz answers 200, else what it says."""
        return not_ready(f"{self.internal_url(name)}/readyz")

    def until_ready(self, *names: str) -> None:
        """Wait until each of `names` (default: every service) says that it is ready."""
        for name in names or SERVICES:
            until(
                lambda name=name: self.not_ready(name) is None,
                RECOVERY_SECONDS,
                lambda name=name: f"{name}: {self.not_ready(name)} / {self._daemon(name).tail()}",
            )

    def until_dead(self, name: str, seconds: float = 30) -> None:
        """Wait until the process has ended by itself (a failpoint)."""
        until(lambda: not self.alive(name), seconds, lambda: f"{name} still runs")

    def whole(self) -> bool:
        """Return whether every server and service runs, and nothing else."""
        servers = self.postgres.running() and self.kafka.running()
        return servers and self.services() == list(SERVICES)

    def heal(self) -> None:
        """Bring back whatever a failed test has left behind."""
        self.postgres.start()
        self.kafka.start()
        for name in list(self._extra):
            self.kill(name)
            self._extra.discard(name)
        for name in SERVICES:
            self.start(name)
        self.until_ready()

    # ---- inside -----------------------------------------------------------------------------

    def _daemon(self, name: str) -> Daemon:
        return Daemon(self.state_dir, name)

    def _process(self, name: str):
        process = self._daemon(name).process()
        assert process is not None, f"expected {name} to run: {self._daemon(name).tail()}"
        return process

    def _command(self, name: str) -> Command:
        process = self._process(name)
        return Command(process.cmdline(), process.environ(), self.state_dir)

    def _second(self, name: str, original: Command) -> Command:
        prefix = f"RELAY_{service_of(name).upper()}"
        ports = {
            f"{prefix}_HTTP_PORT": str(self._ports.claim(f"{name}-http")),
            f"{prefix}_INTERNAL_PORT": str(self._ports.claim(f"{name}-internal")),
        }
        return Command(original.argv, {**original.env, **ports}, original.cwd)

    def _variable(self, name: str, variable: str) -> str:
        return self._commands[name].env[f"RELAY_{service_of(name).upper()}_{variable}"]

    def _keep_log(self, name: str) -> None:
        log = self._daemon(name).log
        if log.exists() and self._daemon(name).process() is None:
            count = len(list(log.parent.glob(f"{name}.log.*")))
            shutil.move(log, log.with_name(f"{name}.log.{count}"))


def service_of(name: str) -> str:
    """Return `matcher` of `matcher-2`."""
    return name.partition("-")[0]


@contextmanager
def relay_variables(chosen: Mapping[str, str]) -> Iterator[None]:
    """Replace the caller's RELAY_ variables, but where Postgres lies: this stack is its own."""
    own = [n for n in os.environ if n.startswith("RELAY_") and n != "RELAY_PG_BIN"]
    hidden = {name: os.environ.pop(name) for name in own}
    os.environ.update(chosen)
    try:
        yield
    finally:
        for name in chosen:
            del os.environ[name]
        os.environ.update(hidden)
