"""The mailbox service as a process of its own, on a real broker and database."""

import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from relay_common.avro import Codec
from relay_common.match_key import owner_key
from relay_common.migrate import migrate, read_migrations
from relay_common.testing import wait
from relay_common.testing.databases import allow_logins
from relay_devstack.postgres import PostgresServer

TOPICS = ["relay.mailbox", "relay.mailbox.dlq", "relay.hints", "relay.topics", "relay.topics.dlq"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def jwks_url(issuer) -> Iterator[str]:
    """Serves the issuer's keys."""
    body = json.dumps(issuer.jwks()).encode()

    class Keys(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Keys)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/jwks"
    server.shutdown()
    server.server_close()


class Process:
    """Starts, kills and starts again."""

    def __init__(self, environment: dict[str, str], log_path) -> None:
        self.environment = environment
        self.port = int(environment["RELAY_MAILBOX_HTTP_PORT"])
        self.internal = int(environment["RELAY_MAILBOX_INTERNAL_PORT"])
        self.log_path = log_path
        self.starts = 0
        self.group = ""
        self.running: subprocess.Popen[bytes] | None = None

    def start(self, failpoints: str = "", group: str | None = None) -> None:
        """Start it and return when it is ready."""
        self.launch(failpoints, group)
        wait.until(self.ready, 60, lambda: self.log_path.read_text()[-3000:])

    def launch(self, failpoints: str = "", group: str | None = None) -> None:
        # A group of its own, so that nobody waits for a dead member: the position is in Postgres.
        self.starts += 1
        self.group = group or f"{self.environment['RELAY_TOPIC_PREFIX']}{self.starts}"
        own = {"RELAY_FAILPOINTS": failpoints, "RELAY_GROUP_PREFIX": self.group}
        with self.log_path.open("ab") as log:
            self.running = subprocess.Popen(
                [sys.executable, "-m", "relay_mailbox"],
                env={**self.environment, **own},
                stdout=log,
                stderr=log,
            )

    def ready(self) -> bool:
        return self.says("/readyz")

    def alive(self) -> bool:
        return self.says("/healthz")

    def says(self, path: str) -> bool:
        """Return whether the internal port answers `path` with 200."""
        try:
            url = f"http://127.0.0.1:{self.internal}{path}"
            return httpx.get(url, timeout=2, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def wait_for_death(self) -> int:
        """Return the exit code, once it has one."""
        assert self.running is not None
        return self.running.wait(30)

    def stop(self) -> int:
        """Terminate it and return the exit code."""
        if self.running is None:
            return 0
        self.running.terminate()
        return self.running.wait(30)


def environment_of(database_url: str, password: str | None, shared: dict[str, str]):
    """Return the environment of a process on `database_url`."""
    environment = {
        **os.environ,
        **shared,
        "RELAY_DATABASE_URL": database_url,
        "RELAY_UNSAFE_DURABILITY": "true",
        "RELAY_CURSOR_SECRET": "a secret of sixteen characters",
        "RELAY_MAILBOX_HTTP_PORT": str(free_port()),
        "RELAY_MAILBOX_INTERNAL_PORT": str(free_port()),
    }
    if password:
        environment["RELAY_MAILBOX_HTTP_PASSWORD"] = password
        environment["RELAY_MAILBOX_STREAM_PASSWORD"] = password
    return environment


@pytest.fixture
def shared(topics, jwks_url, issuer, kafka_bootstrap) -> dict[str, str]:
    """What a process needs beside its database; the topics are there."""
    for name in TOPICS:
        topics.create(name, partitions=1)
    return {
        "RELAY_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "RELAY_ACCESS_ISSUER": issuer.url,
        "RELAY_ACCESS_JWKS_URL": jwks_url,
        "RELAY_TOPIC_PREFIX": topics.prefix,
    }


@pytest.fixture
def process(database, shared, tmp_path) -> Iterator[Process]:
    """The service, not started yet."""
    password = database.parts.get("password")
    made = Process(environment_of(database.url, password, shared), tmp_path / "log")
    yield made
    made.stop()


class Producing:
    """Writes to `relay.mailbox` as the other services do."""

    def __init__(self, topics) -> None:
        self.topics = topics
        self.codec = Codec()

    def send(self, owner: str, count: int = 1, **given: object) -> list[bytes]:
        """Send `count` records and return their message ids."""
        ids = [uuid.uuid4().bytes for _ in range(count)]
        for message_id in ids:
            record = {
                "tenant": "acme",
                "environment": "test",
                "owner": owner,
                "message_id": message_id,
                "kind": "message",
                "type": "note",
                "state": "available",
                "wakes": True,
                "body": b'{"text":"hello"}',
                **given,
            }
            value = self.codec.encode("relay.mailbox.v1", record)
            self.raw(owner_key("acme", "test", owner), value)
        self.topics.flush()
        return ids

    def raw(self, key: bytes, value: bytes | None) -> None:
        self.topics.produce(self.topics.prefix + "relay.mailbox", key, value)


@pytest.fixture
def producing(topics) -> Producing:
    """A producer of mailbox records."""
    return Producing(topics)


class Caller:
    """Calls the process over HTTP, again with the same key when the answer was lost."""

    def __init__(self, port: int, token: str) -> None:
        self.base = f"http://127.0.0.1:{port}/v1/mailboxes/me"
        self.headers = {"authorization": f"Bearer {token}"}

    def get(self, path: str = ""):
        url = self.base + path
        return httpx.get(url, headers=self.headers, trust_env=False, timeout=30).json()

    def post(self, path: str, body: object, key: str):
        headers = {**self.headers, "idempotency-key": key}
        return httpx.post(self.base + path, json=body, headers=headers, trust_env=False, timeout=30)


@pytest.fixture
def caller(process, issuer):
    """Returns a caller for a subject."""

    def made(sub: str = "agent:planner") -> Caller:
        return Caller(process.port, issuer.token(sub, scope="mailbox:read mailbox:ack"))

    return made


@pytest.fixture
def as_caller(issuer):
    """Returns a caller of a process."""

    def made(process: Process, sub: str = "agent:planner") -> Caller:
        return Caller(process.port, issuer.token(sub, scope="mailbox:read mailbox:ack"))

    return made


@pytest.fixture
def process_on(shared, tmp_path) -> Iterator[Callable[..., Process]]:
    """Returns the service on the database `relay` of a server, not started yet."""
    started: list[Process] = []

    def made(server) -> Process:
        url = server.database_url("relay")
        password = str(conninfo_to_dict(url)["password"])
        started.append(Process(environment_of(url, password, shared), tmp_path / "log"))
        return started[-1]

    yield made
    for process in started:
        process.stop()


@pytest.fixture(scope="session")
def small() -> dict[str, str]:
    """The settings of a cluster of a test's own."""
    return {
        "shared_buffers": "32MB",
        "max_wal_size": "256MB",
        "fsync": "off",
        "max_prepared_transactions": "5",
    }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, small) -> Iterator[PostgresServer]:
    """A cluster of these tests' own: they stop it, copy it and turn it into a standby."""
    made = PostgresServer(tmp_path_factory.mktemp("one"), small)
    made.start()
    with psycopg.connect(made.url, autocommit=True) as conn:
        allow_logins(conn, made.url)
    yield made
    made.destroy()


@pytest.fixture
def server(cluster) -> PostgresServer:
    """The cluster with a fresh migrated database `relay`."""
    with psycopg.connect(cluster.url, autocommit=True) as conn:
        conn.execute("drop database if exists relay with (force)")
        conn.execute("create database relay")
    with psycopg.connect(cluster.database_url("relay"), autocommit=True) as conn:
        migrate(conn, read_migrations())
    return cluster
