"""Reply sessions and replies: one transaction decides, and its answer is synchronous."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

import orjson
from relay_common.combiner import Answer, answer
from relay_common.db import AsyncConnection
from relay_common.errors import RelayError, ResponderIsWaiter, ResponderNotListed, WaitpointNotFound
from relay_common.idempotency import Call
from relay_common.ids import encode_id, new_id
from relay_common.limits import REPLY_SESSION_SECONDS
from relay_common.wire import rfc3339

from relay_matcher.domain.reply import CLOSED, Identity, Reply, Target
from relay_matcher.operations import lifecycle
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.operations.ruling import Rulings, rule, store_rulings
from relay_matcher.store import closing, replying

SESSION_LASTS = timedelta(seconds=REPLY_SESSION_SECONDS.default)


@dataclass(frozen=True, slots=True)
class OpenSession:
    """For which waitpoint, and as whom, a reply session is opened."""

    waitpoint_id: UUID
    identity: Identity


@dataclass(frozen=True, slots=True)
class GivenReply:
    """A reply to a waitpoint by its id."""

    waitpoint_id: UUID
    reply: Reply


async def open_sessions(
    plumbing: Plumbing, conn: AsyncConnection, calls: Sequence[Call[OpenSession]]
) -> list[Answer | RelayError]:
    """Open reply sessions (spec, Invariants 2): short-lived, never longer than the deadline.

    Per call 201 with the session; or waitpoint_not_found, responder_is_waiter,
    responder_not_listed, or the state that keeps it from accepting replies.
    """
    wanted = [
        replying.Wanted(c.given.waitpoint_id, c.caller, c.given.identity.responder) for c in calls
    ]
    locking = await replying.lock_targets(conn, wanted)
    reading = await closing.read_clock(conn)
    targets, rulings = await locking.result(), Rulings(await reading.result())
    sessions: list[replying.NewSession] = []
    answers: list[Answer | RelayError] = []
    for place, call in enumerate(calls):
        target = targets.get(place)
        if target is not None:
            rulings.meet(plumbing, target)
        refused = refusal(target, call.given.identity)
        if target is None or refused is not None:
            answers.append(refused or WaitpointNotFound())
            continue
        session = session_of(target, call.given.identity, rulings.at)
        sessions.append(session)
        answers.append(answer(201, shown(session)))
    await store_rulings(conn, plumbing, rulings)
    await replying.insert_sessions(conn, sessions, rulings.at)
    return answers


def refusal(target: Target | None, identity: Identity) -> RelayError | None:
    """Return why `identity` may open no reply session, None when it may."""
    if target is None:
        return WaitpointNotFound()
    if identity.responder == target.waitpoint.waiter:
        return ResponderIsWaiter()
    if not target.listed:
        return ResponderNotListed()
    closed = CLOSED.get(target.state)
    return closed() if closed else None


def session_of(target: Target, identity: Identity, at: datetime) -> replying.NewSession:
    """Return a new session of `identity` for `target`."""
    return replying.NewSession(
        new_id(),
        target.waitpoint.id,
        identity.responder,
        identity.channel,
        identity.evidence_level,
        target.subject_digest or "",
        min(at + SESSION_LASTS, target.waitpoint.expires_at),
    )


def shown(session: replying.NewSession) -> dict[str, str]:
    """Return a session as the API shows it."""
    return {
        "reply_session": encode_id("rs_", session.id.bytes),
        "subject_digest": session.subject_digest,
        "expires_at": rfc3339(session.expires_at),
    }


async def accept_replies(
    plumbing: Plumbing, conn: AsyncConnection, calls: Sequence[Call[GivenReply]]
) -> list[Answer | RelayError]:
    """Judge replies in the open transaction of `conn` (spec, Invariants).

    Per call 200 with the resolved waitpoint; or the refusal, which is recorded and therefore
    returned, not raised. Of several replies to one waitpoint the first valid one wins.
    """
    wanted = [
        replying.Wanted(c.given.waitpoint_id, c.caller, c.given.reply.identity.responder)
        for c in calls
    ]
    locking = await replying.lock_targets(conn, wanted)
    reading = await closing.read_clock(conn)
    ids = [c.given.reply.session for c in calls if c.given.reply.session is not None]
    finding = await replying.sessions(conn, ids)
    targets, rulings = await locking.result(), Rulings(await reading.result())
    sessions = await finding.result()
    answers: list[Answer | RelayError] = []
    for place, call in enumerate(calls):
        target = targets.get(place)
        if target is None:
            answers.append(WaitpointNotFound())
            continue
        reply = call.given.reply
        session = None if reply.session is None else sessions.get(reply.session)
        error = rule(plumbing, rulings, target, reply, session)
        answers.append(error or resolved(target, reply, rulings.at))
    await store_rulings(conn, plumbing, rulings)
    return answers


def resolved(target: Target, reply: Reply, at: datetime) -> Answer:
    """Return the waitpoint that `reply` has resolved."""
    waitpoint = target.waitpoint
    head = lifecycle.closed_head(waitpoint, "resolved", at)
    value = orjson.dumps(reply.value)
    body = head + lifecycle.resolution_of(waitpoint, reply, value, at) + b"}"
    return Answer(200, body, lifecycle.JSON_TYPE)
