"""Two at once on one waitpoint: one winner, the loser told and recorded (design D5, D6, D8)."""

import asyncio
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import orjson
import pytest
from relay_common.combiner import Answer
from relay_common.idempotency import Attempt, Call
from relay_common.ids import decode_id, new_id
from relay_common.match_key import MatchKey
from relay_common.tokens import Caller
from relay_matcher.domain.reply import Acceptable, Identity, Reply
from relay_matcher.domain.waitpoint import Opening
from relay_matcher.operations import sweeping
from relay_matcher.operations.cancelling import Cancelling
from relay_matcher.operations.replying import GivenReply, OpenSession

ROUNDS = 1_000
AT_ONCE = 20
DESKS = 2
TENANT, ENVIRONMENT = "acme", "test"
ACCEPTABLE = Acceptable({"type": "boolean"}, None)
ANN, BOB = "subscriber:ann", "subscriber:bob"


def call_of(who: str, given: Any, scopes: Sequence[str] = ()) -> Call[Any]:
    """Return a call of `who` under a key of its own."""
    caller = Caller(who, TENANT, ENVIRONMENT, frozenset(scopes), "test", "test")
    attempt = Attempt(TENANT, ENVIRONMENT, who, "race", uuid.uuid4().hex, b"")
    return Call(caller, attempt, given)


def question(matcher: Any, expires_at: datetime, **given: Any) -> Opening:
    """Return a question of agent:a to ann and bob."""
    key = MatchKey(TENANT, ENVIRONMENT, "asked", given.pop("key", uuid.uuid4().hex))
    return Opening(
        **{
            "id": new_id(),
            "key": key,
            "key_hash": key.hash(matcher.plumbing.seed),
            "waiter": "agent:a",
            "kind": "question",
            "expires_at": expires_at,
            "fields": {"kind": "question", "response_schema": {"type": "boolean"}},
            "responders": (ANN, BOB),
            "subject_digest": "sha-256:x",
            "schema_digest": ACCEPTABLE.digest(),
            **given,
        }
    )


async def all_of(desk: Any, combiner: Any, calls: Sequence[Call[Any]]) -> list[Answer]:
    """Submit calls together and return their answers."""
    return await asyncio.gather(*(combiner.submit(TENANT, ENVIRONMENT, call) for call in calls))


async def asked(
    matcher: Any, desk: Any, expires_at: datetime, **given: Any
) -> tuple[list[Opening], dict[str, list[Call[Any]]]]:
    """Open questions and a session of each responder; return them with the replies to race."""
    openings = [question(matcher, expires_at, **given) for _ in range(AT_ONCE)]
    opened = await all_of(desk, desk.opens, [call_of("agent:a", one) for one in openings])
    assert {answer.status for answer in opened} == {201}
    replies: dict[str, list[Call[Any]]] = {}
    for who in (ANN, BOB):
        identity = Identity(who, "inbox", "relay_session")
        wanted = [call_of(who, OpenSession(one.id, identity)) for one in openings]
        started = await all_of(desk, desk.sessions, wanted)
        replies[who] = [
            call_of(who, GivenReply(one.id, reply_in(identity, answer)))
            for one, answer in zip(openings, started, strict=True)
        ]
    return openings, replies


def reply_in(identity: Identity, answer: Answer) -> Reply:
    """Return a valid reply in the session that `answer` opened."""
    session = decode_id("rs_", orjson.loads(answer.body)["reply_session"], 16)
    assert session is not None
    return Reply(identity, "sha-256:x", "response", True, uuid.UUID(bytes=session))


def later(matcher: Any, seconds: float = 600) -> datetime:
    """Return a deadline by the database's clock."""
    return matcher.one("select relay.now()") + timedelta(seconds=seconds)


def codes(answers: Sequence[Answer]) -> Counter[str]:
    """Return how often each outcome came: `ok` or the code of the problem."""
    return Counter(
        "ok" if answer.status < 300 else orjson.loads(answer.body)["code"] for answer in answers
    )


def announced_once(matcher: Any, openings: int) -> Counter[str]:
    """Return how often each lifecycle event came; each revision of each waitpoint came once."""
    seen = [
        (m.record["waitpoint_id"], m.record["revision"], m.record["type"])
        for m in matcher.announced("relay.waitpoints")
    ]
    assert len({(waitpoint, revision) for waitpoint, revision, _ in seen}) == len(seen)
    counts = Counter(name for _, _, name in seen)
    assert counts["waitpoint.created"] == openings
    return counts


