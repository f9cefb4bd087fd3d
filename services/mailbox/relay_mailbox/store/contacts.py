"""Who may reach an owner: the request box, accepted and blocked senders, abuse reports."""

import uuid
from dataclasses import dataclass
from datetime import datetime

from relay_common import queries
from relay_common.db import AsyncConnection

from relay_mailbox.store.mailboxes import Tenancy, number

SQL = queries.load("relay_mailbox", "request")


@dataclass(frozen=True, slots=True)
class Requesting:
    """A sender in the request box and what waits from it."""

    sender: str
    records: int
    first_seq: int
    last_seq: int
    last_at: datetime


@dataclass(frozen=True, slots=True)
class AbuseReport:
    """A reported record; `fresh` when it was not reported before."""

    seq: int
    message_id: uuid.UUID
    sender: str | None
    reported_at: datetime
    fresh: bool


async def list_requests(
    conn: AsyncConnection, within: Tenancy, owner: str, *, after: str, limit: int
) -> list[Requesting]:
    """Return up to `limit` senders in the request box of `owner` with a name above `after`."""
    given = within.named(owner=owner, after=after, limit=limit)
    return [Requesting(*row) async for row in await conn.execute(SQL["list_requests"], given)]


async def accept_sender(
    conn: AsyncConnection, within: Tenancy, mailbox_id: int, sender: str
) -> int:
    """Let `sender` in from now on; return how many waiting records became leasable."""
    given = within.named(mailbox_id=mailbox_id, sender=sender)
    return await number(conn, SQL["accept_sender"], given)


async def block_sender(
    conn: AsyncConnection, within: Tenancy, mailbox_id: int, sender: str
) -> None:
    """Block `sender`; what waits from it leaves the request box."""
    await conn.execute(SQL["block_sender"], within.named(mailbox_id=mailbox_id, sender=sender))


async def unblock_sender(
    conn: AsyncConnection, within: Tenancy, mailbox_id: int, sender: str
) -> None:
    """Take the block away; messages recorded under it keep their label."""
    await conn.execute(SQL["unblock_sender"], within.named(mailbox_id=mailbox_id, sender=sender))


async def subscribe_requests(
    conn: AsyncConnection, within: Tenancy, mailbox_id: int, *, subscribed: bool
) -> None:
    """Let the request box wake its owner and be leased, or no longer."""
    given = within.named(mailbox_id=mailbox_id, subscribed=subscribed)
    row = await (await conn.execute(SQL["subscribe_requests"], given)).fetchone()
    if subscribed and row is not None and row[0] is not None:
        lowered = within.named(mailbox_id=mailbox_id, seq=row[0])
        await conn.execute(SQL["lower_water"], lowered)


async def report_abuse(
    conn: AsyncConnection, within: Tenancy, mailbox_id: int, seq: int, reason: str | None
) -> AbuseReport | None:
    """Keep a report on the message `seq`; None when there is no such message any more."""
    given = within.named(mailbox_id=mailbox_id, seq=seq, reason=reason)
    row = await (await conn.execute(SQL["report_abuse"], given)).fetchone()
    return None if row is None else AbuseReport(*row)
