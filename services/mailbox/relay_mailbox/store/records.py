"""Records as readers get them: pages of the stream."""

from dataclasses import dataclass

from relay_common import queries
from relay_common.db import AsyncConnection

from relay_mailbox.domain.cursor import Stream
from relay_mailbox.domain.record import Record
from relay_mailbox.store.mailboxes import MailboxState, Tenancy

PAGE_BYTES = 4 << 20
SQL = queries.load("relay_mailbox", "record")


@dataclass(frozen=True, slots=True)
class Page:
    """Records after a position, with the state and position of the same snapshot."""

    state: MailboxState
    stream: Stream
    records: list[Record]


async def read_page(
    conn: AsyncConnection, within: Tenancy, owner: str, *, since: int, limit: int
) -> Page | None:
    """Return up to `limit` records after `since`, and where the stream stands; None for no mailbox.

    One statement, so one snapshot: what is at or below its head and retained is in the page.
    """
    given = within.named(owner=owner, since=since, limit=limit, max_bytes=PAGE_BYTES)
    found = await (await conn.execute(SQL["read_page"], given, binary=True)).fetchall()
    if not found:
        return None
    state, epoch, head, oldest = found[0][:4]
    records = [Record(owner, *row[4:]) for row in found if row[5] is not None]
    return Page(state, Stream(epoch, oldest, head), records)
