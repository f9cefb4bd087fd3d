"""The intake process: the HTTP front of `relay.events`. Read top to bottom."""

import sys

from relay_common.http import add_routes, create_app
from relay_common.limits import EVENTS_REQUEST_BYTES
from relay_common.producer import Producer
from relay_common.runtime import Loop, Readiness, run
from relay_common.startup import (
    Probe,
    begin,
    codec_of,
    parse_roles,
    service_process,
    verifier_of,
    wait_for_database,
)

from relay_intake.http import events_router
from relay_intake.operations import EventTopic
from relay_intake.settings import IntakeSettings

SERVICE = "intake"
SCHEMA = "0002_pre_intake"
ROLES = ("http",)


def main() -> int:
    """Run intake until it is told to stop; return the exit code."""
    parse_roles(SERVICE, ROLES)
    settings = IntakeSettings.read()
    begin(settings, SERVICE)

    installed = wait_for_database(settings, SERVICE, "http", SCHEMA)
    producer = Producer(
        settings.kafka_bootstrap, "relay-intake", int(settings.broker_seconds * 1000)
    )
    events = EventTopic(
        producer, codec_of(settings), settings.topic("relay.events"), installed.hash_seed
    )

    app = create_app(
        "Relay intake", "0.1.0", verifier_of(settings), request_limit=EVENTS_REQUEST_BYTES
    )
    add_routes(app, events_router(events))

    readiness = Readiness()
    broker = Probe(lambda: producer.client.list_topics(events.topic, timeout=2.0))
    readiness.add("kafka", broker.ready)
    loops = [Loop("kafka-probe", broker.run)]
    code = run(service_process(settings, SERVICE, app, loops, readiness))
    producer.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
