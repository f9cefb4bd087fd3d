"""The mailbox process: read from top to bottom to see what runs in it.

python -m relay_mailbox [--roles http,consumer,sweeper,publisher]
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from fastapi import FastAPI
from relay_common import db, startup
from relay_common.avro import Codec
from relay_common.cursors import Cursors
from relay_common.db import Connection
from relay_common.idempotency import expire_keys
from relay_common.kafka import ConsumerLoop, ConsumerSettings
from relay_common.overlap import OverlappingConnection
from relay_common.producer import Producer
from relay_common.publisher import PublisherLoop
from relay_common.runtime import Loop, Readiness, every, run
from relay_common.settings import password

from relay_mailbox import sweeper
from relay_mailbox.consumer import MailboxConsumer
from relay_mailbox.http.app import AppParts, mailbox_app
from relay_mailbox.operations.abuse import AbuseDesk
from relay_mailbox.operations.append import Appending, went_back
from relay_mailbox.operations.fan_out import FanOut
from relay_mailbox.settings import MailboxSettings
from relay_mailbox.store.appends import recognise_incarnation

Duty = Callable[[Connection], Mapping[str, int]]
ROLES = ("http", "consumer", "sweeper", "publisher")
SCHEMA_VERSION = "0007"


def main() -> int:
    """Run the roles named until SIGTERM; return the exit code."""
    roles = startup.parse_roles("mailbox", ROLES)
    settings = MailboxSettings()  # pyright: ignore[reportCallIssue] -- the environment fills it
    startup.begin(settings, "mailbox")
    side = "http" if "http" in roles else "stream"
    installation = startup.wait_for_database(settings, "mailbox", side, SCHEMA_VERSION)
    connect = recognising(startup.stream_connector(settings, "mailbox"))
    readiness = Readiness()

    codec = startup.codec_of(settings)
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
        records = ConsumerLoop(
            consumed(settings), connect, handle, publisher.wake, went_back, handle.read_ahead
        )
        readiness.add("records", records.ready)
        loops.append(Loop("records", records.run, records.age))
    if "sweeper" in roles:
        loops += sweepers(settings, connect, appending, fan_out)
    app = None
    if "http" in roles:
        probe = startup.database_probe(settings, "mailbox")
        readiness.add("database", probe.ready)
        loops.append(Loop("database-probe", probe.run))
        app = public_app(settings, installation.hash_seed, codec)

    return run(startup.service_process(settings, "mailbox", app, loops, readiness))


def recognising(
    connect: Callable[[], OverlappingConnection],
) -> Callable[[], OverlappingConnection]:
    """Return `connect` that looks at each new connection whether Postgres went back in time."""

    def recognised() -> OverlappingConnection:
        conn = connect()
        recognise_incarnation(conn)
        return conn

    return recognised


def sweepers(
    settings: MailboxSettings,
    connect: Callable[[], Connection],
    appending: Appending,
    fan_out: FanOut,
) -> list[Loop]:
    """Return the periodic duties."""
    duties: dict[str, tuple[float, Duty]] = {
        "fan_out_due": (settings.fan_out_seconds, partial(sweeper.fan_out_due, fan_out)),
        "expire_due": (settings.sweep_seconds, sweeper.expire_due),
        "expire_keys": (settings.sweep_seconds, expire_keys),
        "dead_letter_exhausted": (settings.sweep_seconds, sweeper.dead_letter_exhausted),
        "announce_hints": (settings.hint_seconds, partial(sweeper.announce_hints, appending)),
        "measure": (
            settings.measure_seconds,
            partial(sweeper.measure, settings.measure_seconds),
        ),
        "open_slices": (3600.0, sweeper.open_slices),
    }
    return [
        Loop(name, partial(every, seconds, duty, connect, name=name))
        for name, (seconds, duty) in duties.items()
    ]


def consumed(settings: MailboxSettings) -> ConsumerSettings:
    """Return what the consumer reads, as which group."""
    plain = startup.consumer_settings(settings, "mailbox", "relay.mailbox", "relay.topics")
    return replace(plain, max_records=settings.batch_records)


def public_app(settings: MailboxSettings, seed: int, codec: Codec) -> FastAPI:
    """Return the HTTP side on a pool of its own role."""
    conninfo = startup.conninfo_of(settings, "mailbox", "http")
    secret = password(settings.cursor_secret) or str(seed)
    return mailbox_app(
        AppParts(
            verifier=startup.verifier_of(settings),
            pool=db.open_pool(conninfo, "relay-mailbox-http", settings.pool_size),
            seed=seed,
            cursors=Cursors(secret.encode()),
            desk=AbuseDesk(codec, settings.topic("relay.topics"), settings.outbox_shards),
        )
    )


if __name__ == "__main__":
    sys.exit(main())
