"""The request box, accepted and blocked senders (spec, First contact)."""

from dataclasses import dataclass

from relay_common.combiner import Answer
from relay_common.cursors import Cursors
from relay_common.db import AsyncConnection, Pool, tenant_transaction
from relay_common.errors import CursorInvalid, RelayError
from relay_common.idempotency import Call
from relay_common.tokens import Caller
from relay_common.wire import rfc3339

from relay_mailbox.operations.dead_letters import ListGiven
from relay_mailbox.operations.read import look_into
from relay_mailbox.operations.rendering import rendered
from relay_mailbox.store import contacts
from relay_mailbox.store.contacts import Requesting
from relay_mailbox.store.mailboxes import Mailbox, Tenancy


@dataclass(frozen=True, slots=True)
class SenderGiven:
    """A sender, as the owner sees it; `wanted` is false where something is taken back."""

    owner: str
    sender: str
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class SubscribeGiven:
    """Whether the request box wakes its owner."""

    owner: str
    wanted: bool


async def list_requests(pool: Pool, caller: Caller, given: ListGiven, cursors: Cursors) -> Answer:
    """Answer the senders who wait in the request box, by name. Raises CursorInvalid,
    MailboxNotFound, MailboxDeleted."""
    within = Tenancy.of(caller)
    scope = (caller.tenant, caller.environment, "requests", given.owner)
    after = last_sender(cursors, scope, given.cursor)
    async with tenant_transaction(pool, caller.tenant, caller.environment) as conn:
        await look_into(conn, caller, given.owner)
        found = await contacts.list_requests(
            conn, within, given.owner, after=after, limit=given.limit
        )
    more = cursors.write(scope, [found[-1].sender]) if len(found) == given.limit else None
    return rendered(200, {"items": [request_view(one) for one in found], "next_cursor": more})


def last_sender(cursors: Cursors, scope: tuple[str, ...], cursor: str | None) -> str:
    """Return the sender that `cursor` names, the empty text without one. Raises CursorInvalid."""
    if cursor is None:
        return ""
    match cursors.read(scope, cursor):
        case [str(sender)]:
            return sender
        case _:
            raise CursorInvalid


def request_view(one: Requesting) -> dict[str, object]:
    """Return a sender in the request box as its owner sees it."""
    return {
        "sender": one.sender,
        "relationship": "unknown",
        "records": one.records,
        "first_seq": one.first_seq,
        "last_seq": one.last_seq,
        "last_at": rfc3339(one.last_at),
    }


async def accept_sender(
    conn: AsyncConnection, box: Mailbox, call: Call[SenderGiven]
) -> Answer | RelayError:
    """Let a sender out of the request box, what waits and what comes.

    The records keep `relationship: unknown`: Access records relationships, Relay does not.
    """
    sender = call.given.sender
    freed = await contacts.accept_sender(conn, Tenancy.of(call.caller), box.id, sender)
    return rendered(200, {"sender": sender, "accepted": freed})


async def change_block(
    conn: AsyncConnection, box: Mailbox, call: Call[SenderGiven]
) -> Answer | RelayError:
    """Block a sender or take the block away; the sender is not told (spec, First contact)."""
    change = contacts.block_sender if call.given.wanted else contacts.unblock_sender
    await change(conn, Tenancy.of(call.caller), box.id, call.given.sender)
    return rendered(200, {"sender": call.given.sender, "blocked": call.given.wanted})


async def subscribe_requests(
    conn: AsyncConnection, box: Mailbox, call: Call[SubscribeGiven]
) -> Answer | RelayError:
    """Let the request box wake its owner, or no longer."""
    wanted = call.given.wanted
    await contacts.subscribe_requests(conn, Tenancy.of(call.caller), box.id, subscribed=wanted)
    return rendered(200, {"subscribed": wanted})
