"""Cursors: how far each reader says it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from relay_common.combiner import Answer
from relay_common.db import AsyncConnection
from relay_common.errors import MailboxDeleted, RelayError
from relay_common.idempotency import Call

from relay_mailbox.domain.cursor import resync_reason
from relay_mailbox.operations.rendering import rendered, resync
from relay_mailbox.store import leases, mailboxes
from relay_mailbox.store.leases import Position
from relay_mailbox.store.mailboxes import Mailbox, Tenancy


@dataclass(frozen=True, slots=True)
class CursorGiven:
    """The last position of `reader`."""

    owner: str
    reader: str
    epoch: int
    seq: int


async def report_cursor(
    conn: AsyncConnection, calls: Sequence[Call[CursorGiven]]
) -> list[Answer | RelayError]:
    """Keep each reader's furthest position; a lower one is ignored and answered with what stands.

    A cursor only moves forward within an epoch; another epoch starts it anew (spec, Mailbox:
    Cursor). A position that cannot be followed is a resync.
    """
    within = Tenancy.of(calls[0].caller)
    boxes = await mailboxes.find_or_create(conn, within, {c.given.owner for c in calls})
    refusals = [refused(call.given, boxes[call.given.owner]) for call in calls]
    reports = [
        position(call.given, boxes)
        for call, refusal in zip(calls, refusals, strict=True)
        if refusal is None
    ]
    stands = await leases.report_cursors(conn, within, reports) if reports else {}
    answers: list[Answer | RelayError] = []
    for call, refusal in zip(calls, refusals, strict=True):
        if refusal is not None:
            answers.append(refusal)
            continue
        now = stands[boxes[call.given.owner].id, call.given.reader]
        answers.append(rendered(200, {"epoch": now.epoch, "seq": now.seq}))
    return answers


def refused(given: CursorGiven, box: Mailbox) -> RelayError | None:
    """Return why a position is not kept, None when it is."""
    if box.state == "deleted":
        return MailboxDeleted()
    reason = resync_reason(box.stream, given.seq, given.epoch)
    return None if reason is None else resync(reason, box.stream)


def position(given: CursorGiven, boxes: Mapping[str, Mailbox]) -> Position:
    """Return what to keep."""
    return Position(boxes[given.owner].id, given.reader, given.epoch, given.seq)
