"""The mailbox process: read from top to bottom to see what runs in it.

python -m relay_mailbox [--roles http,consumer,sweeper,publisher]
"""

import argparse
import sys
import threading
from collections.abc import Callable, Mapping
from functools import partial

import psycopg
from fastapi import FastAPI
from relay_common import db
from relay_common.avro import Codec
from relay_common.cursors import Cursors
from relay_common.db import Connection
from relay_common.idempotency import expire_keys
from relay_common.kafka import ConsumerLoop, ConsumerSettings
from relay_common.producer import Producer
from relay_common.publisher import PublisherLoop
from relay_common.runtime import Loop, Readiness, ServiceProcess, every, run
from relay_common.settings import password
from relay_common.telemetry import configure_logs, logger
from relay_common.tokens import TokenVerifier, jwks_over_http

from relay_mailbox import sweeper
from relay_mailbox.consumer import MailboxConsumer
from relay_mailbox.http.app import AppParts, mailbox_app
from relay_mailbox.operations.abuse import AbuseDesk
from relay_mailbox.operations.append import Appending
from relay_mailbox.operations.fan_out import FanOut
from relay_mailbox.settings import MailboxSettings
from relay_mailbox.store.appends import recognise_incarnation

Duty = Callable[[Connection], Mapping[str, int]]
ROLES = ("http", "consumer", "sweeper", "publisher")
SCHEMA_VERSION = "0007"
log = logger(__name__)


def main(arguments: list[str]) -> int:
    """Run the roles named until SIGTERM; return the exit code."""
    roles = parse_roles(arguments)
    settings = MailboxSettings()  # pyright: ignore[reportCallIssue] -- the environment fills it
    configure_logs("mailbox", settings.log_level)
    connect = partial(connect_stream, settings)
    seed = wait_for_database(settings, connect)
    readiness = Readiness()

    codec = Codec(settings.schema_dir, settings.schema_registry_url)
    appending = Appending(codec, settings.topic("relay.hints"), settings.outbox_shards)
    fan_out = FanOut(codec, settings.topic("relay.mailbox"), settings.outbox_shards)
    publisher = PublisherLoop(
        connect, Producer(settings.kafka_bootstrap, "relay-mailbox"), settings.outbox_shards
    )
    loops: list[Loop] = []
    if "publisher" in roles:
        readiness.add("publisher", publisher.ready)
        loops.append(Loop("publisher", publisher.run, publisher.age))
    if "consumer" in roles:
        handle = MailboxConsumer(codec, appending, fan_out)
        records = ConsumerLoop(consumed(settings), connect, handle, publisher.wake)
        readiness.add("records", records.ready)
        loops.append(Loop("records", records.run, records.age))
    if "sweeper" in roles:
        duties: dict[str, tuple[float, Duty]] = {
            "fan_out_due": (settings.fan_out_seconds, partial(sweeper.fan_out_due, fan_out)),
            "expire_due": (settings.sweep_seconds, sweeper.expire_due),
            "expire_keys": (settings.sweep_seconds, expire_keys),
            "dead_letter_exhausted": (
                settings.sweep_seconds,
                partial(sweeper.dead_letter_exhausted, appending),
            ),
            "measure": (settings.measure_seconds, sweeper.measure),
            "open_slices": (3600.0, sweeper.open_slices),
        }
        loops += [
            Loop(name, partial(every, seconds, duty, connect, name=name))
            for name, (seconds, duty) in duties.items()
        ]
    app = public_app(settings, seed, codec) if "http" in roles else None

    return run(
        ServiceProcess(
            name="mailbox",
            app=app,
            loops=loops,
            host=settings.http_host,
            port=settings.http_port,
            internal_port=settings.internal_port,
            readiness=readiness,
        )
    )


def parse_roles(arguments: list[str]) -> set[str]:
    """Return the roles that the command line names, all by default."""
    parser = argparse.ArgumentParser(prog="relay_mailbox", description="The mailbox service.")
    parser.add_argument("--roles", default=",".join(ROLES), help="http,consumer,sweeper,publisher")
    roles = set(str(parser.parse_args(arguments).roles).split(","))
    if roles - set(ROLES):
        parser.error(f"expected roles among {', '.join(ROLES)}")
    return roles


def connect_stream(settings: MailboxSettings) -> Connection:
    """Return a connection of the stream side to a database that keeps what it acknowledges.

    Each new connection looks whether Postgres went back in time (design D12).
    """
    role = db.role_conninfo(
        settings.database_url, "relay_mailbox_stream", password(settings.stream_password)
    )
    conn = db.connect(role, "relay-mailbox")
    db.check_server(conn, allow_unsafe_durability=settings.unsafe_durability)
    recognise_incarnation(conn)
    return conn


def wait_for_database(settings: MailboxSettings, connect: partial[Connection]) -> int:
    """Return the installation's seed once the database is there with the schema this needs."""
    pause = threading.Event()
    while True:
        try:
            role = db.role_conninfo(
                settings.database_url, "relay_mailbox_stream", password(settings.stream_password)
            )
            with db.connect(role, "relay-mailbox") as conn:
                db.wait_for_schema(conn, SCHEMA_VERSION, pause)
            with connect() as conn:
                return db.installation(conn).hash_seed
        except psycopg.OperationalError as error:
            log.warning("database_awaited", error=type(error).__name__)
            pause.wait(1.0)


def consumed(settings: MailboxSettings) -> ConsumerSettings:
    """Return what the consumer reads, as which group."""
    return ConsumerSettings(
        bootstrap=settings.kafka_bootstrap,
        group=settings.group("mailbox"),
        topics=(settings.topic("relay.mailbox"), settings.topic("relay.topics")),
        max_records=settings.batch_records,
        outbox_shards=settings.outbox_shards,
        group_protocol=settings.group_protocol,
        session_timeout_ms=settings.session_timeout_ms,
    )


def public_app(settings: MailboxSettings, seed: int, codec: Codec) -> FastAPI:
    """Return the HTTP side on a pool of its own role."""
    role = db.role_conninfo(
        settings.database_url, "relay_mailbox_http", password(settings.http_password)
    )
    fetch_jwks = jwks_over_http(settings.access_jwks_url)
    secret = password(settings.cursor_secret) or str(seed)
    return mailbox_app(
        AppParts(
            verifier=TokenVerifier(settings.access_issuer, settings.access_audience, fetch_jwks),
            pool=db.open_pool(role, "relay-mailbox-http", settings.pool_size),
            seed=seed,
            cursors=Cursors(secret.encode()),
            desk=AbuseDesk(codec, settings.topic("relay.topics"), settings.outbox_shards),
        )
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
