"""Mutations of single mailboxes: all heads of the batch first, in id order, then each call."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from relay_common.combiner import Answer
from relay_common.db import AsyncConnection
from relay_common.errors import MailboxDeleted, RelayError
from relay_common.idempotency import Call, Operation

from relay_mailbox.store import mailboxes
from relay_mailbox.store.mailboxes import Mailbox, Tenancy


class OfOwner(Protocol):
    """What is given for a mutation of one mailbox."""

    @property
    def owner(self) -> str:
        """Whose mailbox."""
        ...


GivenT = TypeVar("GivenT", bound=OfOwner)
Change = Callable[[AsyncConnection, Mailbox, Call[GivenT]], Awaitable[Answer | RelayError]]


def on_own_mailbox(change: Change[GivenT]) -> Operation[GivenT]:
    """Make `change` an operation: it gets the mailbox with its head held, created on first use.

    A deleted mailbox answers MailboxDeleted.
    """

    async def operation(
        conn: AsyncConnection, calls: Sequence[Call[GivenT]]
    ) -> list[Answer | RelayError]:
        within = Tenancy.of(calls[0].caller)
        boxes = await mailboxes.lock(conn, within, {c.given.owner for c in calls})
        answers: list[Answer | RelayError] = []
        for call in calls:
            box = boxes[call.given.owner]
            deleted = box.state == "deleted"
            answers.append(MailboxDeleted() if deleted else await change(conn, box, call))
        return answers

    return operation
