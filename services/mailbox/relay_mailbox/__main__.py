"""The mailbox process: read from top to bottom to see what runs in it.

python -m relay_mailbox [--roles http,consumer,sweeper,publisher]
"""

import argparse
import sys
import threading
from functools import partial

import psycopg
from fastapi import FastAPI
from relay_common import db
from relay_common.avro import Codec
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
from relay_mailbox.http.app import mailbox_app
from relay_mailbox.operations.append import Appending
from relay_mailbox.settings import MailboxSettings
from relay_mailbox.store.appends import recognise_incarnation

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

    loops: list[Loop] = []
    publisher = PublisherLoop(
        connect, Producer(settings.kafka_bootstrap, "relay-mailbox"), settings.outbox_shards
    )
    if "publisher" in roles:
        readiness.add("publisher", publisher.ready)
        loops.append(Loop("publisher", publisher.run, publisher.age))
    if "consumer" in roles:
        records = consumer_loop(settings, connect, publisher)
        readiness.add("records", records.ready)
        loops.append(Loop("records", records.run, records.age))
    if "sweeper" in roles:
        loops += sweepers(settings, connect)
    app = public_app(settings, seed) if "http" in roles else None

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


def consumer_loop(
    settings: MailboxSettings, connect: partial[Connection], publisher: PublisherLoop
) -> ConsumerLoop:
    """Return the loop that appends what `relay.mailbox` carries."""
    codec = Codec(settings.schema_dir, settings.schema_registry_url)
    appending = Appending(codec, settings.topic("relay.hints"), settings.outbox_shards)
    wanted = ConsumerSettings(
        bootstrap=settings.kafka_bootstrap,
        group=settings.group("mailbox"),
        topics=(settings.topic("relay.mailbox"),),
        max_records=settings.batch_records,
        outbox_shards=settings.outbox_shards,
        group_protocol=settings.group_protocol,
        session_timeout_ms=settings.session_timeout_ms,
    )
    return ConsumerLoop(wanted, connect, MailboxConsumer(codec, appending), publisher.wake)


def sweepers(settings: MailboxSettings, connect: partial[Connection]) -> list[Loop]:
    """Return the periodic duties."""
    duties = {
        "open_slices": (3600.0, sweeper.open_slices),
        "expire_keys": (settings.sweep_seconds, expire_keys),
    }
    return [
        Loop(name, partial(every, seconds, duty, connect, name=name))
        for name, (seconds, duty) in duties.items()
    ]


def public_app(settings: MailboxSettings, seed: int) -> FastAPI:
    """Return the HTTP side on a pool of its own role."""
    role = db.role_conninfo(
        settings.database_url, "relay_mailbox_http", password(settings.http_password)
    )
    pool = db.open_pool(role, "relay-mailbox-http", settings.pool_size)
    verifier = TokenVerifier(
        settings.access_issuer,
        settings.access_audience,
        jwks_over_http(settings.access_jwks_url),
    )
    return mailbox_app(verifier, pool, seed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
