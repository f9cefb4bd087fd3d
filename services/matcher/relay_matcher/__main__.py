"""The matcher process: events to waitpoints, and the waitpoints' HTTP. Read top to bottom."""

import secrets
import sys
from dataclasses import replace

from relay_common.cursors import Cursors
from relay_common.db import open_pool
from relay_common.kafka import ConsumerLoop
from relay_common.producer import Producer
from relay_common.publisher import PublisherLoop
from relay_common.runtime import Loop, Readiness, ServiceProcess, run
from relay_common.settings import password
from relay_common.startup import (
    codec_of,
    conninfo_of,
    consumer_settings,
    database_probe,
    parse_roles,
    stream_connector,
    verifier_of,
    wait_for_database,
)
from relay_common.telemetry import configure_logs

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
    configure_logs(SERVICE, settings.log_level)

    installed = wait_for_database(settings, SERVICE, "stream", SCHEMA)
    connect = stream_connector(settings, SERVICE)
    codec = codec_of(settings)
    announcer = Announcer(codec.prefix, settings.topic)
    plumbing = Plumbing(codec, announcer, settings.outbox_shards, installed.hash_seed)
    producer = Producer(settings.kafka_bootstrap, "relay-matcher")
    publisher = PublisherLoop(connect, producer, settings.outbox_shards, expander(announcer))
    consuming = replace(
        consumer_settings(settings, SERVICE, "relay.events"),
        max_records=settings.batch_records,
        max_bytes=settings.batch_bytes,
    )
    consumers: list[ConsumerLoop] = []
    for _ in range(settings.consumers):
        events = EventConsumer(codec, installed.hash_seed, announcer, settings.outbox_shards)
        consumers.append(
            ConsumerLoop(
                consuming,
                connect,
                events,
                committed=publisher.wake,
                read_ahead=events.read_ahead,
            )
        )
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
        for number, consumer in enumerate(consumers, start=1):
            readiness.add(f"consumer-{number}", consumer.ready)
            loops.append(Loop(f"consumer-{number}", consumer.run, consumer.age))
    if "sweeper" in roles:
        loops += sweeper_loops(settings, connect, announcer, publisher.wake)
    if "publisher" in roles:
        readiness.add("publisher", publisher.ready)
        loops.append(Loop("publisher", publisher.run, publisher.age))

    process = ServiceProcess(
        name=SERVICE,
        app=matcher_app(desk, verifier_of(settings)) if "http" in roles else None,
        loops=loops,
        host=settings.http_host,
        port=settings.http_port,
        internal_port=settings.internal_port,
        readiness=readiness,
    )
    code = run(process)
    producer.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
