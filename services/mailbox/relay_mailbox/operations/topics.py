"""Subscriptions of mailboxes to Relay topics."""

from collections.abc import Sequence
from dataclasses import dataclass

from relay_common.combiner import Answer
from relay_common.db import AsyncConnection
from relay_common.errors import MailboxDeleted, RelayError
from relay_common.idempotency import Call

from relay_mailbox.operations.rendering import rendered
from relay_mailbox.store import mailboxes, topics
from relay_mailbox.store.mailboxes import Tenancy


@dataclass(frozen=True, slots=True)
class SubscriptionGiven:
    """Whether `owner` wants the messages of `topic`."""

    owner: str
    topic: str
    wanted: bool


async def subscribe(
    conn: AsyncConnection, calls: Sequence[Call[SubscriptionGiven]]
) -> list[Answer | RelayError]:
    """Subscribe mailboxes to topics or end that; the last call for a pair counts."""
    within = Tenancy.of(calls[0].caller)
    boxes = await mailboxes.find_or_create(conn, within, {c.given.owner for c in calls})
    given = [c.given for c in calls if boxes[c.given.owner].state != "deleted"]
    last = {(one.topic, one.owner): one.wanted for one in given}
    for wanted in (True, False):
        pairs = [pair for pair, stands in last.items() if stands == wanted]
        if pairs:
            await topics.subscribe(conn, within, pairs, wanted=wanted)
    return [
        MailboxDeleted()
        if boxes[c.given.owner].state == "deleted"
        else rendered(200, {"topic": c.given.topic, "subscribed": c.given.wanted})
        for c in calls
    ]
