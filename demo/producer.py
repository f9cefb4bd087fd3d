"""A plain producer as any service beside Relay would write it: Avro on the topic, no Relay code."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from io import BytesIO
from pathlib import Path

import fastavro
from confluent_kafka import Producer

from demo.generate import Event

SCHEMA_FILE = Path(__file__).parents[1] / "schemas" / "avro" / "relay.events.v1.avsc"


def push(
    bootstrap: str,
    where: tuple[str, str],
    events: Sequence[Event],
    per_second: int | None,
    progress: Callable[[int], None],
) -> dict[tuple[str, str], float]:
    """Write `events` for the tenant and environment `where` to relay.events.

    `per_second` paces them, None is as fast as it goes. Returns when each was handed over, in
    seconds of the wall clock, by event type and key. Raises RuntimeError when one is not accepted.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 5,
            "acks": "all",
            "queue.buffering.max.messages": 500_000,
        }
    )
    encode = encoder()
    refused: list[str] = []
    sent: dict[tuple[str, str], float] = {}
    for event in paced(events, per_second):
        key = f"{event['event_type']}/{event['correlation_key']}".encode()
        sent[str(event["event_type"]), str(event["correlation_key"])] = time.time_ns() / 1e9
        producer.produce(
            "relay.events",
            encode(where, event),
            key,
            on_delivery=lambda error, _: refused.append(str(error)) if error else None,
        )
        producer.poll(0)
        progress(1)
    if producer.flush(30) or refused:
        raise RuntimeError(f"expected every event on the topic, the broker refused: {refused[:3]}")
    return sent


def paced(events: Sequence[Event], per_second: int | None) -> Iterator[Event]:
    """Yield the events, at most `per_second` of them a second."""
    began = time.monotonic()
    for number, event in enumerate(events):
        ahead = number / per_second - (time.monotonic() - began) if per_second else 0.0
        if ahead > 0:
            time.sleep(ahead)
        yield event


def encoder() -> Callable[[tuple[str, str], Event], bytes]:
    """Return a function that makes one Avro record with the single-object header."""
    schema = fastavro.parse_schema(json.loads(SCHEMA_FILE.read_text()))
    canonical = fastavro.schema.to_parsing_canonical_form(schema)
    header = b"\xc3\x01" + bytes.fromhex(fastavro.schema.fingerprint(canonical, "CRC-64-AVRO"))

    def encode(where: tuple[str, str], event: Event) -> bytes:
        record = event | {"tenant": where[0], "environment": where[1]}
        record["data"] = json.dumps(event["data"], ensure_ascii=False).encode()
        record["occurred_at"] = event["occurred_at"] and micros(str(event["occurred_at"]))
        out = BytesIO(header)
        out.seek(0, 2)
        fastavro.schemaless_writer(out, schema, record)
        return out.getvalue()

    return encode


def micros(text: str) -> int:
    """Return microseconds since 1970 of an RFC 3339 time in UTC."""
    return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() * 1e6)
