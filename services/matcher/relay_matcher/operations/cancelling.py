"""Cancelling by the waiter or an operator (spec, States)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import orjson
from relay_common.combiner import Answer
from relay_common.db import AsyncConnection
from relay_common.errors import InsufficientScope, RelayError, WaitpointClosed, WaitpointNotFound
from relay_common.idempotency import Call
from relay_common.outbox import OutMessage
from relay_common.tokens import Caller

from relay_matcher.domain.reply import Target
from relay_matcher.domain.waitpoint import Active
from relay_matcher.operations import lifecycle
from relay_matcher.operations.locked import locked, shown
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.operations.ruling import tell_responders
from relay_matcher.store import closing as store
from relay_matcher.store import opening as shared


@dataclass(frozen=True, slots=True)
class Cancelling:
    """Which waitpoint to cancel, and why."""

    id: UUID
    reason: str | None


@dataclass(slots=True)
class Batch:
    """What becomes of a batch of calls: refusals by place, and waitpoints to close."""

    refused: dict[int, RelayError] = field(default_factory=dict[int, RelayError])
    overdue: dict[UUID, Active] = field(default_factory=dict[UUID, Active])
    cancelled: dict[UUID, tuple[Active, str | None]] = field(
        default_factory=dict[UUID, tuple[Active, str | None]]
    )


async def cancel_waitpoints(
    plumbing: Plumbing, conn: AsyncConnection, calls: Sequence[Call[Cancelling]]
) -> list[Answer | RelayError]:
    """Cancel waitpoints in the open transaction of `conn`.

    Per call 200 with the waitpoint, also when it was cancelled already; or waitpoint_not_found,
    insufficient_scope, or waitpoint_closed when it is resolved or expired (api.md).
    """
    found, at = await locked(conn, [(call.given.id, call.caller) for call in calls])
    batch = Batch()
    for place, call in enumerate(calls):
        decide(batch, place, call, found.get(place), at)
    await close(plumbing, conn, batch, at)
    return [
        batch.refused.get(place) or await shown(plumbing, conn, call.given.id, call.caller)
        for place, call in enumerate(calls)
    ]


def decide(
    batch: Batch, place: int, call: Call[Cancelling], found: Target | None, at: datetime
) -> None:
    """Note what becomes of one call."""
    if found is None:
        batch.refused[place] = WaitpointNotFound()
    elif not may_close(call.caller, found.waitpoint):
        batch.refused[place] = InsufficientScope(
            "Expected the waiter or a token with the scope operator, found a responder."
        )
    elif found.state in ("resolved", "expired"):
        batch.refused[place] = closed(found.state)
    elif found.state != "cancelled" and found.waitpoint.expires_at <= at:
        batch.overdue[call.given.id] = found.waitpoint
        batch.refused[place] = closed("expired")
    elif found.state != "cancelled":
        batch.cancelled.setdefault(call.given.id, (found.waitpoint, call.given.reason))


def may_close(caller: Caller, waitpoint: Active) -> bool:
    """Tell whether `caller` is the waiter or an operator (spec, States)."""
    return waitpoint.waiter == caller.sub or "operator" in caller.scopes


def closed(state: str) -> WaitpointClosed:
    """Return the refusal to cancel what is closed otherwise."""
    return WaitpointClosed(f"Expected an active or cancelled waitpoint, found it {state}.")


async def close(plumbing: Plumbing, conn: AsyncConnection, batch: Batch, at: datetime) -> None:
    """Store what was decided, and announce it."""
    overdue = list(batch.overdue.values())
    cancelled = [waitpoint for waitpoint, _ in batch.cancelled.values()]
    await shared.expire_waitpoints(conn, overdue, at)
    await store.cancel(conn, cancelled, at)
    await shared.count_closed(conn, cancelled)
    announcer = plumbing.announcer
    messages: list[OutMessage] = []
    for waitpoint in overdue:
        messages += lifecycle.expired(announcer, waitpoint, at)
    for waitpoint, reason in batch.cancelled.values():
        why = None if reason is None else orjson.dumps(reason)
        messages += lifecycle.cancelled(announcer, waitpoint, at, why)
    messages += await tell_responders(conn, plumbing, [*overdue, *cancelled], at)
    await shared.announce(conn, messages, plumbing.shards)
