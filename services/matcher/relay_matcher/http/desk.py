"""What the routes work with."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from relay_common.combiner import Answer, Combiner
from relay_common.cursors import Cursors
from relay_common.db import Pool
from relay_common.idempotency import Call, Operation, mutation

from relay_matcher.domain.waitpoint import Opening
from relay_matcher.operations.cancelling import Cancelling, cancel_waitpoints
from relay_matcher.operations.opening import open_waitpoints
from relay_matcher.operations.plumbing import Plumbing

GivenT = TypeVar("GivenT")


def nothing() -> None:
    """Rouse nobody: this process has no publisher."""


@dataclass(frozen=True, slots=True)
class Desk:
    """The pool, the plumbing, the cursors, and one combiner for each mutating operation."""

    pool: Pool
    plumbing: Plumbing
    cursors: Cursors
    opens: Combiner[Call[Opening]]
    cancels: Combiner[Call[Cancelling]]
    wake: Callable[[], None]

    async def submit(self, combiner: Combiner[Call[GivenT]], call: Call[GivenT]) -> Answer:
        """Return the answer to a mutating call, committed; the publisher is roused."""
        found = await combiner.submit(call.caller.tenant, call.caller.environment, call)
        self.wake()
        return found


def create_desk(
    pool: Pool, plumbing: Plumbing, cursors: Cursors, wake: Callable[[], None] = nothing
) -> Desk:
    """Return the desk of this process; `wake` rouses the publisher after a commit."""
    opens: Operation[Opening] = functools.partial(open_waitpoints, plumbing)
    cancels: Operation[Cancelling] = functools.partial(cancel_waitpoints, plumbing)
    return Desk(
        pool,
        plumbing,
        cursors,
        Combiner(pool, mutation(opens, plumbing.seed)),
        Combiner(pool, mutation(cancels, plumbing.seed)),
        wake,
    )
