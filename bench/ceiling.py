"""The ceilings: what the same machine does with the same bytes when nothing is decided.

A child process, `python -m bench.ceiling KIND DATABASE_URL BOOTSTRAP TOPIC GROUP BATCH`; KIND is

    c1        full fastavro decode of every record, COPY into a table of the event log's shape
    c2        decode of the routing fields only, the same COPY

Positions are stored in the transaction of the batch, as the matcher stores its own.
"""

import io
import signal
import sys
import threading
from collections.abc import Callable, Sequence

import fastavro
import psycopg
import xxhash
from confluent_kafka import Consumer, Message, TopicPartition
from relay_common.avro import Codec
from relay_common.match_key import LENGTH

from bench.events import SCHEMA

COLUMNS = (
    "received_at, key_hash, arrival, event_id, rule_id, tenant, environment, event_type,"
    " correlation_key, recipient, reason, value"
)
# Text and uuid are their raw bytes on the wire: no object is made for them.
TYPES = ["timestamptz", "int8", "int8", "bytea", "int2", *["bytea"] * 7]
COPY = f"copy ceiling.event ({COLUMNS}) from stdin (format binary)"
STORE = """
insert into ceiling.position as p (topic, partition, next_offset)
select %(topic)s, q.partition, q.next_offset
from unnest(%(partitions)s::int[], %(offsets)s::bigint[]) q (partition, next_offset)
on conflict (topic, partition) do update set next_offset = excluded.next_offset
"""
Routing = tuple[bytes, bytes, bytes, bytes, bytes]
Decoder = Callable[[bytes], Routing]
FRAMING = 10


def full(parsed: dict[str, object]) -> Decoder:
    """Return the decoder that turns every field into Python."""

    def decode(value: bytes) -> Routing:
        body = io.BytesIO(value)
        body.seek(FRAMING)
        record = fastavro.schemaless_reader(body, parsed, None)
        names = ("tenant", "environment", "event_type", "correlation_key")
        parts = tuple(record[name].encode() for name in names)
        return (*parts, bytes.fromhex(record["id"]))

    return decode


def prefix(value: bytes) -> Routing:
    """Return the routing fields and the id; strings of up to 63 bytes, as these events have."""
    at = FRAMING
    end = at + 1 + (value[at] >> 1)
    tenant = value[at + 1 : end]
    at, end = end, end + 1 + (value[end] >> 1)
    environment = value[at + 1 : end]
    at, end = end, end + 1 + (value[end] >> 1)
    event_type = value[at + 1 : end]
    at, end = end, end + 1 + (value[end] >> 1)
    correlation_key = value[at + 1 : end]
    at = end + 2  # no recipient; source is there
    at += 1 + (value[at] >> 1)
    at += 1  # id is there
    name = value[at + 1 : at + 1 + (value[at] >> 1)]
    return tenant, environment, event_type, correlation_key, bytes.fromhex(name.decode())


def key_hash(tenant: bytes, environment: bytes, event_type: bytes, correlation_key: bytes) -> int:
    """Return the signed 64-bit hash of the match key."""
    pack = LENGTH.pack
    encoded = b"".join(
        (
            pack(len(tenant)),
            tenant,
            pack(len(environment)),
            environment,
            pack(len(event_type)),
            event_type,
            pack(len(correlation_key)),
            correlation_key,
        )
    )
    unsigned = xxhash.xxh3_64_intdigest(encoded)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def copy_batch(conn: psycopg.Connection, values: Sequence[bytes], decode: Decoder) -> None:
    """Write the events of one batch."""
    at = conn.execute("select clock_timestamp()").fetchone()[0]
    arrival = conn.execute("select nextval('ceiling.arrival')").fetchone()[0]
    with conn.cursor() as cursor, cursor.copy(COPY) as copy:
        copy.set_types(TYPES)
        for place, value in enumerate(values):
            *key, event_id = decode(value)
            row = (at, key_hash(*key), arrival + place, event_id, 1, *key, None, None, value)
            copy.write_row(row)


def store(conn: psycopg.Connection, topic: str, messages: Sequence[Message]) -> None:
    """Store the positions after `messages`."""
    following = {m.partition(): m.offset() + 1 for m in messages}
    conn.execute(
        STORE,
        {"topic": topic, "partitions": list(following), "offsets": list(following.values())},
    )


def consumer(bootstrap: str, group: str) -> Consumer:
    """Return a client with the matcher's fetch settings."""
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 20,
            "queued.min.messages": 100_000,
            "heartbeat.interval.ms": 500,
            "partition.assignment.strategy": "cooperative-sticky",
        }
    )


def run(kind: str, url: str, client: Consumer, topic: str, batch: int) -> None:
    """Consume until SIGTERM."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    decode = full(Codec().known[SCHEMA].parsed) if kind == "c1" else prefix
    conn = psycopg.connect(url, autocommit=True)
    client.subscribe([topic], on_assign=lambda _, places: announce(conn, topic, places, client))
    while not stop.is_set():
        messages = [m for m in client.consume(batch, 0.05) if not m.error()]
        if not messages:
            continue
        with conn.transaction():
            copy_batch(conn, [m.value() for m in messages], decode)
            store(conn, topic, messages)
    client.close()


def announce(
    conn: psycopg.Connection, topic: str, places: list[TopicPartition], client: Consumer
) -> None:
    """Store where the assigned partitions begin, so that the run knows this process is ready."""
    if not places:
        return
    begin = {p.partition: client.get_watermark_offsets(p, 5)[1] for p in places}
    parameters = {"topic": topic, "partitions": list(begin), "offsets": list(begin.values())}
    conn.execute(STORE, parameters)
    client.incremental_assign(
        [TopicPartition(p.topic, p.partition, begin[p.partition]) for p in places]
    )


if __name__ == "__main__":
    KIND, URL, BOOTSTRAP, TOPIC, GROUP, BATCH = sys.argv[1:]
    run(KIND, URL, consumer(BOOTSTRAP, GROUP), TOPIC, int(BATCH))
