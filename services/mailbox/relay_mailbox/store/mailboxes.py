"""Mailboxes: who owns them, their state, where their streams stand."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, LiteralString, TypeAlias

from psycopg.rows import TupleRow
from relay_common import queries
from relay_common.db import AsyncConnection
from relay_common.tokens import Caller

from relay_mailbox.domain.cursor import Stream

SQL = queries.load("relay_mailbox", "mailbox")

MailboxState: TypeAlias = Literal["active", "suspended", "deleted"]


@dataclass(frozen=True, slots=True)
class Mailbox:
    """One owner's mailbox and where its stream stands."""

    owner: str
    id: int
    state: MailboxState
    stream: Stream


@dataclass(frozen=True, slots=True)
class Counts:
    """Records by delivery state."""

    available: int
    leased: int
    acked: int
    dead_lettered: int
    held: int


@dataclass(frozen=True, slots=True)
class Tenancy:
    """The tenant and environment of a transaction."""

    tenant: str
    environment: str

    @classmethod
    def of(cls, caller: Caller) -> "Tenancy":
        """Return where `caller` belongs."""
        return cls(caller.tenant, caller.environment)

    def named(self, **values: object) -> dict[str, object]:
        """Return `values` together with the tenant and environment, as query parameters."""
        return {"tenant": self.tenant, "environment": self.environment, **values}


async def find(
    conn: AsyncConnection, within: Tenancy, owners: Collection[str]
) -> Mapping[str, Mailbox]:
    """Return the mailboxes of `owners` that exist, by owner."""
    return by_owner(await rows(conn, SQL["find_mailboxes"], within, owners))


async def lock(
    conn: AsyncConnection, within: Tenancy, owners: Collection[str]
) -> Mapping[str, Mailbox]:
    """Hold the heads of `owners` to the end of the transaction, in id order; return them.

    A mailbox that does not exist yet is created: this is its first use (spec, Mailbox: Owner).
    """
    found = await rows(conn, SQL["lock_mailboxes"], within, owners)
    if len(found) < len(set(owners)):
        await create(conn, within, owners)
        found = await rows(conn, SQL["lock_mailboxes"], within, owners)
    return by_owner(found)


async def find_or_create(
    conn: AsyncConnection, within: Tenancy, owners: Collection[str]
) -> Mapping[str, Mailbox]:
    """Return the mailboxes of `owners`, created where this is their first use."""
    found = await find(conn, within, owners)
    if len(found) < len(set(owners)):
        await create(conn, within, owners)
        found = await find(conn, within, owners)
    return found


async def create(conn: AsyncConnection, within: Tenancy, owners: Collection[str]) -> None:
    """Create those mailboxes of `owners` that do not exist yet."""
    await conn.execute(SQL["create_mailboxes"], within.named(owners=list(owners)))


async def describe(
    conn: AsyncConnection, within: Tenancy, owner: str
) -> tuple[MailboxState, Stream, Counts] | None:
    """Return state, position and counts of one snapshot; None for an owner without a mailbox."""
    found = await conn.execute(SQL["describe_mailbox"], within.named(owner=owner))
    row = await found.fetchone()
    if row is None:
        return None
    _, state, epoch, head, oldest, *counts = row
    return state, Stream(epoch, oldest, head), Counts(*counts)


async def rows(
    conn: AsyncConnection, statement: LiteralString, within: Tenancy, owners: Collection[str]
) -> Sequence[TupleRow]:
    """Return the rows of `statement` for `owners`."""
    found = await conn.execute(statement, within.named(owners=list(owners)))
    return await found.fetchall()


def by_owner(found: Sequence[TupleRow]) -> Mapping[str, Mailbox]:
    """Return the mailboxes in rows of find_mailboxes or lock_mailboxes, by owner."""
    return {row[0]: Mailbox(row[0], row[1], row[2], Stream(*row[3:])) for row in found}


async def number(
    conn: AsyncConnection, statement: LiteralString, values: Mapping[str, object]
) -> int:
    """Return the number that `statement` answers. Raises LookupError when it answers nothing."""
    row = await (await conn.execute(statement, values)).fetchone()
    if row is None:
        raise LookupError("expected one row, found none")
    return row[0]
