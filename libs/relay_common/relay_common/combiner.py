"""The combiner: concurrent calls of one kind share one set-based transaction (design §3).

Calls wait per (tenant, environment) while a batch of theirs runs; then all that wait go together.
So a lone call starts at once, and under load the number of transactions does not grow with the
number of callers. A batch that fails is redone one by one, so that no caller pays for another.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import orjson
import psycopg

from relay_common.db import AsyncConnection, Pool, tenant_transaction
from relay_common.errors import (
    InsufficientScope,
    Json,
    Overloaded,
    RelayError,
    StoreUnavailable,
    Unauthorized,
)
from relay_common.problems import problem
from relay_common.telemetry import histogram

CallT = TypeVar("CallT")
CallT_contra = TypeVar("CallT_contra", contravariant=True)

MAX_BATCH = 256
MAX_WAITING = 4096
# Of the event loop before a batch: a request that has arrived is read, parsed and submitted.
TURNS = 3
REDONE_TOGETHER = 4  # connections that redoing one by one may hold at a time
# A batch that lost against another transaction says nothing about its calls: each gets its own try.
LOST_A_LOCK = (
    psycopg.errors.DeadlockDetected,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.SerializationFailure,
)
Group = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer as a value: it can be stored, replayed, and rendered after the commit."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def answer(status: int, body: Json, headers: Mapping[str, str] | None = None) -> Answer:
    """Return `body` as a JSON answer."""
    return Answer(
        status, orjson.dumps(body), {"content-type": "application/json", **(headers or {})}
    )


def refusal(error: RelayError) -> Answer:
    """Return `error` as a problem answer (RFC 9457)."""
    headers = {"content-type": "application/problem+json"}
    if error.retry_after is not None:
        headers["retry-after"] = str(error.retry_after)
    if isinstance(error, Unauthorized):
        headers["www-authenticate"] = f'Bearer error="{error.code}"'
    if isinstance(error, InsufficientScope):
        scope = error.extra.get("scope", "")
        headers["www-authenticate"] = f'Bearer error="{error.code}", scope="{scope}"'
    return Answer(error.status, orjson.dumps(problem(error)), headers)


class Run(Protocol[CallT_contra]):
    """Answers the calls of one batch in one transaction that the combiner owns."""

    async def __call__(
        self, conn: AsyncConnection, calls: Sequence[CallT_contra], *, alone: bool
    ) -> Sequence[Answer]:
        """Return one answer per call, in order.

        Whatever is raised rolls the batch back; with `alone` there is one call, and what is raised
        reaches its caller.
        """
        ...


@dataclass(slots=True)
class Waiting(Generic[CallT]):
    """A call and the future its caller waits on."""

    call: CallT
    answer: "asyncio.Future[Answer]"

    def settle(self, answer: Answer) -> None:
        """Give the answer, unless the caller has gone."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def fail(self, error: Exception) -> None:
        """Give the error, unless the caller has gone."""
        if not self.answer.done():
            self.answer.set_exception(error)


class Combiner(Generic[CallT]):
    """Puts concurrent calls of one kind into one transaction per (tenant, environment)."""

    def __init__(self, pool: Pool, run: Run[CallT], kind: str = "call") -> None:
        """Answer calls by `run` in transactions on `pool`; `kind` is their name in the metrics."""
        self.pool = pool
        self.run = run
        self.sizes = histogram("relay_combiner_batch_calls").labels(kind)
        self.waiting: dict[Group, deque[Waiting[CallT]]] = {}
        self.drains: set[asyncio.Task[None]] = set()

    async def submit(self, tenant: str, environment: str, call: CallT) -> Answer:
        """Return the answer to `call`, which may share its transaction with others of the tenant.

        A caller that is cancelled stops waiting; its call is still carried out, and the others of
        its batch notice nothing. Raises Overloaded when too many wait, StoreUnavailable, or what
        `run` raised for this call alone.
        """
        group = (tenant, environment)
        queue = self.waiting.get(group)
        if queue is None:
            queue = self.waiting[group] = deque()
            self.start(group, queue)
        if len(queue) >= MAX_WAITING:
            raise Overloaded
        one = Waiting(call, asyncio.get_running_loop().create_future())
        queue.append(one)
        return await one.answer

    def start(self, group: Group, queue: "deque[Waiting[CallT]]") -> None:
        """Start the task that empties `queue`; it belongs to no caller, so none can cancel it."""
        task = asyncio.create_task(self.drain(group, queue))
        self.drains.add(task)
        task.add_done_callback(self.drains.discard)

    async def drain(self, group: Group, queue: "deque[Waiting[CallT]]") -> None:
        """Answer batch after batch until nobody waits."""
        try:
            while queue:
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                size = min(len(queue), MAX_BATCH)
                self.sizes.observe(size)
                await self.answer_batch(group, [queue.popleft() for _ in range(size)])
        finally:
            del self.waiting[group]
            for one in queue:
                one.fail(StoreUnavailable())

    async def answer_batch(self, group: Group, batch: Sequence[Waiting[CallT]]) -> None:
        """Answer `batch` in one transaction; when that fails, each call in its own."""
        try:
            answers = await self.transact(group, [one.call for one in batch], alone=False)
        except Exception as error:
            if isinstance(error, StoreUnavailable) and not isinstance(error.__cause__, LOST_A_LOCK):
                for one in batch:
                    one.fail(error)
                return
            turns = asyncio.Semaphore(REDONE_TOGETHER)
            await asyncio.gather(*(self.answer_alone(group, one, turns) for one in batch))
        else:
            for one, found in zip(batch, answers, strict=True):
                one.settle(found)

    async def answer_alone(
        self, group: Group, one: Waiting[CallT], turns: asyncio.Semaphore
    ) -> None:
        """Answer one call in its own transaction; what it raises is its caller's."""
        try:
            async with turns:
                answers = await self.transact(group, [one.call], alone=True)
            one.settle(answers[0])
        except Exception as error:
            one.fail(error)

    async def transact(
        self, group: Group, calls: Sequence[CallT], *, alone: bool
    ) -> Sequence[Answer]:
        """Run `calls` in one transaction of the tenant and environment in `group`.

        Raises ValueError, and rolls back, unless there is one answer per call.
        """
        async with tenant_transaction(self.pool, *group) as conn:
            answers = await self.run(conn, calls, alone=alone)
            if len(answers) != len(calls):
                raise ValueError(f"expected {len(calls)} answers, found {len(answers)}")
            return answers
