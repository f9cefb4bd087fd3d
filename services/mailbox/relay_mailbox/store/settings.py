"""What a tenant chose, and the state an operator gave a mailbox."""

from dataclasses import dataclass

from relay_common import queries
from relay_common.db import AsyncConnection

from relay_mailbox.store.mailboxes import MailboxState, Tenancy

SQL = queries.load("relay_mailbox", "setting")


@dataclass(frozen=True, slots=True)
class Chosen:
    """A tenant's settings; None takes the default."""

    lease_seconds: int | None = None
    redeliveries: int | None = None
    retention_seconds: int | None = None
    retained_records: int | None = None


async def read_settings(conn: AsyncConnection, within: Tenancy) -> Chosen:
    """Return what the tenant chose."""
    row = await (await conn.execute(SQL["read_settings"], within.named())).fetchone()
    return Chosen() if row is None else Chosen(*row)


async def write_settings(conn: AsyncConnection, within: Tenancy, chosen: Chosen) -> None:
    """Replace what the tenant chose."""
    given = within.named(
        lease_seconds=chosen.lease_seconds,
        max_redeliveries=chosen.redeliveries,
        retention_seconds=chosen.retention_seconds,
        max_records=chosen.retained_records,
    )
    await conn.execute(SQL["write_settings"], given)


async def set_state(
    conn: AsyncConnection, within: Tenancy, mailbox_id: int, state: MailboxState
) -> None:
    """Change the state of a mailbox whose head is held."""
    await conn.execute(SQL["set_state"], within.named(mailbox_id=mailbox_id, state=state))
