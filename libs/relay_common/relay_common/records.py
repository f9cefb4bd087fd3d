"""Records as the loop hands them over, and what becomes of those that can never be processed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import msgspec

from relay_common import outbox, queries
from relay_common.db import Connection
from relay_common.telemetry import counter

BURY = queries.load("relay_common", "outbox")["bury_letter"]


# A msgspec struct: it is built 100,000 times a second, at a sixth of a dataclass's cost.
class Record(msgspec.Struct, gc=False):
    """One record of a partition. The key is the producer's and is never read for matching (D21).

    `ahead` is whatever its handler has made of it before its batch began.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    ahead: object = None

    def size(self) -> int:
        """Return the bytes of key and value."""
        return len(self.key or b"") + len(self.value or b"")


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that can never be processed, and why. `detail` never quotes its content."""

    record: Record
    reason: str
    detail: str = ""


Leaving: TypeAlias = DeadLetter | outbox.OutMessage


class BatchHandler(Protocol):
    """What a service does with a batch, inside the loop's open transaction.

    Returns what leaves with the commit, dead letters to the DLQ and messages to their topics; the
    loop writes them, stores the positions and commits in one round trip.
    Busy: offered again later. Any other error: rolled back, tried in ever smaller batches; a record
    that fails alone three times becomes a dead letter with reason handler_failed.
    """

    def __call__(self, conn: Connection, records: Sequence[Record], /) -> Sequence[Leaving]: ...


def message_of(letter: DeadLetter) -> outbox.OutMessage:
    """Return the DLQ message of `letter`: original key, bytes and headers, reason and origin."""
    record = letter.record
    origin = (
        ("relay_reason", letter.reason.encode()),
        ("relay_detail", letter.detail.encode()),
        ("relay_source_topic", record.topic.encode()),
        ("relay_source_partition", str(record.partition).encode()),
        ("relay_source_offset", str(record.offset).encode()),
    )
    return outbox.OutMessage(
        topic=f"{record.topic}.dlq",
        key=record.key,
        head=record.value or b"",
        headers=origin + record.headers,
        tombstone=record.value is None,
    )


def write_leaving(conn: Connection, leaving: Sequence[Leaving], shards: int) -> None:
    """Write dead letters and messages into the outbox of the caller's transaction.

    One larger than an outbox row goes to outbox_dead at once, whole: nothing is lost and nothing
    jams its shard.
    """
    letters = [one for one in leaving if isinstance(one, DeadLetter)]
    messages = [message_of(one) if isinstance(one, DeadLetter) else one for one in leaving]
    fitting = [m for m in messages if m.size() <= outbox.LARGEST_MESSAGE]
    if fitting:
        conn.execute(outbox.INSERT, outbox.pack(fitting, shards))
    for message in messages:
        if message.size() > outbox.LARGEST_MESSAGE:
            conn.execute(BURY, bury_parameters(message, shards))
    for letter in letters:
        counter("relay_dead_letters_total").labels(letter.record.topic, letter.reason).inc()


def bury_parameters(message: outbox.OutMessage, shards: int) -> dict[str, object]:
    """Return the parameters of BURY: the same layout as an outbox row, only larger."""
    value = None if message.tombstone else message.head
    return {
        "shard": outbox.shard_of(message.key or b"", shards),
        "topic": message.topic,
        "payload": outbox.repack([(message.key, value, message.headers)]),
        "reason": "larger than an outbox row",
    }
