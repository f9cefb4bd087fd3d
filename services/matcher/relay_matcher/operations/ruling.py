"""Ruling: replies are judged in order; what each comes to is stored and announced together."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import msgspec.structs
from relay_common.db import AsyncConnection
from relay_common.errors import Json, RelayError
from relay_common.ids import encode_id, new_id
from relay_common.limits import MESSAGES_PER_WAITPOINT
from relay_common.outbox import OutMessage
from relay_common.pending import Pending
from relay_common.wire import rfc3339

from relay_matcher.domain.reply import Reply, Session, Target, judge
from relay_matcher.domain.waitpoint import ACTIVE_STATES, Active
from relay_matcher.operations import lifecycle
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.store import opening as shared
from relay_matcher.store import replying as store


@dataclass(slots=True)
class Rulings:
    """What a batch of replies comes to; `standing` is state and revision of each waitpoint."""

    at: datetime
    standing: dict[UUID, tuple[str, int]] = field(default_factory=dict[UUID, tuple[str, int]])
    overdue: list[Active] = field(default_factory=list[Active])
    accepted: list[tuple[Target, Reply, UUID]] = field(
        default_factory=list[tuple[Target, Reply, UUID]]
    )
    rejected: list[store.NewRejection] = field(default_factory=list[store.NewRejection])
    revisions_before: dict[UUID, int] = field(default_factory=dict[UUID, int])
    revisions: dict[UUID, int] = field(default_factory=dict[UUID, int])
    messages: list[OutMessage] = field(default_factory=list[OutMessage])

    def meet(self, plumbing: Plumbing, target: Target) -> None:
        """Bring `target` up to what the batch has done to it; expire it first when overdue (D5)."""
        waitpoint = target.waitpoint
        if waitpoint.id not in self.standing:
            self.standing[waitpoint.id] = (target.state, waitpoint.revision)
            if target.state in ACTIVE_STATES and waitpoint.expires_at <= self.at:
                self.overdue.append(waitpoint)
                self.messages += lifecycle.expired(plumbing.announcer, waitpoint, self.at)
                self.standing[waitpoint.id] = ("expired", waitpoint.revision + 1)
        target.state, revision = self.standing[waitpoint.id]
        target.waitpoint = msgspec.structs.replace(waitpoint, revision=revision)

    def accept(
        self, plumbing: Plumbing, target: Target, reply: Reply, session: UUID, held: UUID | None
    ) -> None:
        """Note that `reply` resolves `target`."""
        waitpoint = target.waitpoint
        if waitpoint.id in self.revisions:
            self.revisions_before[waitpoint.id] = self.revisions.pop(waitpoint.id)
        self.accepted.append((target, reply, session))
        superseded = None if held is None else lifecycle.held_reply_id(held.bytes)
        self.messages += lifecycle.resolved_by_reply(
            plumbing.announcer, waitpoint, reply, self.at, superseded
        )
        self.standing[waitpoint.id] = ("resolved", waitpoint.revision + 1)
        target.state = "resolved"

    def reject(
        self,
        plumbing: Plumbing,
        target: Target,
        reply: Reply,
        error: RelayError,
        held: UUID | None = None,
    ) -> None:
        """Record why `reply` is refused (design D6), up to the messages a waitpoint may cause."""
        waitpoint = target.waitpoint
        if waitpoint.revision >= MESSAGES_PER_WAITPOINT.default:
            return
        identifier = new_id()
        pointers: list[dict[str, Json]] = [
            {"pointer": one.pointer, "detail": one.detail} for one in error.errors
        ]
        revision = waitpoint.revision + 1
        identity = reply.identity
        self.rejected.append(
            store.NewRejection(
                identifier,
                waitpoint.id,
                error.code,
                identity.responder,
                identity.channel,
                pointers,
                revision,
            )
        )
        shown = rejection_json(
            identifier, waitpoint.id, (error.code, identity.responder, identity.channel), self.at
        )
        superseded = None if held is None else lifecycle.held_reply_id(held.bytes)
        self.messages += lifecycle.rejected(
            plumbing.announcer,
            waitpoint,
            target.state,
            {**shown, **({"pointers": pointers} if pointers else {})},
            self.at,
            superseded,
        )
        self.standing[waitpoint.id] = (target.state, revision)
        self.revisions[waitpoint.id] = revision


def rejection_json(
    identifier: UUID, waitpoint: UUID, what: tuple[str, str, str], at: datetime
) -> dict[str, Json]:
    """Return a rejection as it is shown (api.md); `what` is reason, responder and channel."""
    return {
        "id": encode_id("rj_", identifier.bytes),
        "waitpoint_id": encode_id("wp_", waitpoint.bytes),
        "reason": what[0],
        "responder": what[1],
        "channel": what[2],
        "rejected_at": rfc3339(at),
    }


def rule(
    plumbing: Plumbing, rulings: Rulings, target: Target, reply: Reply, session: Session | None
) -> RelayError | None:
    """Judge one reply by id and note what it comes to; return why it is refused, None if not."""
    rulings.meet(plumbing, target)
    error = judge(reply, target, session, rulings.at)
    if error is None and session is not None:
        rulings.accept(plumbing, target, reply, session.id, None)
    elif error is not None:
        rulings.reject(plumbing, target, reply, error)
    return error


async def store_rulings(conn: AsyncConnection, plumbing: Plumbing, rulings: Rulings) -> None:
    """Store and announce what the replies came to, in the lock order."""
    resolving = await settle(conn, rulings)
    closed = [*rulings.overdue, *(target.waitpoint for target, _, _ in rulings.accepted)]
    closing = await tell_responders(conn, plumbing, closed, rulings.at)
    await resolving.result()
    await shared.announce(conn, [*rulings.messages, *closing], plumbing.shards)


async def settle(conn: AsyncConnection, rulings: Rulings) -> Pending[None]:
    """Store what the replies came to; the result raises when one did not resolve its waitpoint."""
    at = rulings.at
    await shared.expire_waitpoints(conn, rulings.overdue, at)
    await store.raise_revisions(conn, rulings.revisions_before)
    resolving = await store.resolve_by_reply(conn, rulings.accepted, at)
    await store.record_rejections(conn, rulings.rejected, at)
    await store.raise_revisions(conn, rulings.revisions)
    await shared.count_closed(conn, [target.waitpoint for target, _, _ in rulings.accepted])
    return resolving


async def tell_responders(
    conn: AsyncConnection, plumbing: Plumbing, closed: Sequence[Active], at: datetime
) -> list[OutMessage]:
    """Return "no reply needed" for every responder of the waitpoints that closed."""
    asked = [waitpoint for waitpoint in closed if waitpoint.kind != "event"]
    listed = await (await store.responders(conn, [waitpoint.id for waitpoint in asked])).result()
    return [
        message
        for waitpoint in asked
        for message in lifecycle.no_reply_needed(
            plumbing.announcer, waitpoint, listed.get(waitpoint.id, []), at
        )
    ]
