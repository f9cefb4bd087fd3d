"""Early replies: by match key, before or after their waitpoint opens (design D19)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from uuid import UUID

from relay_common.combiner import Answer, answer
from relay_common.db import AsyncConnection
from relay_common.errors import (
    AccessReferenceInvalid,
    Json,
    LimitExceeded,
    RelayError,
    ResponderIsWaiter,
)
from relay_common.idempotency import Call
from relay_common.ids import encode_id, new_id
from relay_common.limits import HELD_REPLIES
from relay_common.match_key import MatchKey
from relay_common.outbox import OutMessage
from relay_common.wire import rfc3339

from relay_matcher.domain.reply import Reply, Target, judge
from relay_matcher.domain.waitpoint import ACTIVE_STATES, Opening
from relay_matcher.operations import lifecycle
from relay_matcher.operations.look_back import retention
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.operations.replying import resolved, session_of
from relay_matcher.operations.ruling import Rulings, store_rulings
from relay_matcher.store import closing, opening, replying


@dataclass(frozen=True, slots=True)
class EarlyReply:
    """A reply by match key."""

    where: replying.ByKey
    reply: Reply


@dataclass(slots=True)
class Early:
    """What a batch of early replies comes to, besides its rulings; `counts` is what is held."""

    counts: dict[tuple[str, MatchKey], int]
    sessions: list[replying.NewSession] = field(default_factory=list[replying.NewSession])
    held: list[replying.NewHeld] = field(default_factory=list[replying.NewHeld])


async def accept_early_replies(
    plumbing: Plumbing, conn: AsyncConnection, calls: Sequence[Call[EarlyReply]]
) -> list[Answer | RelayError]:
    """Judge or hold replies by match key in the open transaction of `conn`.

    Per call 200 with the waitpoint it resolved, 202 when it is held, or its refusal. Who may not
    see a waitpoint is answered, and held, as if it were not there (design D6, D19).
    """
    wheres = [call.given.where for call in calls]
    await opening.lock_match_keys(conn, [where.key_hash for where in wheres])
    setting = await opening.read_settings(conn)
    locking = await replying.lock_targets_by_key(conn, wheres)
    reading = await closing.read_clock(conn)
    counting = await replying.count_held(conn, wheres, HELD_REPLIES.default)
    targets, rulings = await locking.result(), Rulings(await reading.result())
    early = Early(await counting.result())
    ends = rulings.at + retention(await setting.result())
    answers = [
        decide(plumbing, rulings, early, call, targets.get(place), ends)
        for place, call in enumerate(calls)
    ]
    await replying.insert_sessions(conn, early.sessions, rulings.at)
    await replying.hold_replies(conn, early.held, rulings.at, ends)
    rulings.messages += [held_message(plumbing, one, ends) for one in early.held]
    await store_rulings(conn, plumbing, rulings)
    return answers


def decide(
    plumbing: Plumbing,
    rulings: Rulings,
    early: Early,
    call: Call[EarlyReply],
    target: Target | None,
    ends: datetime,
) -> Answer | RelayError:
    """Judge one reply against what is there, or hold it until `ends`."""
    reply = call.given.reply
    if target is not None:
        rulings.meet(plumbing, target)
        if target.state in ACTIVE_STATES or target.subject_digest == reply.subject_digest:
            return decided(plumbing, rulings, early, reply, target)
    if reply.identity.responder == call.given.where.waiter:
        return ResponderIsWaiter()
    if reply.disproved:
        return AccessReferenceInvalid()
    return hold(early, call.given, rulings.at, ends)


def decided(
    plumbing: Plumbing, rulings: Rulings, early: Early, reply: Reply, target: Target
) -> Answer | RelayError:
    """Judge one reply as by id."""
    error = judge(reply, target, None, rulings.at)
    if error is not None:
        rulings.reject(plumbing, target, reply, error)
        return error
    session = session_of(target, reply.identity, rulings.at)
    early.sessions.append(session)
    shown = resolved(target, reply, rulings.at)
    rulings.accept(plumbing, target, reply, session.id, None)
    return shown


def hold(early: Early, given: EarlyReply, at: datetime, ends: datetime) -> Answer | RelayError:
    """Hold one reply, if there is room; holding creates the reply session of its identity."""
    place = (given.where.waiter, given.where.key)
    early.counts[place] += 1
    if early.counts[place] > HELD_REPLIES.default:
        return LimitExceeded(limit=HELD_REPLIES.hit(early.counts[place]))
    identity = given.reply.identity
    session = replying.NewSession(
        new_id(),
        None,
        identity.responder,
        identity.channel,
        identity.evidence_level,
        given.reply.subject_digest,
        ends,
    )
    held = replying.NewHeld(new_id(), given.where, given.reply, session.id)
    early.sessions.append(session)
    early.held.append(held)
    shown: dict[str, Json] = {
        "held": True,
        "id": encode_id("hr_", held.id.bytes),
        "held_at": rfc3339(at),
        "expires_at": rfc3339(ends),
    }
    return answer(202, shown)


def held_message(plumbing: Plumbing, held: replying.NewHeld, ends: datetime) -> OutMessage:
    """Return the record that shows a held reply to the waiter, without its value."""
    where = held.where
    shown: dict[str, Json] = {
        "id": encode_id("hr_", held.id.bytes),
        "event_type": where.key.event_type,
        "correlation_key": where.key.correlation_key,
        "responder": held.reply.identity.responder,
        "channel": held.reply.identity.channel,
        "subject_digest": held.reply.subject_digest,
        "expires_at": rfc3339(ends),
    }
    announcer = plumbing.announcer
    return lifecycle.held_reply(announcer, where.waiter, where.key, held.id.bytes, shown)


async def run_held(
    conn: AsyncConnection,
    plumbing: Plumbing,
    opened: Sequence[tuple[Opening, Target]],
    rulings: Rulings,
) -> dict[UUID, Answer]:
    """Run the replies held for waitpoints that open now through all rules, oldest first.

    The first valid one resolves; every other loses its value and is recorded as rejected. Returns
    the answers of the openings that were resolved.
    """
    holding = await replying.held_replies(conn, [one for one, _ in opened], rulings.at)
    answers: dict[UUID, Answer] = {}
    outcomes: dict[UUID, str] = {}
    bound: dict[UUID, UUID] = {}
    for place, replies in (await holding.result()).items():
        target = opened[place][1]
        for identifier, reply in replies:
            rulings.meet(plumbing, target)
            listed = reply.identity.responder in opened[place][0].responders
            judged = replace(target, listed=listed)
            error = judge(replace(reply, session=None), judged, None, rulings.at)
            outcomes[identifier] = "taken" if error is None else "rejected"
            if error is not None or reply.session is None:
                refused = error or ResponderIsWaiter()
                rulings.reject(plumbing, target, reply, refused, identifier)
                continue
            bound[reply.session] = target.waitpoint.id
            found = resolved(target, reply, rulings.at)
            answers[target.waitpoint.id] = Answer(201, found.body, found.headers)
            rulings.accept(plumbing, target, reply, reply.session, identifier)
    await replying.settle_held_replies(conn, outcomes)
    await replying.bind_sessions(conn, bound)
    return answers
