"""Reading without side effects: a mailbox, a page of its stream."""

from relay_common.combiner import Answer
from relay_common.db import AsyncConnection, Pool, tenant_transaction
from relay_common.errors import MailboxDeleted, MailboxNotFound
from relay_common.tokens import Caller

from relay_mailbox.domain.cursor import resync_reason
from relay_mailbox.operations.rendering import page_view, rendered, resync, stream_view
from relay_mailbox.store import mailboxes, records
from relay_mailbox.store.mailboxes import MailboxState, Tenancy


async def get_mailbox(pool: Pool, caller: Caller, owner: str) -> Answer:
    """Answer state, position and counts of the mailbox of `owner`.

    The owner's first look creates it. Raises MailboxNotFound, MailboxDeleted.
    """
    within = Tenancy.of(caller)
    async with tenant_transaction(pool, caller.tenant, caller.environment) as conn:
        if owner == caller.sub and not await mailboxes.find(conn, within, [owner]):
            await mailboxes.create(conn, within, [owner])
        found = await mailboxes.describe(conn, within, owner)
    if found is None:
        raise MailboxNotFound
    state, stream, counts = found
    refuse_deleted(caller, owner, state)
    return rendered(
        200,
        {
            "owner": owner,
            "state": state,
            **stream_view(stream),
            "counts": {
                "available": counts.available,
                "leased": counts.leased,
                "acked": counts.acked,
                "dead_lettered": counts.dead_lettered,
                "held": counts.held,
            },
        },
    )


async def read_since(
    pool: Pool, caller: Caller, owner: str, position: tuple[int, int | None], limit: int
) -> Answer:
    """Answer up to `limit` records after `position` (since, epoch), in seq order.

    Nothing changes by it: no delivery is counted. Raises MailboxNotFound, MailboxDeleted, and
    ResyncRequired for a position that cannot be followed: never an empty page instead (spec,
    Mailbox: read order).
    """
    since, epoch = position
    within = Tenancy.of(caller)
    async with tenant_transaction(pool, caller.tenant, caller.environment) as conn:
        page = await records.read_page(conn, within, owner, since=since, limit=limit)
        if page is None and owner == caller.sub:
            await mailboxes.create(conn, within, [owner])
            page = await records.read_page(conn, within, owner, since=since, limit=limit)
    if page is None:
        raise MailboxNotFound
    refuse_deleted(caller, owner, page.state)
    reason = resync_reason(page.stream, since, epoch)
    if reason is not None:
        raise resync(reason, page.stream)
    return rendered(200, page_view(page.stream, page.records, since))


async def look_into(conn: AsyncConnection, caller: Caller, owner: str) -> None:
    """Return when `caller` may look at what lies beside the stream of `owner`.

    Raises MailboxNotFound for somebody else's that does not exist, and MailboxDeleted.
    """
    box = (await mailboxes.find(conn, Tenancy.of(caller), [owner])).get(owner)
    if box is None and owner != caller.sub:
        raise MailboxNotFound
    if box is not None:
        refuse_deleted(caller, owner, box.state)


def refuse_deleted(caller: Caller, owner: str, state: MailboxState) -> None:
    """Raise MailboxDeleted to the owner of a deleted mailbox; an operator may still look."""
    if state == "deleted" and owner == caller.sub and "operator" not in caller.scopes:
        raise MailboxDeleted
