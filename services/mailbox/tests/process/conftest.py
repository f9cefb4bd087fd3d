"""The mailbox service as a process of its own, on a real broker and database."""

import json
import os
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from relay_common.avro import Codec
from relay_common.match_key import owner_key
from relay_common.testing import wait

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
        self.running: subprocess.Popen[bytes] | None = None

    def start(self, failpoints: str = "") -> None:
        """Start it and return when it is ready."""
        self.launch(failpoints)
        wait.until(self.ready, 30, lambda: self.log_path.read_text()[-3000:])

    def launch(self, failpoints: str = "") -> None:
        # A group of its own, so that nobody waits for a dead member: the position is in Postgres.
        self.starts += 1
        group = f"{self.environment['RELAY_TOPIC_PREFIX']}{self.starts}"
        own = {"RELAY_FAILPOINTS": failpoints, "RELAY_GROUP_PREFIX": group}
        with self.log_path.open("ab") as log:
            self.running = subprocess.Popen(
                [sys.executable, "-m", "relay_mailbox"],
                env={**self.environment, **own},
                stdout=log,
                stderr=log,
            )

    def ready(self) -> bool:
        try:
            url = f"http://127.0.0.1:{self.internal}/readyz"
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


@pytest.fixture
def process(database, topics, jwks_url, issuer, kafka_bootstrap, tmp_path) -> Iterator[Process]:
    """The service, not started yet."""
    for name in TOPICS:
        topics.create(name, partitions=1)
    environment = {
        **os.environ,
        "RELAY_DATABASE_URL": database.url,
        "RELAY_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "RELAY_ACCESS_ISSUER": issuer.url,
        "RELAY_ACCESS_JWKS_URL": jwks_url,
        "RELAY_TOPIC_PREFIX": topics.prefix,
        "RELAY_UNSAFE_DURABILITY": "true",
        "RELAY_CURSOR_SECRET": "a secret of sixteen characters",
        "RELAY_MAILBOX_HTTP_PORT": str(free_port()),
        "RELAY_MAILBOX_INTERNAL_PORT": str(free_port()),
    }
    if password := database.parts.get("password"):
        environment["RELAY_MAILBOX_HTTP_PASSWORD"] = str(password)
        environment["RELAY_MAILBOX_STREAM_PASSWORD"] = str(password)
    made = Process(environment, tmp_path / "log")
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
        return httpx.get(self.base + path, headers=self.headers, trust_env=False).json()

    def post(self, path: str, body: object, key: str):
        headers = {**self.headers, "idempotency-key": key}
        return httpx.post(self.base + path, json=body, headers=headers, trust_env=False)


@pytest.fixture
def caller(process, issuer):
    """Returns a caller for a subject."""

    def made(sub: str = "agent:planner") -> Caller:
        return Caller(process.port, issuer.token(sub, scope="mailbox:read mailbox:ack"))

    return made
