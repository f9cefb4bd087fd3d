"""Heartbeats: the waiter shows that it is alive (spec, Two timeouts; design D7)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import msgspec.structs
from relay_common.combiner import Answer
from relay_common.db import AsyncConnection
from relay_common.errors import InsufficientScope, RelayError, WaitpointNotFound
from relay_common.idempotency import Call

from relay_matcher.domain.reply import CLOSED, Target
from relay_matcher.domain.waitpoint import Active
from relay_matcher.operations import lifecycle
from relay_matcher.operations.locked import locked, shown
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.operations.ruling import tell_responders
from relay_matcher.store import closing as store
from relay_matcher.store import opening as shared


@dataclass(slots=True)
class Beats:
    """What a batch of heartbeats comes to."""

    refused: dict[int, RelayError] = field(default_factory=dict[int, RelayError])
    overdue: dict[UUID, Active] = field(default_factory=dict[UUID, Active])
    alive: dict[UUID, Active] = field(default_factory=dict[UUID, Active])
    stalled: set[UUID] = field(default_factory=set[UUID])


async def record_heartbeats(
    plumbing: Plumbing, conn: AsyncConnection, calls: Sequence[Call[UUID]]
) -> list[Answer | RelayError]:
    """Record heartbeats in the open transaction of `conn`; a stalled waitpoint opens again.

    Per call 200 with the waitpoint, unchanged where it has no heartbeat interval; or
    waitpoint_not_found, insufficient_scope, or the state that ended it.
    """
    found, at = await locked(conn, [(call.given, call.caller) for call in calls])
    beats = Beats()
    for place, call in enumerate(calls):
        decide(beats, place, call, found.get(place), at)
    overdue = list(beats.overdue.values())
    await shared.expire_waitpoints(conn, overdue, at)
    await store.record_heartbeats(conn, list(beats.alive), at)
    messages = [m for w in overdue for m in lifecycle.expired(plumbing.announcer, w, at)]
    for waitpoint in beats.alive.values():
        if waitpoint.id in beats.stalled:
            again = msgspec.structs.replace(
                waitpoint, revision=waitpoint.revision + 1, activation=waitpoint.activation + 1
            )
            messages += lifecycle.reopened(plumbing.announcer, again, at)
    messages += await tell_responders(conn, plumbing, overdue, at)
    await shared.announce(conn, messages, plumbing.shards)
    return [
        beats.refused.get(place) or await shown(plumbing, conn, call.given, call.caller)
        for place, call in enumerate(calls)
    ]


def decide(beats: Beats, place: int, call: Call[UUID], found: Target | None, at: datetime) -> None:
    """Note what becomes of one heartbeat."""
    if found is None:
        beats.refused[place] = WaitpointNotFound()
    elif found.waitpoint.waiter != call.caller.sub:
        beats.refused[place] = InsufficientScope("Expected the waiter itself, found another.")
    elif found.state in CLOSED:
        beats.refused[place] = CLOSED[found.state]()
    elif found.waitpoint.expires_at <= at:
        beats.overdue[call.given] = found.waitpoint
        beats.refused[place] = CLOSED["expired"]()
    else:
        beats.alive[call.given] = found.waitpoint
        if found.state == "stalled":
            beats.stalled.add(call.given)
