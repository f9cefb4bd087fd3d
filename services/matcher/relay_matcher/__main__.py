"""The matcher process: events to waitpoints, and the waitpoints' HTTP. Read top to bottom."""

import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

from relay_common.cursors import Cursors
from relay_common.db import open_pool
from relay_common.kafka import ConsumerLoop
from relay_common.overlap import OverlappingConnection
from relay_common.producer import Producer
from relay_common.publisher import PublisherLoop
from relay_common.runtime import Loop, Readiness, run
from relay_common.settings import password
from relay_common.startup import (
    begin,
    codec_of,
    conninfo_of,
    consumer_settings,
    database_probe,
    parse_roles,
    service_process,
    stream_connector,
    verifier_of,
    wait_for_database,
)

from relay_matcher.access import Access
from relay_matcher.announcement import Announcer
from relay_matcher.consumer import EventConsumer
from relay_matcher.expansion import expander
from relay_matcher.http import matcher_app
from relay_matcher.http.desk import create_desk
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.settings import MatcherSettings
from relay_matcher.sweeper import sweeper_loops

SERVICE = "matcher"
SCHEMA = "0003_pre_matcher"
ROLES = ("http", "consumer", "sweeper", "publisher")


def main() -> int:
    """Run the matcher until it is told to stop; return the exit code."""
    roles = parse_roles(SERVICE, ROLES)
    settings = MatcherSettings.read()
    begin(settings, SERVICE)

    installed = wait_for_database(settings, SERVICE, "stream", SCHEMA)
    connect = stream_connector(settings, SERVICE)
    codec = codec_of(settings)
    announcer = Announcer(codec.prefix, settings.topic)
    plumbing = Plumbing(codec, announcer, settings.outbox_shards, installed.hash_seed)
    producer = Producer(settings.kafka_bootstrap, "relay-matcher")
    publisher = PublisherLoop(connect, producer, settings.outbox_shards, expander(announcer))
    pool = open_pool(conninfo_of(settings, SERVICE, "http"), "relay-matcher", settings.pool_size)
    secret = password(settings.cursor_secret) or secrets.token_hex(32)
    desk = create_desk(
        pool, plumbing, Cursors(secret.encode()), Access(settings.access_url), publisher.wake
    )

    readiness = Readiness()
    loops: list[Loop] = []
    if "http" in roles:
        probe = database_probe(settings, SERVICE)
        readiness.add("database", probe.ready)
        loops.append(Loop("database-probe", probe.run))
    if "consumer" in roles:
        handlers = [
            EventConsumer(codec, installed.hash_seed, announcer, settings.outbox_shards)
            for _ in range(settings.consumers)
        ]
        consumers = consumers_of(settings, handlers, connect, publisher.wake)
        for number, consumer in enumerate(consumers, start=1):
            readiness.add(f"consumer-{number}", consumer.ready)
            loops.append(Loop(f"consumer-{number}", consumer.run, consumer.age))
    if "sweeper" in roles:
        loops += sweeper_loops(settings, connect, announcer, publisher.wake)
    if "publisher" in roles:
        readiness.add("publisher", publisher.ready)
        loops.append(Loop("publisher", publisher.run, publisher.age))

    app = matcher_app(desk, verifier_of(settings)) if "http" in roles else None
    code = run(service_process(settings, SERVICE, app, loops, readiness))
    producer.close()
    return code


def consumers_of(
    settings: MatcherSettings,
    handlers: Sequence[EventConsumer],
    connect: Callable[[], OverlappingConnection],
    committed: Callable[[], None],
) -> list[ConsumerLoop]:
    """Return the consumers of events, one for each handler."""
    consuming = replace(
        consumer_settings(settings, SERVICE, "relay.events"),
        max_records=settings.batch_records,
        max_bytes=settings.batch_bytes,
    )
    return [
        ConsumerLoop(consuming, connect, handle, committed=committed, read_ahead=handle.read_ahead)
        for handle in handlers
    ]


if __name__ == "__main__":
    sys.exit(main())
