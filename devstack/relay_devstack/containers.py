"""The servers of a test as containers, where a Docker engine answers (testcontainers)."""

import signal
from collections.abc import Mapping
from pathlib import Path

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from testcontainers.core.container import DockerContainer

from relay_devstack.kafka import FIXED_SETTINGS, IN_SYNC_REPLICAS, REPLICATED_LOGS, KafkaCluster
from relay_devstack.ports import PortBook
from relay_devstack.postgres import SETTINGS, STOP_SIGNALS, StopMode
from relay_devstack.providers import Kafka, Postgres
from relay_devstack.secrets import kept_secret
from relay_devstack.waiting import until_none

POSTGRES_IMAGE = "postgres:18.6"
KAFKA_IMAGE = "apache/kafka:4.4.0"
OF_THE_HOST = ("listen_addresses", "unix_socket_directories")  # a container has its own network


class Containers:
    """Makes servers in containers; a cluster of several brokers is still local processes."""

    def postgres(self, state_dir: Path) -> Postgres:
        """Return a server in a container."""
        return PostgresContainer(state_dir)

    def kafka(self, state_dir: Path, brokers: int = 1) -> Kafka:
        """Return one broker in a container, or several as processes."""
        return KafkaContainer(state_dir) if brokers == 1 else KafkaCluster(state_dir, brokers)


class PostgresContainer:
    """A PostgreSQL whose address stays when it is stopped, killed and started again."""

    def __init__(self, state_dir: Path) -> None:
        self._made = False
        self._password = kept_secret(state_dir, "postgres")
        self._port = PortBook(state_dir).claim("postgres")
        self._container = _container(POSTGRES_IMAGE, {"POSTGRES_PASSWORD": self._password})
        self._container.with_bind_ports(5432, self._port)
        options = [f"-c {name}={_quoted(value)}" for name, value in SETTINGS.items()]
        wanted = [o for o in options if not o.startswith(tuple(f"-c {n}=" for n in OF_THE_HOST))]
        self._container.with_command(f"postgres {' '.join(wanted)}")

    @property
    def url(self) -> str:
        """The superuser's URL of the database `postgres`."""
        return f"postgresql://postgres:{self._password}@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Start the container and return when the server answers."""
        _start(self._container, self._made)
        self._made = True
        until_none(self._missing, 120, "Postgres in its container")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server in `mode`; the container stays."""
        _end(self._container, STOP_SIGNALS[mode])

    def kill(self) -> None:
        """End the server as a crash does."""
        _end(self._container, signal.SIGKILL)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop in `mode` and start again on the same port."""
        self.stop(mode)
        self.start()

    def destroy(self) -> None:
        """Remove the container and its data."""
        self._container.stop()

    def _missing(self) -> str | None:
        try:
            psycopg.connect(self.url, connect_timeout=2).close()
        except psycopg.OperationalError as error:
            return str(error).strip()
        return None


class KafkaContainer:
    """One Kafka broker whose address stays when it is stopped, killed and started again."""

    def __init__(self, state_dir: Path) -> None:
        self._made = False
        self._port = PortBook(state_dir).claim("kafka")
        self._container = _container(KAFKA_IMAGE, _kafka_environment(self._port))
        self._container.with_bind_ports(self._port, self._port)

    @property
    def bootstrap(self) -> str:
        """The client address."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start the container and return when the broker answers."""
        _start(self._container, self._made)
        self._made = True
        until_none(self._missing, 120, "Kafka in its container")

    def stop(self) -> None:
        """Stop the broker; the container stays."""
        _end(self._container, signal.SIGTERM)

    def kill(self, number: int = 1) -> None:
        """End the broker with SIGKILL; there is only number 1."""
        _end(self._container, signal.SIGKILL)

    def start_broker(self, number: int = 1) -> None:
        """Start the broker again; there is only number 1."""
        self.start()

    def destroy(self) -> None:
        """Remove the container and its data."""
        self._container.stop()

    def _missing(self) -> str | None:
        try:
            AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(
                timeout=2
            )
        except KafkaException as error:
            return str(error)
        return None


def _kafka_environment(port: int) -> dict[str, str]:
    settings = {
        **FIXED_SETTINGS,
        **dict.fromkeys((*REPLICATED_LOGS, *IN_SYNC_REPLICAS), "1"),
        "node.id": "1",
        "controller.quorum.voters": "1@localhost:9093",
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }
    # The image turns KAFKA_A_B into a.b.
    return {f"KAFKA_{name.upper().replace('.', '_')}": value for name, value in settings.items()}


def _container(image: str, environment: Mapping[str, str]) -> DockerContainer:
    container = DockerContainer(image)
    for name, value in environment.items():
        container.with_env(name, value)
    return container


def _start(container: DockerContainer, known: bool) -> None:
    """Make the container at the first start; afterwards start the one that was stopped."""
    if known:
        container.get_wrapped_container().start()
    else:
        container.start()


def _end(container: DockerContainer, how: signal.Signals) -> None:
    inner = container.get_wrapped_container()
    inner.kill(signal=how.name)
    inner.wait()


def _quoted(value: str) -> str:
    return f"'{value}'"
