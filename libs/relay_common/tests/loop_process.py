"""A process with one consumer loop or one publisher, for tests that kill it."""

import signal
import sys
import threading

from relay_common import db, telemetry
from relay_common.kafka import ConsumerLoop, ConsumerSettings
from relay_common.producer import Producer
from relay_common.publisher import PublisherLoop
from relay_common.testing.streams import record_effects


def main(kind: str, conninfo: str, bootstrap: str, topic: str, group: str) -> None:
    telemetry.configure_logs("loop-process")
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    if kind == "consumer":
        settings = ConsumerSettings(
            bootstrap, group, (topic,), max_records=100, session_timeout_ms=6_000
        )
        run = ConsumerLoop(settings, lambda: db.connect(conninfo, "loop"), record_effects).run
    else:
        producer = Producer(bootstrap, "loop-process")
        run = PublisherLoop(lambda: db.connect(conninfo, "loop"), producer, 2).run
    thread = threading.Thread(target=run, args=(stop,), daemon=True)
    thread.start()
    while thread.is_alive():  # keeps the main thread awake for the signal
        thread.join(0.1)


if __name__ == "__main__":
    main(*sys.argv[1:])
