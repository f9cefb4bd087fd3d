"""What the routes work with."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from relay_common.combiner import Answer, Combiner
from relay_common.cursors import Cursors
from relay_common.db import AsyncConnection, Pool, tenant_transaction
from relay_common.errors import RelayError
from relay_common.idempotency import Attempt, Call, done_before, mutation

from relay_matcher.access import Access
from relay_matcher.domain.waitpoint import Opening
from relay_matcher.operations.cancelling import Cancelling, cancel_waitpoints
from relay_matcher.operations.early_reply import EarlyReply, accept_early_replies
from relay_matcher.operations.heartbeat import record_heartbeats
from relay_matcher.operations.opening import open_waitpoints
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.operations.replying import (
    GivenReply,
    OpenSession,
    accept_replies,
    open_sessions,
)
from relay_matcher.operations.settings import Chosen, replace_settings
from relay_matcher.store.constraints import error_of

GivenT = TypeVar("GivenT")


def nothing() -> None:
    """Rouse nobody: this process has no publisher."""


@dataclass(frozen=True, slots=True)
class Desk:
    """The pool, the plumbing, the cursors, and one combiner for each mutating operation."""

    pool: Pool
    plumbing: Plumbing
    cursors: Cursors
    access: Access
    wake: Callable[[], None]
    opens: Combiner[Call[Opening]]
    cancels: Combiner[Call[Cancelling]]
    heartbeats: Combiner[Call[UUID]]
    sessions: Combiner[Call[OpenSession]]
    replies: Combiner[Call[GivenReply]]
    early_replies: Combiner[Call[EarlyReply]]
    settings: Combiner[Call[Chosen]]

    async def submit(self, combiner: Combiner[Call[GivenT]], call: Call[GivenT]) -> Answer:
        """Return the answer to a mutating call, committed; the publisher is roused."""
        found = await combiner.submit(call.caller.tenant, call.caller.environment, call)
        self.wake()
        return found

    async def done_before(self, attempt: Attempt) -> Answer | None:
        """Return the stored answer of a repeat: it does not need Access again (design D20)."""
        async with tenant_transaction(self.pool, attempt.tenant, attempt.environment) as conn:
            return await done_before(conn, attempt)


Operate = Callable[
    [Plumbing, AsyncConnection, Sequence[Call[GivenT]]],
    Awaitable[Sequence[Answer | RelayError]],
]


def create_desk(
    pool: Pool,
    plumbing: Plumbing,
    cursors: Cursors,
    access: Access,
    wake: Callable[[], None] = nothing,
) -> Desk:
    """Return the desk of this process; `wake` rouses the publisher after a commit."""

    def combined(operate: Operate[GivenT]) -> Combiner[Call[GivenT]]:
        async def operation(
            conn: AsyncConnection, calls: Sequence[Call[GivenT]]
        ) -> Sequence[Answer | RelayError]:
            return await operate(plumbing, conn, calls)

        return Combiner(pool, mutation(operation, plumbing.seed, error_of))

    return Desk(
        pool,
        plumbing,
        cursors,
        access,
        wake,
        opens=combined(open_waitpoints),
        cancels=combined(cancel_waitpoints),
        heartbeats=combined(record_heartbeats),
        sessions=combined(open_sessions),
        replies=combined(accept_replies),
        early_replies=combined(accept_early_replies),
        settings=combined(replace_settings),
    )