@pytest.mark.spec("WP-INV-4")
async def test_reply_against_reply(matcher: Any, desks: Any) -> None:
    outcome: Counter[str] = Counter()
    for _ in range(ROUNDS // AT_ONCE):
        _, replies = await asked(matcher, desks[0], later(matcher))
        answers = await asyncio.gather(
            all_of(desks[0], desks[0].replies, replies[ANN]),
            all_of(desks[1], desks[1].replies, replies[BOB]),
        )
        outcome += codes([*answers[0], *answers[1]])
    assert outcome == {"ok": ROUNDS, "waitpoint_resolved": ROUNDS}
    assert matcher.one("select count(*) from matcher.rejection") == ROUNDS
    counts = announced_once(matcher, ROUNDS)
    assert counts["waitpoint.resolved"] == counts["waitpoint.response_rejected"] == ROUNDS


async def test_cancel_against_reply(matcher: Any, desks: Any) -> None:
    replied: Counter[str] = Counter()
    cancelled: Counter[str] = Counter()
    for _ in range(ROUNDS // AT_ONCE):
        openings, replies = await asked(matcher, desks[0], later(matcher))
        cancels = [call_of("agent:a", Cancelling(one.id, None)) for one in openings]
        answers = await asyncio.gather(
            all_of(desks[0], desks[0].replies, replies[ANN]),
            all_of(desks[1], desks[1].cancels, cancels),
        )
        replied += codes(answers[0])
        cancelled += codes(answers[1])
    assert replied["ok"] + cancelled["ok"] == ROUNDS, "one winner each"
    assert replied["waitpoint_cancelled"] == cancelled["ok"]
    assert cancelled["waitpoint_closed"] == replied["ok"]
    counts = announced_once(matcher, ROUNDS)
    assert counts["waitpoint.resolved"] == replied["ok"]
    assert counts["waitpoint.cancelled"] == cancelled["ok"]
    assert matcher.one("select count(*) from matcher.rejection") == cancelled["ok"]


@pytest.mark.spec("WP-INV-3")
async def test_reply_against_expiry(matcher: Any, desks: Any, clock: Any) -> None:
    """W21: the clock passes the deadline while replies are judged; the sweeper runs beside them."""
    outcome: Counter[str] = Counter()

    def pass_the_deadline(head_start: int) -> None:
        for _ in range(head_start):
            matcher.one("select 1")
        clock.shift(timedelta(seconds=600))
        sweeping.expire_due(matcher.stream, matcher.plumbing.announcer, 2)

    for n in range(ROUNDS // AT_ONCE):
        _, replies = await asked(matcher, desks[0], later(matcher, 600))
        half = AT_ONCE // 2
        early, late, _ = await asyncio.gather(
            all_of(desks[0], desks[0].replies, replies[ANN][:half]),
            all_of(desks[1], desks[1].replies, replies[ANN][half:]),
            asyncio.to_thread(pass_the_deadline, 12 * (n % 8)),
        )
        outcome += codes([*early, *late])
    assert set(outcome) <= {"ok", "waitpoint_expired"}
    assert outcome.total() == ROUNDS
    counts = announced_once(matcher, ROUNDS)
    assert counts["waitpoint.resolved"] == outcome["ok"]
    assert counts["waitpoint.expired"] == outcome["waitpoint_expired"]
    assert counts["waitpoint.response_rejected"] == outcome["waitpoint_expired"]
    assert 0 < outcome["ok"] < ROUNDS, "the race went both ways"
    late_ones = "select count(*) from matcher.waitpoint where responded_at >= expires_at"
    assert matcher.one(late_ones) == 0


async def test_heartbeat_against_reply_on_a_stalled_waitpoint(matcher: Any, desks: Any) -> None:
    for _ in range(ROUNDS // AT_ONCE):
        beat = {"heartbeat_interval": timedelta(seconds=3600)}
        openings, replies = await asked(matcher, desks[0], later(matcher), **beat)
        ids = [one.id for one in openings]
        matcher.database.owner.execute(
            "update matcher.waitpoint set heartbeat_due = relay.now() where id = any(%s)", (ids,)
        )
        stalled = sweeping.stall_silent(matcher.stream, matcher.plumbing.announcer, 2)["stalled"]
        assert stalled == AT_ONCE
        beats = [call_of("agent:a", one.id) for one in openings]
        answers = await asyncio.gather(
            all_of(desks[0], desks[0].replies, replies[ANN]),
            all_of(desks[1], desks[1].heartbeats, beats),
        )
        assert codes(answers[0]) == {"ok": AT_ONCE}, "a reply counts, stalled or open"
        assert set(codes(answers[1])) <= {"ok", "waitpoint_resolved"}
    counts = announced_once(matcher, ROUNDS)
    assert counts["waitpoint.resolved"] == counts["waitpoint.stalled"] == ROUNDS
    reopened = matcher.one("select count(*) from matcher.waitpoint where activation = 2")
    assert counts["waitpoint.reopened"] == reopened


@pytest.mark.spec("WP-ONE-ACTIVE")
async def test_open_against_open_on_one_key(matcher: Any, desks: Any) -> None:
    """Openings of a tenant meet at its counter, and a unique index stands behind that: this stays
    green without the lock of the key. What needs the lock is in test_open_against_event and
    test_open_against_early_reply, each of which also shows what happens without it.
    """
    for n in range(ROUNDS // AT_ONCE):
        calls = [
            [
                call_of("agent:a", question(matcher, later(matcher), key=f"{n}.{k}"))
                for k in range(AT_ONCE)
            ]
            for _ in desks
        ]
        answers = await asyncio.gather(
            *(all_of(desk, desk.opens, these) for desk, these in zip(desks, calls, strict=True))
        )
        for pair in zip(*answers, strict=True):
            assert codes(pair) == {"ok": 1, "waitpoint_already_active": 1}
            won, lost = sorted((orjson.loads(one.body) for one in pair), key=lambda b: "code" in b)
            assert lost["id"] == won["id"]
    assert matcher.one("select count(*) from matcher.waitpoint") == ROUNDS
    assert announced_once(matcher, ROUNDS) == {"waitpoint.created": ROUNDS}
    counted = matcher.one("select open_count from matcher.open_counter where waiter = ''")
    assert counted == ROUNDS
