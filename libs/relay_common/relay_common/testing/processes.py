"""A service as its own process, as it runs in production: `python -m relay_<name>`."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import httpx

from relay_common.testing import wait
from relay_common.testing.brokers import Topics
from relay_common.testing.databases import Database


class ServiceRun:
    """One running service with its ports and its log."""

    def __init__(self, name: str, environment: Mapping[str, str]) -> None:
        self.name = name
        self.http_port, self.internal_port = free_port(), free_port()
        self.log = Path(tempfile.mkstemp(prefix=f"relay-{name}-", suffix=".log")[1])
        prefix = f"RELAY_{name.upper()}"
        ports = {
            f"{prefix}_HTTP_PORT": str(self.http_port),
            f"{prefix}_INTERNAL_PORT": str(self.internal_port),
        }
        if password := environment.get("RELAY_TEST_PASSWORD"):
            ports |= {f"{prefix}_HTTP_PASSWORD": password, f"{prefix}_STREAM_PASSWORD": password}
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"relay_{name}"],
                env={**os.environ, **environment, **ports},
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def get(self, path: str) -> httpx.Response | None:
        """Return the answer of the internal port, None when nobody listens."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.internal_port}{path}", trust_env=False)
        except httpx.TransportError:
            return None

    def until_ready(self) -> None:
        """Return when /readyz says so. Raises AssertionError with the log's end otherwise."""

        def ready() -> bool:
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            found = self.get("/readyz")
            return found is not None and found.status_code == 200

        wait.until(ready, 90, lambda: f"{self.name} ready; {self.log.read_text()[-2000:]}")

    def stop(self) -> int:
        """Ask the process to end, as Kubernetes does; return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(25)

    def kill(self) -> None:
        """End the process whatever it does, and forget its log."""
        self.process.kill()
        self.process.wait()
        self.log.unlink(missing_ok=True)


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment_of(database: Database, topics: Topics, jwks_url: str = "") -> dict[str, str]:
    """Return the settings that put a service on the database and topics of one test."""
    return {
        "RELAY_DATABASE_URL": database.url,
        "RELAY_KAFKA_BOOTSTRAP": topics.bootstrap,
        "RELAY_TOPIC_PREFIX": topics.prefix,
        "RELAY_GROUP_PREFIX": topics.prefix + "relay",
        "RELAY_ACCESS_ISSUER": "https://access.test",
        "RELAY_ACCESS_JWKS_URL": jwks_url,
        "RELAY_UNSAFE_DURABILITY": "true",
        # A server with passwords gives every role the owner's (see databases.allow_logins).
        "RELAY_TEST_PASSWORD": str(database.parts.get("password", "")),
    }
