"""The stage of a run: one Kafka and one Postgres of our own, with the settings stated."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
from confluent_kafka.admin import AdminClient, NewTopic
from relay_devstack import providers
from relay_devstack.kafka import LASTING_JVM, KafkaCluster
from relay_devstack.layout import state_dir

from bench.profile import Profile

# Those of the reference measurements; nothing here weakens durability.
POSTGRES_SETTINGS = {
    "max_wal_size": "16GB",
    "min_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "max_locks_per_transaction": "512",
    "jit": "off",
    "track_io_timing": "off",
    "shared_preload_libraries": "pg_stat_statements",
    "track_commit_timestamp": "on",
}
SHOWN = (
    "server_version",
    "shared_buffers",
    "max_wal_size",
    "checkpoint_timeout",
    "wal_compression",
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "data_checksums",
    "max_locks_per_transaction",
)
PARTITIONS = 8


@dataclass(frozen=True, slots=True)
class Stage:
    """Where the run takes place."""

    postgres_url: str
    bootstrap: str
    folder: Path
    profile: Profile
    admin: AdminClient

    def existing(self, names: list[str]) -> list[str]:
        """Return those of the topics that the broker lists."""
        listed = self.admin.list_topics(timeout=10).topics
        return [name for name in names if name in listed]

    def create_topics(self, names: list[str], partitions: int = PARTITIONS) -> None:
        """Create the topics that are missing and return when all exist."""
        existing = self.existing(names)
        missing = [NewTopic(name, partitions, 1) for name in names if name not in existing]
        if missing:
            for created in self.admin.create_topics(missing).values():
                created.result(30)

    def delete_topics(self, names: list[str]) -> None:
        """Delete those of the topics that exist."""
        if present := self.existing(names):
            for deleted in self.admin.delete_topics(present).values():
                deleted.result(30)

    def settings(self) -> dict[str, str]:
        """Return the server's settings that the figures depend on."""
        with psycopg.connect(self.postgres_url) as conn:
            return {name: conn.execute(f"show {name}").fetchone()[0] for name in SHOWN}


@contextmanager
def open_stage(profile: Profile, *, keep: bool) -> Iterator[Stage]:
    """Start Kafka and Postgres, tuned; stop them at the end unless `keep`."""
    folder = state_dir() / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    kafka = KafkaCluster(folder, jvm=LASTING_JVM)
    postgres = providers.LocalProcesses().postgres(folder)
    try:
        kafka.start()
        postgres.start()
        if tune(postgres.url, {**POSTGRES_SETTINGS, "shared_buffers": profile.shared_buffers}):
            postgres.restart()
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap, "log_level": 0})
        yield Stage(postgres.url, kafka.bootstrap, folder, profile, admin)
    finally:
        if not keep:
            kafka.stop()
            postgres.stop()


def tune(url: str, wanted: dict[str, str]) -> bool:
    """Write `wanted` into the server's settings; return whether one needs a restart."""
    with psycopg.connect(url, autocommit=True) as conn:
        before = {name: show(conn, name) for name in wanted}
        for name, value in wanted.items():
            conn.execute(f"alter system set {name} = '{value}'")
        conn.execute("select pg_reload_conf()")
        return any(before[name] != value for name, value in wanted.items())


def show(conn: psycopg.Connection, name: str) -> str:
    """Return the setting `name` as it stands."""
    return conn.execute(f"show {name}").fetchone()[0]


def machine() -> dict[str, object]:
    """Return what the figures were measured on."""
    info = (
        Path("/proc/cpuinfo").read_text(encoding="utf-8") if os.path.exists("/proc/cpuinfo") else ""
    )
    models = [line.split(":", 1)[1].strip() for line in info.splitlines() if "model name" in line]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": models[0] if models else "unknown",
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "system": f"{os.uname().sysname} {os.uname().release}",
        "load_before": os.getloadavg()[0],
    }


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
