"""Opening and replying by match key commute, however they race (design D4, D19)."""

import asyncio
import uuid
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from relay_common.combiner import Combiner
from relay_common.idempotency import Attempt, Call
from relay_common.ids import new_id
from relay_common.match_key import MatchKey
from relay_common.tokens import Caller
from relay_matcher.domain.reply import Acceptable, Identity, Reply
from relay_matcher.domain.waitpoint import Opening
from relay_matcher.operations.early_reply import EarlyReply
from relay_matcher.store.replying import ByKey

PAIRS = 1_000
AT_ONCE = 4
DESKS = 2
TENANT, ENVIRONMENT = "acme", "test"
WAITER, ANN = "agent:a", "subscriber:ann"
SCHEMA = {"type": "boolean"}
LEFT_OPEN = "select count(*) from matcher.waitpoint where state <> 'resolved'"
LEFT_HELD = "select count(*) from matcher.held_reply where outcome is null"


def call_of(who: str, given: Any) -> Call[Any]:
    """Return a call of `who` under a key of its own."""
    attempt = Attempt(TENANT, ENVIRONMENT, who, "race", uuid.uuid4().hex, b"")
    return Call(Caller(who, TENANT, ENVIRONMENT, frozenset(), "test", "test"), attempt, given)


def pair(matcher: Any) -> tuple[Call[Opening], Call[EarlyReply]]:
    """Return the opening of a question and a valid reply by its match key."""
    key = MatchKey(TENANT, ENVIRONMENT, "asked", uuid.uuid4().hex)
    key_hash = key.hash(matcher.plumbing.seed)
    asked = Opening(
        id=new_id(),
        key=key,
        key_hash=key_hash,
        waiter=WAITER,
        kind="question",
        expires_at=matcher.one("select relay.now()") + timedelta(hours=1),
        fields={"kind": "question", "response_schema": SCHEMA},
        responders=(ANN,),
        subject_digest="sha-256:x",
        schema_digest=Acceptable(SCHEMA, None).digest(),
    )
    replying = call_of(ANN, None)
    where = ByKey(key, key_hash, WAITER, replying.caller, ANN)
    reply = Reply(Identity(ANN, "inbox", "relay_session"), "sha-256:x", "response", True)
    return call_of(WAITER, asked), Call(replying.caller, replying.attempt, EarlyReply(where, reply))


async def race(matcher: Any, desks: Any, pairs: int) -> Counter[int]:
    """Release openings and replies together; return how often each status answered a reply."""

    async def submit(combiner: Combiner[Any], call: Call[Any]) -> int:
        return (await combiner.submit(TENANT, ENVIRONMENT, call)).status

    replied: Counter[int] = Counter()
    for _ in range(pairs // AT_ONCE):
        calls = [pair(matcher) for _ in range(AT_ONCE)]
        opened, answered = await asyncio.gather(
            asyncio.gather(*(submit(desks[0].opens, one) for one, _ in calls)),
            asyncio.gather(*(submit(desks[1].early_replies, two) for _, two in calls)),
        )
        assert set(opened) == {201}
        replied += Counter(answered)
    return replied


@pytest.mark.spec("WP-EARLY-OPEN")
async def test_every_question_is_resolved_whatever_comes_first(matcher: Any, desks: Any) -> None:
    replied = await race(matcher, desks, PAIRS)
    assert set(replied) == {200, 202}, "the race went both ways"
    assert replied.total() == PAIRS
    assert (matcher.one(LEFT_OPEN), matcher.one(LEFT_HELD)) == (0, 0)


@pytest.mark.usefixtures("no_key_lock")
async def test_without_the_key_lock_questions_are_left_open(matcher: Any, desks: Any) -> None:
    """A reply raises no counter: the lock of the key alone keeps it apart from the opening."""
    for _ in range(20):
        await race(matcher, desks, 200)
        if matcher.one(LEFT_OPEN):
            break
    assert matcher.one(LEFT_OPEN) == matcher.one(LEFT_HELD) > 0
