"""The escalation process: follows the lifecycle of waitpoints. Read top to bottom."""

import sys

from relay_common.http import create_app
from relay_common.kafka import ConsumerLoop
from relay_common.producer import Producer
from relay_common.publisher import PublisherLoop
from relay_common.runtime import Loop, Readiness, run
from relay_common.startup import (
    begin,
    codec_of,
    consumer_settings,
    parse_roles,
    service_process,
    stream_connector,
    verifier_of,
    wait_for_database,
)

from relay_escalation.consumer import LifecycleConsumer
from relay_escalation.settings import EscalationSettings

SERVICE = "escalation"
SCHEMA = "0004_pre_escalation"
ROLES = ("http", "consumer", "publisher")


def main() -> int:
    """Run escalation until it is told to stop; return the exit code."""
    roles = parse_roles(SERVICE, ROLES)
    settings = EscalationSettings.read()
    begin(settings, SERVICE)

    wait_for_database(settings, SERVICE, "stream", SCHEMA)
    connect = stream_connector(settings, SERVICE)
    producer = Producer(settings.kafka_bootstrap, "relay-escalation")
    publisher = PublisherLoop(connect, producer, settings.outbox_shards)
    consumer = ConsumerLoop(
        consumer_settings(settings, SERVICE, "relay.waitpoints"),
        connect,
        LifecycleConsumer(codec_of(settings)),
        committed=publisher.wake,
    )

    readiness = Readiness()
    loops: list[Loop] = []
    if "consumer" in roles:
        readiness.add("consumer", consumer.ready)
        loops.append(Loop("consumer", consumer.run, consumer.age))
    if "publisher" in roles:
        readiness.add("publisher", publisher.ready)
        loops.append(Loop("publisher", publisher.run, publisher.age))

    app = None
    if "http" in roles:
        app = create_app("Relay escalation", "0.1.0", verifier_of(settings))
    code = run(service_process(settings, SERVICE, app, loops, readiness))
    producer.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
