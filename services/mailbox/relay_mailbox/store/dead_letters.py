"""Records that died: the view and the way back."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from relay_common import queries
from relay_common.db import AsyncConnection

from relay_mailbox.domain.record import Record
from relay_mailbox.store.mailboxes import Tenancy, number
from relay_mailbox.store.records import PAGE_BYTES

SQL = queries.load("relay_mailbox", "dead_letter")
REDRIVE_RECORDS = 10_000


@dataclass(frozen=True, slots=True)
class DeadRecord:
    """A dead record and when it died."""

    record: Record
    died_at: datetime


async def list_dead_letters(
    conn: AsyncConnection, within: Tenancy, owner: str, *, after: int, limit: int
) -> list[DeadRecord]:
    """Return up to `limit` dead letters of `owner` with a seq above `after`, in seq order."""
    given = within.named(owner=owner, after=after, limit=limit, max_bytes=PAGE_BYTES)
    rows = await conn.execute(SQL["list_dead_letters"], given, binary=True)
    return [DeadRecord(Record(owner, *row[:-1]), row[-1]) async for row in rows]


async def redrive(
    conn: AsyncConnection,
    within: Tenancy,
    mailbox_id: int,
    seqs: Sequence[int] | None,
    *,
    dry_run: bool,
) -> int:
    """Bring dead letters back, `seqs` of them or all (at most 10,000); return how many.

    With `dry_run` nothing changes. The caller holds the head.
    """
    chosen = None if seqs is None else list(seqs)
    given = within.named(mailbox_id=mailbox_id, seqs=chosen, wanted=REDRIVE_RECORDS)
    return await number(conn, SQL["count_dead_letters" if dry_run else "redrive"], given)
