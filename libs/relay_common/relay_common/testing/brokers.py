"""Topics of one test on a broker that many runs may share."""
# The client's stubs leave what its futures hold open.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import uuid
from collections.abc import Mapping, Sequence

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from relay_common.kafka import record_of
from relay_common.records import Record
from relay_common.testing import wait


class Topics:
    """Topics under a prefix of the test's own (RELAY_TOPIC_PREFIX): made, written and read."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.prefix = f"t{uuid.uuid4().hex[:10]}."
        self.admin = AdminClient({"bootstrap.servers": bootstrap})
        self.producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 1, "message.max.bytes": 64 << 20}
        )
        self.created: list[str] = []

    def create(
        self, name: str, partitions: int = 3, config: Mapping[str, str] | None = None
    ) -> str:
        """Create `name` under the prefix and return the full name, ready for use."""
        full = self.prefix + name
        new = NewTopic(full, partitions, 1, config=dict(config or {}))
        for future in self.admin.create_topics([new]).values():
            future.result()
        self.created.append(full)
        wait.until(lambda: self.known(full) == partitions, describe=f"topic {full}")
        return full

    def known(self, full: str) -> int:
        """Return how many partitions the broker shows for `full`."""
        return len(self.admin.list_topics(full, timeout=5).topics[full].partitions)

    def delete(self, full: str) -> None:
        """Delete a topic and return when the broker has forgotten it."""
        self.admin.delete_topics([full])[full].result()
        self.created.remove(full)
        wait.until(lambda: full not in self.admin.list_topics(timeout=5).topics)

    def produce(
        self,
        full: str,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int = -1,
    ) -> None:
        """Queue one message; `flush` sends what is queued."""
        self.producer.produce(full, value, key, partition, headers=list(headers))
        self.producer.poll(0)

    def flush(self) -> None:
        """Return when the broker has acknowledged everything."""
        assert self.producer.flush(15) == 0

    def records(self, full: str) -> list[Record]:
        """Return what `full` holds now, by partition and offset."""
        reader = Consumer(
            {"bootstrap.servers": self.bootstrap, "group.id": "reader", "enable.auto.commit": False}
        )
        try:
            return read_all(reader, full, self.known(full))
        finally:
            reader.close()

    def close(self) -> None:
        """Delete the topics."""
        self.producer.flush(5)
        self.producer.close()
        if self.created:
            for future in self.admin.delete_topics(self.created).values():
                error = future.exception()
                if error and error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise error


def read_all(reader: Consumer, topic: str, partitions: int) -> list[Record]:
    """Return the records of a topic from its beginning to its present end."""
    ends: dict[int, int] = {}
    places: list[TopicPartition] = []
    for partition in range(partitions):
        low, high = reader.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
        if low < high:
            ends[partition] = high
            places.append(TopicPartition(topic, partition, low))
    reader.assign(places)
    found: list[Record] = []
    while ends:
        for message in reader.consume(1000, 0.05):
            if message.error() is None:
                record = record_of(message)
                found.append(record)
                if record.offset + 1 >= ends.get(record.partition, 0):
                    ends.pop(record.partition, None)
    return sorted(found, key=lambda r: (r.partition, r.offset))
