"""A whole stack of one state folder: `up` makes everything ready, `down` ends what `up` started."""

import os
import signal
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from relay_devstack import database, jars, services, topics
from relay_devstack.addresses import remember, remembered
from relay_devstack.daemons import Daemon
from relay_devstack.kafka import KafkaCluster
from relay_devstack.locks import only_one
from relay_devstack.ports import PortBook
from relay_devstack.postgres import PostgresServer
from relay_devstack.secrets import kept_secret
from relay_devstack.terminal import Terminal
from relay_devstack.tokens import AUDIENCE, ISSUER

DATABASE = "relay"
STOP_ORDER = (("gateway",), ("intake", "matcher", "escalation", "mailbox"), ("access",))


class Stack:
    """One stack; RELAY_KAFKA_BOOTSTRAP and RELAY_DATABASE_URL in `environ` bring servers along."""

    def __init__(
        self, state_dir: Path, terminal: Terminal, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._state_dir = state_dir
        self._terminal = terminal
        self._ports = PortBook(state_dir, environ)
        self._environ = environ

    def up(self) -> dict[str, str]:
        """Start what is missing, wait until all of it is ready, and return the addresses.

        Raises a DevstackError; what has started by then stays until `down`.
        """
        with only_one(self._state_dir / "lock"):
            with ThreadPoolExecutor(2) as pool:
                started = [pool.submit(self._postgres), pool.submit(self._kafka)]
            database_url, bootstrap = (future.result() for future in started)
            addresses = self._relay(database_url, bootstrap)
            remember(self._state_dir, addresses, self._own(addresses))
            return addresses

    def down(self) -> list[str]:
        """Stop what this state folder started, services first; return the names of what ran."""
        if not self._state_dir.exists():
            return []
        with only_one(self._state_dir / "lock"):
            stopped = [name for group in STOP_ORDER for name in self._stop_together(group)]
            kafka, postgres = KafkaCluster(self._state_dir), PostgresServer(self._state_dir)
            stopped += ["kafka"] * kafka.running() + ["postgres"] * postgres.running()
            with ThreadPoolExecutor(2) as pool:
                for done in (pool.submit(kafka.stop), pool.submit(postgres.stop)):
                    done.result()
            return stopped

    def reset(self) -> None:
        """Stop everything and throw away the data of this stack's own PostgreSQL and Kafka."""
        self.down()
        with only_one(self._state_dir / "lock"):
            PostgresServer(self._state_dir).destroy()
            KafkaCluster(self._state_dir).destroy()

    def _postgres(self) -> str:
        given = self._given("RELAY_DATABASE_URL")
        if given is None:
            self._terminal.say("starting PostgreSQL")
            server = PostgresServer(self._state_dir, environ=self._environ)
            server.start()
            database.create_database(server.url, DATABASE)
            given = server.database_url(DATABASE)
        applied = database.prepare(given, self._passwords(given))
        self._terminal.say(f"PostgreSQL is ready, {len(applied)} migrations applied")
        return given

    def _kafka(self) -> str:
        given = self._given("RELAY_KAFKA_BOOTSTRAP")
        if given is None:
            jars.fetch_missing(self._terminal.progress)
            self._terminal.say("starting Kafka")
            cluster = KafkaCluster(self._state_dir, environ=self._environ)
            cluster.start()
            given = cluster.bootstrap
        made = topics.create(given, self._environ)
        self._terminal.say(f"Kafka is ready, {len(made)} topics created")
        return given

    def _relay(self, database_url: str, bootstrap: str) -> dict[str, str]:
        self._terminal.say("starting Access, the services and the gateway")
        access = services.access(self._state_dir, self._ports)
        access_url = f"http://{services.HOST}:{self._ports.known('access')}"
        shared = {
            "RELAY_DATABASE_URL": database.without_login(database_url),
            "RELAY_KAFKA_BOOTSTRAP": bootstrap,
            "RELAY_ACCESS_URL": access_url,
            "RELAY_ACCESS_ISSUER": ISSUER,
            "RELAY_ACCESS_AUDIENCE": AUDIENCE,
            "RELAY_ACCESS_JWKS_URL": f"{access_url}/jwks",
            "RELAY_CURSOR_SECRET": kept_secret(self._state_dir, "cursor"),
        }
        relay = services.relay_services(self._state_dir, self._ports, self._passwords(database_url))
        gateway = services.gateway(self._state_dir, self._ports, relay)
        services.Processes(self._state_dir, shared).start([access, *relay, gateway])
        return {
            "RELAY_URL": f"http://{services.HOST}:{self._ports.known('gateway')}",
            "RELAY_KAFKA_BOOTSTRAP": bootstrap,
            "RELAY_DATABASE_URL": database_url,
            "RELAY_ACCESS_URL": access_url,
        }

    def _passwords(self, database_url: str) -> dict[str, str]:
        return database.role_passwords(database_url, kept_secret(self._state_dir, "roles"))

    def _given(self, variable: str) -> str | None:
        """Return what the developer brings; this stack's own address, exported, is not that."""
        given = self._environ.get(variable)
        own = remembered(self._state_dir, "own").get(variable)
        return given if given and given != own else None

    def _own(self, addresses: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in addresses.items() if self._given(name) is None}

    def _stop_together(self, names: tuple[str, ...]) -> list[str]:
        with ThreadPoolExecutor(len(names)) as pool:
            ran = pool.map(self._stop_one, names)
            return [name for name, was_running in zip(names, ran, strict=True) if was_running]

    def _stop_one(self, name: str) -> bool:
        return Daemon(self._state_dir, name).stop(signal.SIGTERM)
