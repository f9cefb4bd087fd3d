"""Where tests get their servers from: local processes, or containers where a Docker engine answers.

`RELAY_TEST_PROVIDER` is `auto` (default: containers when an engine answers), `docker` or `local`.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from relay_devstack.errors import WrongMachineError
from relay_devstack.kafka import KafkaCluster
from relay_devstack.postgres import PostgresServer

# A database that is cloned goes through the log: compressing it would cost more than the cloning.
SMALL = {"shared_buffers": "256MB", "max_wal_size": "512MB", "wal_compression": "off"}
Mode = Literal["smart", "fast", "immediate"]


@runtime_checkable
class Postgres(Protocol):
    """A PostgreSQL that a test may stop, kill and start again; the address stays."""

    @property
    def url(self) -> str: ...
    def start(self) -> None: ...
    def stop(self, mode: Mode = "fast") -> None: ...
    def kill(self) -> None: ...
    def restart(self, mode: Mode = "fast") -> None: ...
    def destroy(self) -> None: ...


@runtime_checkable
class Kafka(Protocol):
    """A Kafka that a test may stop, kill and start again; the address stays."""

    @property
    def bootstrap(self) -> str: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def kill(self, number: int = 1) -> None: ...
    def start_broker(self, number: int = 1) -> None: ...
    def destroy(self) -> None: ...


class Provider(Protocol):
    """Makes servers; they are not started yet."""

    def postgres(self, state_dir: Path) -> Postgres: ...
    def kafka(self, state_dir: Path, brokers: int = 1) -> Kafka: ...


class LocalProcesses:
    """Servers as processes of this machine."""

    def postgres(self, state_dir: Path) -> Postgres:
        """Return a server whose data lie in `state_dir`, small enough to run several."""
        return PostgresServer(state_dir, SMALL)

    def kafka(self, state_dir: Path, brokers: int = 1) -> Kafka:
        """Return a cluster of `brokers` nodes whose data lie in `state_dir`."""
        return KafkaCluster(state_dir, brokers)


def choose(wanted: str | None = None) -> Provider:
    """Return the provider that `wanted` or RELAY_TEST_PROVIDER asks for.

    Raises WrongMachineError when Docker is asked for and no engine answers.
    """
    wanted = wanted or os.environ.get("RELAY_TEST_PROVIDER", "auto")
    if wanted not in ("auto", "docker", "local"):
        raise WrongMachineError(
            f"RELAY_TEST_PROVIDER must be auto, docker or local, not {wanted!r}."
        )
    if wanted == "local" or (wanted == "auto" and not engine_answers()):
        return LocalProcesses()
    if not engine_answers():
        raise WrongMachineError(
            "RELAY_TEST_PROVIDER is docker, but no engine answers: start Docker."
        )
    from relay_devstack.containers import Containers  # noqa: PLC0415 -- imports the Docker client

    return Containers()


def engine_answers() -> bool:
    """Return whether a Docker engine answers this account."""
    if shutil.which("docker") is None:
        return False
    command = ["docker", "info", "-f", "1"]
    try:
        asked = subprocess.run(command, check=False, capture_output=True, timeout=10)
    except subprocess.TimeoutExpired:
        return False
    return asked.returncode == 0
