"""Opening and arriving commute, however they race (design D4; cases W1, W3)."""

import asyncio
import threading
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from relay_common.combiner import Answer
from relay_common.idempotency import Attempt, Call
from relay_common.ids import new_id
from relay_common.match_key import MatchKey
from relay_common.tokens import Caller
from relay_matcher.domain.waitpoint import Opening

PAIRS = 2_000
AT_ONCE = 4  # keys that one barrier releases: the machine's cores are fewer anyway
TENANT, ENVIRONMENT = "acme", "test"
BROKEN = """
select count(*) from matcher.waitpoint w where w.state <> 'resolved' or w.event_id is null
"""
LEFT_OVER = """
select count(*) from matcher.event e
where not exists (
  select from matcher.waitpoint w where w.key_hash = e.key_hash and w.event_id = e.event_id)
"""


def call_of(matcher: Any, waiter: str, key: str) -> Call[Opening]:
    """Return the call that opens an event waitpoint, as the HTTP layer makes it."""
    match_key = MatchKey(TENANT, ENVIRONMENT, "order.paid", key)
    caller = Caller(waiter, TENANT, ENVIRONMENT, frozenset(), "test", "test")
    attempt = Attempt(TENANT, ENVIRONMENT, waiter, "POST /v1/waitpoints", uuid.uuid4().hex, b"")
    expires_at = datetime.now(UTC) + timedelta(hours=1)  # noqa: TID251 - a client
    given = Opening(
        new_id(),
        match_key,
        match_key.hash(matcher.plumbing.seed),
        waiter,
        "event",
        expires_at,
        {"kind": "event"},
    )
    return Call(caller, attempt, given)


async def race(matcher: Any, rounds: int, keys: int, waiters: int) -> None:
    """Release openings and one event per key together, `rounds` times, from two threads."""
    barrier = threading.Barrier(2, timeout=30)

    def deliver() -> None:
        for n in range(rounds):
            values = [matcher.value(f"k{n}.{key}") for key in range(keys)]
            barrier.wait()
            matcher.deliver(*values)

    deliverer = threading.Thread(target=deliver, daemon=True)
    deliverer.start()
    for n in range(rounds):
        calls = [
            call_of(matcher, f"agent:{w}", f"k{n}.{key}")
            for key in range(keys)
            for w in range(waiters)
        ]
        barrier.wait()  # this thread has nothing else to do meanwhile
        answers: list[Answer] = await asyncio.gather(
            *(matcher.desk.opens.submit(TENANT, ENVIRONMENT, call) for call in calls)
        )
        assert {answer.status for answer in answers} == {201}
    await asyncio.to_thread(deliverer.join, 60)


def outcomes(matcher: Any) -> dict[str, int]:
    """Return how many waitpoints are not resolved exactly once, and events wanted but held."""
    return {"broken": matcher.one(BROKEN), "held": matcher.one(LEFT_OVER)}


@pytest.mark.spec("WP-EARLY-OPEN")
async def test_every_waitpoint_resolves_once_whatever_comes_first(matcher: Any) -> None:
    await race(matcher, PAIRS // AT_ONCE, AT_ONCE, 1)
    assert matcher.one("select count(*) from matcher.waitpoint") == PAIRS
    assert outcomes(matcher) == {"broken": 0, "held": 0}
    resolved = [name for name, _ in matcher.lifecycle() if name == "waitpoint.resolved"]
    assert len(resolved) == PAIRS
    early = matcher.one(
        "select count(*) from matcher.waitpoint where created_at > event_received_at"
    )
    assert 0 < early < PAIRS, "the race went both ways"


@pytest.mark.spec("WP-FAN-OUT")
async def test_fifty_waiters_on_one_key_all_resolve(matcher: Any) -> None:
    """W3: also those that open while the event is being matched."""
    await race(matcher, 40, 1, 50)
    assert matcher.one("select count(*) from matcher.waitpoint") == 40 * 50
    assert outcomes(matcher) == {"broken": 0, "held": 0}


@pytest.mark.usefixtures("no_key_lock")
async def test_without_the_key_lock_waiters_are_left_behind(matcher: Any) -> None:
    """The lock is what holds the rule: switched off, the same race breaks it."""
    for _ in range(20):
        await race(matcher, 50, AT_ONCE, 1)
        if outcomes(matcher)["broken"]:
            break
        matcher.database.owner.execute("truncate matcher.waitpoint, matcher.event cascade")
    assert outcomes(matcher)["broken"] > 0
