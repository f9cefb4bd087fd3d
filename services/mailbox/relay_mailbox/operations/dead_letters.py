"""The dead-letter view, and redriving what died."""

from collections.abc import Sequence
from dataclasses import dataclass

from relay_common.combiner import Answer
from relay_common.cursors import Cursors
from relay_common.db import AsyncConnection, Pool, tenant_transaction
from relay_common.errors import CursorInvalid, MailboxDeleted, MailboxNotFound, RelayError
from relay_common.idempotency import Call
from relay_common.tokens import Caller
from relay_common.wire import rfc3339

from relay_mailbox.operations.read import look_into
from relay_mailbox.operations.rendering import record_view, rendered
from relay_mailbox.store import dead_letters, mailboxes
from relay_mailbox.store.dead_letters import DeadRecord
from relay_mailbox.store.mailboxes import Tenancy


@dataclass(frozen=True, slots=True)
class RedriveGiven:
    """Bring `seqs` back (None: all)."""

    owner: str
    seqs: Sequence[int] | None
    dry_run: bool


@dataclass(frozen=True, slots=True)
class ListGiven:
    """One page of a list: at most `limit` items after `cursor`."""

    owner: str
    limit: int
    cursor: str | None


async def list_dead_letters(
    pool: Pool, caller: Caller, given: ListGiven, cursors: Cursors
) -> Answer:
    """Answer a page of dead letters in seq order. Looking counts no delivery (spec: kept in the
    dead-letter view). Raises MailboxNotFound, MailboxDeleted, CursorInvalid."""
    within = Tenancy.of(caller)
    scope = (caller.tenant, caller.environment, "dead-letters", given.owner)
    after = position(cursors, scope, given.cursor)
    async with tenant_transaction(pool, caller.tenant, caller.environment) as conn:
        await look_into(conn, caller, given.owner)
        found = await dead_letters.list_dead_letters(
            conn, within, given.owner, after=after, limit=given.limit
        )
    more = cursors.write(scope, [found[-1].record.seq]) if found else None
    return rendered(200, {"items": [dead_view(dead) for dead in found], "next_cursor": more})


def position(cursors: Cursors, scope: tuple[str, ...], cursor: str | None) -> int:
    """Return the seq that `cursor` names, 0 without one. Raises CursorInvalid."""
    if cursor is None:
        return 0
    match cursors.read(scope, cursor):
        case [int(seq)]:
            return seq
        case _:
            raise CursorInvalid


def dead_view(dead: DeadRecord) -> dict[str, object]:
    """Return a dead record as the view shows it."""
    return {**record_view(dead.record), "died_at": rfc3339(dead.died_at)}


async def redrive(
    conn: AsyncConnection, calls: Sequence[Call[RedriveGiven]]
) -> list[Answer | RelayError]:
    """Bring dead letters back to be leased; delivery counts start anew. An operator creates no
    mailbox by it."""
    within = Tenancy.of(calls[0].caller)
    known = await mailboxes.find(conn, within, {c.given.owner for c in calls})
    own = {c.caller.sub for c in calls if c.given.owner == c.caller.sub}
    boxes = await mailboxes.lock(conn, within, known.keys() | own)
    answers: list[Answer | RelayError] = []
    for call in calls:
        box, given = boxes.get(call.given.owner), call.given
        if box is None:
            answers.append(MailboxNotFound())
            continue
        if box.state == "deleted":
            answers.append(MailboxDeleted())
            continue
        done = await dead_letters.redrive(conn, within, box.id, given.seqs, dry_run=given.dry_run)
        answers.append(rendered(200, {"redriven": done}))
    return answers
