"""What every service does before it serves: its roles, its database, whom it trusts.

Called from `__main__` only, in the order in which a process comes up.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

import psycopg
from starlette.types import ASGIApp

from relay_common.avro import Codec
from relay_common.db import (
    Installation,
    check_server,
    connect,
    installation,
    role_conninfo,
    wait_for_schema,
)
from relay_common.kafka import ConsumerSettings
from relay_common.overlap import OverlappingConnection
from relay_common.runtime import Loop, Readiness, ServiceProcess
from relay_common.settings import CommonSettings, password
from relay_common.telemetry import configure_logs, logger
from relay_common.tokens import TokenVerifier, jwks_over_http

Side = Literal["http", "stream"]
AGAIN_SECONDS = 1.0
LOGIN_TRIES = 60  # migrations create the roles: one that is unknown may still be on its way
PROBE_SECONDS = 1.0
log = logger(__name__)


class LoginRefused(Exception):
    """The database answers, and does not let this role in: wrong password, or no such role."""


def begin(settings: CommonSettings, service: str) -> None:
    """Set up the logs of a process of `service`, and how far it steps back for others."""
    configure_logs(service, settings.log_level)
    os.nice(settings.nice)


def parse_roles(service: str, offered: Sequence[str]) -> frozenset[str]:
    """Return the roles of `--roles`, all `offered` ones without it. Exits with 2 for another."""
    parser = argparse.ArgumentParser(prog=f"relay_{service}")
    parser.add_argument("--roles", default=",".join(offered), help="default: %(default)s")
    roles = frozenset(parser.parse_args().roles.split(","))
    if not roles <= set(offered):
        parser.error(f"expected roles out of {', '.join(offered)}, found {', '.join(roles)}")
    return roles


def conninfo_of(settings: CommonSettings, service: str, side: Side) -> str:
    """Return how `service` logs in on one of its two sides (design §6)."""
    secret = settings.http_password if side == "http" else settings.stream_password
    return role_conninfo(settings.database_url, f"relay_{service}_{side}", password(secret))


def stream_connector(settings: CommonSettings, service: str) -> Callable[[], OverlappingConnection]:
    """Return how the loops of `service` connect; each new connection proves the server first."""
    conninfo = conninfo_of(settings, service, "stream")

    def checked() -> OverlappingConnection:
        conn = connect(conninfo, f"relay-{service}")
        try:
            check_server(conn, allow_unsafe_durability=settings.unsafe_durability)
        except Exception:
            conn.close()
            raise
        return conn

    return checked


def wait_for_database(
    settings: CommonSettings, service: str, side: Side, version: str
) -> Installation:
    """Return who the database is, once it answers, is safe and has the migration `version`.

    Raises UnsafeDatabase for a server that could forget what it has acknowledged, and LoginRefused
    for one that keeps this role out for a minute.
    """
    conninfo = conninfo_of(settings, service, side)
    refused = 0
    while True:
        try:
            with connect(conninfo, f"relay-{service}") as conn:
                check_server(conn, allow_unsafe_durability=settings.unsafe_durability)
                wait_for_schema(conn, version, threading.Event())
                return installation(conn)
        except psycopg.OperationalError as error:
            refused = refused + 1 if is_refusal(error) else 0
            log.warning("database_awaited", role=f"relay_{service}_{side}", found=str(error))
            if refused >= LOGIN_TRIES:
                raise LoginRefused(f"expected to be let in, found: {error}") from None
            time.sleep(AGAIN_SECONDS)


def is_refusal(error: psycopg.OperationalError) -> bool:
    """Tell whether a server answered and refused the login; libpq does not pass its code on."""
    server = error.pgconn
    return server is not None and (server.used_password or server.needs_password)


def consumer_settings(settings: CommonSettings, service: str, *topics: str) -> ConsumerSettings:
    """Return what the consumers of `service` read, as its group; batches are of the usual size."""
    return ConsumerSettings(
        bootstrap=settings.kafka_bootstrap,
        group=settings.group(service),
        topics=tuple(settings.topic(topic) for topic in topics),
        outbox_shards=settings.outbox_shards,
        group_protocol=settings.group_protocol,
        session_timeout_ms=settings.session_timeout_ms,
    )


def verifier_of(settings: CommonSettings) -> TokenVerifier:
    """Return the verifier of the tokens that this installation trusts."""
    fetch = jwks_over_http(settings.access_jwks_url)
    return TokenVerifier(settings.access_issuer, settings.access_audience, fetch)


def codec_of(settings: CommonSettings) -> Codec:
    """Return the codec for the schemas and the registry of `settings`."""
    return Codec(settings.schema_dir, settings.schema_registry_url)


class Probe:
    """Asks something every second, so that readiness tells the truth without waiting."""

    def __init__(self, ask: Callable[[], object]) -> None:
        """`ask` raises when there is no answer; it brings its own time limit."""
        self.ask = ask
        self.missing: str | None = "not asked yet"

    def run(self, stop: threading.Event) -> None:
        """Ask until `stop` is set."""
        while not stop.is_set():
            try:
                self.ask()
                self.missing = None
            except Exception as error:
                self.missing = f"no answer: {type(error).__name__}"
            stop.wait(PROBE_SECONDS)

    def ready(self) -> str | None:
        """Return what is missing, None after a good answer."""
        return self.missing


def database_probe(settings: CommonSettings, service: str) -> Probe:
    """Return the probe of the HTTP side's database."""
    conninfo = conninfo_of(settings, service, "http")

    def ask() -> None:
        with connect(conninfo, f"relay-{service}-probe") as conn:
            conn.execute("select 1")

    return Probe(ask)


def service_process(
    settings: CommonSettings,
    service: str,
    app: ASGIApp | None,
    loops: list[Loop],
    readiness: Readiness,
) -> ServiceProcess:
    """Return the process of `service` at the addresses that its settings name."""
    return ServiceProcess(
        name=service,
        app=app,
        loops=loops,
        host=settings.http_host,
        port=settings.http_port,
        internal_port=settings.internal_port,
        readiness=readiness,
    )
