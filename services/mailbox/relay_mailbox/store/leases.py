"""Leases, acknowledgements and cursors: set-based, one statement each."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from relay_common import queries
from relay_common.arrays import ints, longs, uuids
from relay_common.db import AsyncConnection

from relay_mailbox.domain.lease import AckResult, Lease
from relay_mailbox.domain.record import Record
from relay_mailbox.store.mailboxes import Tenancy

SQL = queries.load("relay_mailbox", "lease")


@dataclass(frozen=True, slots=True)
class Wanted:
    """One caller's wish: how many records of which mailbox, for how long (None: the setting)."""

    owner: str
    mailbox_id: int
    max_records: int
    seconds: int | None
    token: uuid.UUID


@dataclass(frozen=True, slots=True)
class Leased:
    """What a lease got: seqs in order, how often each was delivered, and when it ends."""

    seqs: list[int]
    deliveries: list[int]
    until: datetime


@dataclass(frozen=True, slots=True)
class Named:
    """Records that a lease names; `place` is the caller's number for the lease."""

    place: int
    mailbox_id: int
    epoch: int
    seqs: Sequence[int]
    deliveries: Sequence[int]


@dataclass(frozen=True, slots=True)
class Item:
    """One record that a reader says it has done."""

    mailbox_id: int
    token: uuid.UUID
    seq: int


@dataclass(frozen=True, slots=True)
class Position:
    """What a reader reported."""

    mailbox_id: int
    reader: str
    epoch: int
    seq: int


async def lease_records(
    conn: AsyncConnection, within: Tenancy, wishes: Sequence[Wanted]
) -> list[Leased | None]:
    """Lease to each of `wishes` in turn; None where nothing can be leased.

    The heads are held by this transaction already, so two leases never share a record.
    """
    given = within.named(
        mailbox_ids=[w.mailbox_id for w in wishes],
        wanted=[w.max_records for w in wishes],
        seconds=[w.seconds for w in wishes],
        tokens=[w.token for w in wishes],
    )
    found: list[Leased | None] = [None] * len(wishes)
    rows = await conn.execute(SQL["lease_records"], given, binary=True)
    for row in await rows.fetchall():
        place: int = row[0] - 1
        leased = found[place] or Leased([], [], row[3])
        leased.seqs.append(row[1])
        leased.deliveries.append(row[2])
        found[place] = leased
    return found


async def leased_records(
    conn: AsyncConnection, within: Tenancy, leases: Sequence[Named]
) -> dict[int, list[Record]]:
    """Return the records that `leases` name by place, in seq order, as far as they are retained."""
    each = [one for one in leases for _ in one.seqs]
    given = within.named(
        places=ints(one.place for one in each),
        mailbox_ids=longs(one.mailbox_id for one in each),
        epochs=longs(one.epoch for one in each),
        seqs=longs(chain.from_iterable(one.seqs for one in leases)),
        deliveries=ints(chain.from_iterable(one.deliveries for one in leases)),
    )
    found: dict[int, list[Record]] = {one.place: [] for one in leases}
    rows = await conn.execute(SQL["leased_records"], given, binary=True)
    for row in await rows.fetchall():
        found[row[0]].append(Record(*row[1:]))
    return found


async def acknowledge(
    conn: AsyncConnection, within: Tenancy, items: Sequence[Item]
) -> list[AckResult]:
    """Acknowledge `items`; return one result for each, in order (spec, Acknowledgement results)."""
    given = within.named(
        mailbox_ids=longs(i.mailbox_id for i in items),
        tokens=uuids([i.token.bytes for i in items]),
        seqs=longs(i.seq for i in items),
    )
    rows = await conn.execute(SQL["acknowledge"], given, binary=True)
    return [row[0] for row in await rows.fetchall()]


async def extend(
    conn: AsyncConnection, within: Tenancy, mailbox_id: int, lease: Lease, seconds: int
) -> datetime | None:
    """Let `lease` end `seconds` from now; None when nothing of it is still held."""
    given = lease_columns(within, mailbox_id, lease)
    row = await (await conn.execute(SQL["extend_lease"], {**given, "seconds": seconds})).fetchone()
    return None if row is None else row[0]


async def release(
    conn: AsyncConnection,
    within: Tenancy,
    mailbox_id: int,
    lease: Lease,
    what: tuple[Sequence[int] | None, float],
) -> list[int]:
    """Give records of `lease` back: `what` is which seqs (None: all) and the delay in seconds
    before they can be leased again. Return the seqs that were given back."""
    seqs, delay_seconds = what
    given = lease_columns(within, mailbox_id, lease)
    asked = {"seqs": None if seqs is None else list(seqs), "delay_seconds": delay_seconds}
    rows = await conn.execute(SQL["release_lease"], {**given, **asked})
    return sorted([row[0] async for row in rows])


def lease_columns(within: Tenancy, mailbox_id: int, lease: Lease) -> dict[str, object]:
    """Return what finds the records of `lease`."""
    return within.named(
        mailbox_id=mailbox_id, token=lease.token, first=lease.first, last=lease.last
    )


async def report_cursors(
    conn: AsyncConnection, within: Tenancy, reports: Sequence[Position]
) -> dict[tuple[int, str], Position]:
    """Keep each reader's furthest position within the epoch; return what stands now."""
    given = within.named(
        mailbox_ids=[r.mailbox_id for r in reports],
        readers=[r.reader for r in reports],
        epochs=[r.epoch for r in reports],
        seqs=[r.seq for r in reports],
    )
    stands = [Position(*row) async for row in await conn.execute(SQL["report_cursors"], given)]
    return {(p.mailbox_id, p.reader): p for p in stands}
