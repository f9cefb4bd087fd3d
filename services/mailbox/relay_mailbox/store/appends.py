"""The stream side's writes: records in commit order, the epoch."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import LiteralString

import msgspec
from relay_common import outbox, queries
from relay_common.arrays import blobs, flags, longs, repeated_texts, some_uuids, uuids
from relay_common.db import Connection
from relay_common.outbox import OutMessage
from relay_common.positions import Place

from relay_mailbox.domain.record import NewRecord, Owner

SQL = queries.load("relay_mailbox", "append")


class Appended(msgspec.Struct, frozen=True, gc=False):
    """A record that got its place: `hinted` says that its owner has to be woken."""

    record: NewRecord
    mailbox_id: int
    epoch: int
    seq: int
    appended_at: datetime
    hinted: bool


def append_records(conn: Connection, records: Sequence[NewRecord]) -> list[Appended]:
    """Append `records` in order inside the open transaction; return the fresh ones.

    What is missing was appended before under the same message id. The heads stay locked to the
    commit, so seq follows commit order and is dense (spec, Mailbox: Stream).
    """
    with conn.pipeline():
        rows = conn.execute(SQL["append_records"], columns(records), binary=True)
    fresh: list[Appended] = []
    for row in rows:
        place: int = row[0] - 1
        fresh.append(Appended(records[place], *row[1:]))
    return fresh


def columns(records: Sequence[NewRecord]) -> dict[str, object]:
    """Return `records` as the arrays of the append function: each owner once, numbered from 1."""
    boxes: dict[Owner, int] = {}
    numbers = [boxes.setdefault(r.to, len(boxes) + 1) for r in records]
    return {
        "tenants": repeated_texts(owner.tenant for owner in boxes),
        "environments": repeated_texts(owner.environment for owner in boxes),
        "owners": repeated_texts(owner.owner for owner in boxes),
        "boxes": longs(numbers),
        "message_ids": uuids([r.message_id for r in records]),
        "kinds": repeated_texts(r.kind for r in records),
        "types": repeated_texts(r.type for r in records),
        "states": repeated_texts(r.state for r in records),
        "trusts": repeated_texts(r.trust for r in records),
        "relationships": repeated_texts(r.relationship for r in records),
        "senders": repeated_texts(r.sender for r in records),
        "waitpoint_ids": repeated_texts(r.waitpoint_id for r in records),
        "supersedes": some_uuids([r.supersedes for r in records]),
        "wakings": flags(r.wakes for r in records),
        "bodies": blobs([r.body for r in records]),
    }


def raise_incarnation(conn: Connection, reason: str) -> int:
    """Start a new epoch, because Postgres went back in time; return it (design D12)."""
    return first(conn, SQL["raise_incarnation"], {"reason": reason})


def recognise_incarnation(conn: Connection) -> int:
    """Compare timeline and system identifier with the last known; return the epoch that stands."""
    return first(conn, SQL["recognise_incarnation"], {})


def note_witness(conn: Connection, behind: Mapping[Place, int]) -> int:
    """Keep what Kafka remembers of partitions where Postgres is behind; return how many of them
    were not noted before."""
    given = {
        "topics": [topic for topic, _ in behind],
        "partitions": [partition for _, partition in behind],
        "offsets": list(behind.values()),
    }
    return len(conn.execute(SQL["note_witness"], given).fetchall())


def due_hints(conn: Connection, wanted: int) -> list[tuple[Owner, datetime]]:
    """Take up to `wanted` hints that were held back until now: whose, and when they go out."""
    rows = conn.execute(SQL["due_hints"], {"wanted": wanted}).fetchall()
    return [(Owner(tenant, environment, owner), at) for tenant, environment, owner, at in rows]


def announce(conn: Connection, messages: Sequence[OutMessage], shards: int) -> None:
    """Put `messages` into the outbox; they go out after the commit."""
    if messages:
        conn.execute(outbox.INSERT, outbox.pack(messages, shards), binary=True)


def first(conn: Connection, statement: LiteralString, values: dict[str, object]) -> int:
    """Return the number that `statement` answers. Raises LookupError when it answers nothing."""
    row = conn.execute(statement, values).fetchone()
    if row is None:
        raise LookupError("expected one row, found none")
    return row[0]
