"""Openings of many callers at a limit: never more open than it says, nobody refused below it."""

import asyncio
import random
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest
from relay_common.combiner import Answer
from relay_common.idempotency import Attempt, Call
from relay_common.ids import decode_id, new_id
from relay_common.match_key import MatchKey
from relay_common.tokens import Caller
from relay_matcher.domain.waitpoint import Opening
from relay_matcher.operations import opening as operation
from relay_matcher.operations import sweeping
from relay_matcher.operations.cancelling import Cancelling

ROUNDS = 60
DESKS = 4
TENANT, ENVIRONMENT = "acme", "test"
WAITERS = ("agent:a", "agent:b", "agent:c")
OF_A_WAITER, OF_THE_TENANT, ON_A_KEY = 4, 10, 6
PER_WAITER, PER_TENANT = "open_waitpoints_per_waiter", "open_waitpoints_per_tenant"
ACTIVE = "select count(*) from matcher.waitpoint where closed_at is null"


@pytest.fixture
def limited(matcher: Any) -> Any:
    """A tenant that may have few waitpoints open."""
    for name, value in ((PER_WAITER, OF_A_WAITER), (PER_TENANT, OF_THE_TENANT)):
        matcher.database.owner.execute(
            "insert into matcher.tenant_setting values (%s, %s, %s, to_jsonb(%s::int))",
            (TENANT, ENVIRONMENT, name, value),
        )
    return matcher


class Opened:
    """What the callers know to be open."""

    def __init__(self, matcher: Any, desks: Sequence[Any]) -> None:
        self.matcher, self.desks = matcher, desks
        self.waiters: dict[uuid.UUID, str] = {}

    def call(self, who: str, given: Any) -> Call[Any]:
        """Return a call of `who` under a key of its own."""
        caller = Caller(who, TENANT, ENVIRONMENT, frozenset(), "test", "test")
        attempt = Attempt(TENANT, ENVIRONMENT, who, "limits", uuid.uuid4().hex, b"")
        return Call(caller, attempt, given)

    async def open(self, desk: Any, waiter: str, key: str = "") -> Answer:
        """Open an event waitpoint, on a match key of its own unless one is named."""
        match = MatchKey(TENANT, ENVIRONMENT, "paid", key or uuid.uuid4().hex)
        opening = Opening(
            id=new_id(),
            key=match,
            key_hash=match.hash(self.matcher.plumbing.seed),
            waiter=waiter,
            kind="event",
            expires_at=self.matcher.one("select relay.now()") + timedelta(hours=1),
            fields={"kind": "event"},
        )
        found = await desk.opens.submit(TENANT, ENVIRONMENT, self.call(waiter, opening))
        if found.status == 201:
            raw = decode_id("wp_", orjson.loads(found.body)["id"], 16)
            self.waiters[uuid.UUID(bytes=raw or b"")] = waiter
        return found

    async def close(self, desk: Any, identifier: uuid.UUID) -> None:
        """Cancel a waitpoint."""
        call = self.call(self.waiters.pop(identifier), Cancelling(identifier, None))
        assert (await desk.cancels.submit(TENANT, ENVIRONMENT, call)).status == 200

    async def crowd(self, chance: random.Random) -> list[tuple[str, Answer]]:
        """Open as many callers as may not all succeed, while some waitpoints close."""
        closing = chance.sample(sorted(self.waiters), min(len(self.waiters), chance.randrange(8)))
        opening = [chance.choice(WAITERS) for _ in range(chance.randrange(1, 16))]
        closes = [self.close(chance.choice(self.desks), one) for one in closing]
        opens = [self.open(chance.choice(self.desks), one) for one in opening]
        answers, *_ = await asyncio.gather(asyncio.gather(*opens), *closes)
        return list(zip(opening, answers, strict=True))


def refusal(answer: Answer) -> dict[str, Any] | None:
    """Return the limit that an answer names, None when it opened something."""
    return None if answer.status == 201 else orjson.loads(answer.body)["limit"]


@pytest.mark.spec("WP-LIMIT-OPEN", "WP-LIMIT-PUBLISHED")
async def test_limits_hold_however_many_open_at_once(limited: Any, desks: Any) -> None:
    chance, opened = random.Random(4), Opened(limited, desks)
    met: set[str] = set()
    for number in range(ROUNDS):
        before = [open_of(limited, waiter) for waiter in (*WAITERS, "")]
        answers = await opened.crowd(chance)
        found = [open_of(limited, waiter) for waiter in (*WAITERS, "")]
        assert max(found[:-1]) <= OF_A_WAITER, (number, found)
        assert found[-1] <= OF_THE_TENANT, (number, found)
        assert found[-1] == len(opened.waiters)
        for waiter, answer in answers:
            limit = refusal(answer)
            if limit is None:
                continue
            met.add(limit["name"])
            most = OF_A_WAITER if limit["name"] == PER_WAITER else OF_THE_TENANT
            assert limit["value"] == most < limit["got"]
            # Whoever was refused had met a full house: with all that was there and all that came.
            place = WAITERS.index(waiter) if limit["name"] == PER_WAITER else -1
            came = sum(refusal(a) is None and (place < 0 or w == waiter) for w, a in answers)
            assert before[place] + came >= most, (number, limit, before, answers)
        await fill(opened, chance)
    assert met == {PER_WAITER, PER_TENANT}


def open_of(matcher: Any, waiter: str) -> int:
    """Return how many are open of a waiter, or of the tenant ('')."""
    return matcher.one(f"{ACTIVE} and %s in (waiter, '')", waiter)


async def fill(opened: Opened, chance: random.Random) -> None:
    """Without a race, all up to the limit is let in, and nothing beyond it; then some close."""
    matcher, (desk, *_) = opened.matcher, opened.desks
    if chance.random() < 0.5:
        sweeping.fold_counters(matcher.stream)
    for waiter in WAITERS:
        room = min(OF_A_WAITER - open_of(matcher, waiter), OF_THE_TENANT - open_of(matcher, ""))
        statuses = [(await opened.open(desk, waiter)).status for _ in range(room + 1)]
        assert statuses == [201] * room + [429], (waiter, room)
    for identifier in chance.sample(sorted(opened.waiters), chance.randrange(OF_THE_TENANT)):
        await opened.close(desk, identifier)


@pytest.mark.spec("WP-LIMIT-PUBLISHED")
async def test_a_match_key_has_room_for_its_number_of_waiters(
    matcher: Any, desks: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(operation.ACTIVE_PER_MATCH_KEY, default=ON_A_KEY)
    monkeypatch.setattr(operation, "ACTIVE_PER_MATCH_KEY", few)
    chance, opened = random.Random(5), Opened(matcher, desks)
    for number in range(ROUNDS):
        here = len(opened.waiters)
        callers = [f"agent:{number}-{one}" for one in range(chance.randrange(1, 16))]
        answers = await asyncio.gather(
            *(opened.open(chance.choice(desks), one, key="shared") for one in callers)
        )
        assert matcher.one(ACTIVE) == len(opened.waiters) == min(here + len(callers), ON_A_KEY)
        limits = [limit for limit in map(refusal, answers) if limit]
        expected = {"name": few.name, "value": ON_A_KEY, "got": ON_A_KEY + 1}
        assert all(limit == expected for limit in limits), limits
        for identifier in chance.sample(
            sorted(opened.waiters), chance.randrange(len(opened.waiters))
        ):
            await opened.close(desks[0], identifier)
