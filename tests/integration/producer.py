"""A plain producer: Avro on the topic as any service beside Relay would write it, no Relay code."""

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
from confluent_kafka import KafkaError, Message, Producer

SCHEMAS = Path(__file__).parents[2] / "schemas" / "avro"
Event = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Sent:
    """A record the broker has acknowledged."""

    topic: str
    partition: int
    offset: int


class Framing:
    """Avro single-object encoding of one schema file, by fastavro alone."""

    def __init__(self, schema: str) -> None:
        self.schema = fastavro.parse_schema(json.loads((SCHEMAS / f"{schema}.avsc").read_text()))
        canonical = fastavro.schema.to_parsing_canonical_form(self.schema)
        mark = fastavro.schema.fingerprint(canonical, "CRC-64-AVRO")
        self.header = b"\xc3\x01" + bytes.fromhex(mark)

    def encode(self, record: Event) -> bytes:
        """Return the framed value of `record`."""
        out = BytesIO()
        out.write(self.header)
        fastavro.schemaless_writer(out, self.schema, record)
        return out.getvalue()

    def decode(self, value: bytes) -> dict[str, Any]:
        """Return the record in a framed value."""
        assert value[:10] == self.header, f"expected {self.header!r}, found {value[:10]!r}"
        return fastavro.schemaless_reader(BytesIO(value[10:]), self.schema)


EVENTS = Framing("relay.events.v1")


def event_value(tenant: str, environment: str, event: Event) -> bytes:
    """Return the value of relay.events for an event in the shape of `POST /v1/events`."""
    record = {**event, "tenant": tenant, "environment": environment}
    if "data" in event:
        record["data"] = json.dumps(event["data"], ensure_ascii=False).encode()
    return EVENTS.encode(record)


class PlainProducer:
    """An idempotent producer of the real client library; remembers what the broker acknowledged."""

    def __init__(self, bootstrap: str, **settings: object) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"}
            | {"linger.ms": 1, "log_level": 0}
            | settings
        )
        self._lock = threading.Lock()
        self.sent: list[Sent] = []
        self.failed: list[str] = []

    def send(
        self,
        value: bytes | None,
        key: bytes | None = None,
        headers: list[tuple[str, bytes]] | None = None,
        topic: str = "relay.events",
        partition: int | None = None,
    ) -> None:
        """Hand one record over; `flush` says what became of it."""
        chosen = {} if partition is None else {"partition": partition}
        self._producer.produce(
            topic, value, key, headers=headers, on_delivery=self._delivered, **chosen
        )
        self._producer.poll(0)

    def flush(self, seconds: float = 30) -> list[Sent]:
        """Wait for every acknowledgement and return all records acknowledged so far, in order."""
        left = self._producer.flush(seconds)
        assert left == 0, f"expected everything acknowledged, {left} records are not"
        assert self.failed == [], f"expected no refusal, found {self.failed[:3]}"
        return list(self.sent)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        with self._lock:
            if error is not None:
                self.failed.append(str(error))
                return
            where = (message.topic() or "", message.partition() or 0, message.offset() or 0)
            self.sent.append(Sent(*where))
