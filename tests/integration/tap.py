"""Everything that ever lay on the topics, read from outside all groups, for the checks."""

import threading
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.integration.producer import Framing

TOPICS = ("relay.events", "relay.waitpoints", "relay.mailbox", "relay.hints", "relay.events.dlq")
SCHEMAS = {name: Framing(f"{name}.v1") for name in TOPICS if not name.endswith(".dlq")}


@dataclass(frozen=True)
class Seen:
    """One record as it lies in the log."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]

    @cached_property
    def record(self) -> dict[str, Any]:
        """The decoded value."""
        assert self.value is not None
        return SCHEMAS[self.topic].decode(self.value)

    def header(self, name: str) -> str | None:
        """Return the text of the first header `name`."""
        return next((v.decode() for n, v in self.headers if n == name), None)


@dataclass
class Tap:
    """A thread that reads all topics from their beginning and keeps what it sees."""

    bootstrap: str
    seen: list[Seen] = field(default_factory=list, repr=False)
    _next: dict[tuple[str, int], int] = field(default_factory=dict, repr=False)
    _admin: AdminClient | None = field(default=None, repr=False)
    _stop: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Begin to read."""
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "test-tap", "log_level": 0}
        settings |= {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
        settings |= {"fetch.wait.max.ms": 50, "reconnect.backoff.max.ms": 1000}
        self._consumer = Consumer(settings)
        known = self._consumer.list_topics(timeout=10).topics
        places = [(t, p) for t in TOPICS for p in known[t].partitions]
        self._next = dict.fromkeys(places, 0)
        self._consumer.assign([TopicPartition(topic, number, 0) for topic, number in places])
        self._thread = threading.Thread(target=self._run, name="tap", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()
        self._consumer.close()

    def ends(self) -> dict[tuple[str, int], int]:
        """Return the end of every partition as the broker knows it now. Raises KafkaException."""
        asked = {TopicPartition(*place): OffsetSpec.latest() for place in self._next}
        # A consumer would put the question behind its own waiting fetch; an admin client that has
        # seen a broker before its restart is refused for ever (FENCED_LEADER_EPOCH).
        admin = self._admin or AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        self._admin = None
        futures = admin.list_offsets(asked, request_timeout=5)
        found = {(p.topic, p.partition): f.result().offset for p, f in futures.items()}
        self._admin = admin
        return found

    def behind(self, ends: dict[tuple[str, int], int]) -> int:
        """Return how many records before `ends` are not read yet."""
        return sum(max(0, end - self._next[place]) for place, end in ends.items())

    def of(self, topic: str) -> list[Seen]:
        """Return what was seen on `topic`, each partition in its order."""
        return [record for record in list(self.seen) if record.topic == topic]

    def letters(self) -> dict[tuple[int, int], Seen]:
        """Return source partition and offset → dead letter of relay.events."""
        return {
            (
                int(s.header("relay_source_partition") or 0),
                int(s.header("relay_source_offset") or 0),
            ): s
            for s in self.of("relay.events.dlq")
        }

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                messages = self._consumer.consume(1000, 0.1)
            except KafkaException:
                continue
            for message in messages:
                if message.error() is None:
                    self._keep(message)

    def _keep(self, message) -> None:
        place = (message.topic(), message.partition())
        if message.offset() < self._next[place]:
            return
        headers = tuple((n, v or b"") for n, v in message.headers() or ())
        self.seen.append(Seen(*place, message.offset(), message.key(), message.value(), headers))
        self._next[place] = message.offset() + 1
