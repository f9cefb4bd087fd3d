"""Hints: one wakes at once, those of the next second become one (spec, Wake-up hints; ADR 14)."""

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from relay_common.avro import Codec
from relay_common.outbox import unpack
from relay_mailbox import sweeper

AGENT = "agent:planner"
STRANGER = "agent:stranger"
pytestmark = pytest.mark.spec("MB-HINT")


@pytest.fixture
def hinted(streams, clock):
    """Takes the owners whose hints the outbox holds, after those that are due were announced."""
    clock.freeze()

    def take() -> list[str]:
        sweeper.announce_hints(streams.appending, streams.conn)
        rows = streams.conn.execute(
            "with gone as (delete from outbox where topic = 'relay.hints' returning id, payload)"
            " select payload from gone order by id"
        ).fetchall()
        values = [value for row in rows for _, value, _ in unpack(row[0])]
        return [Codec().decode(value)[1]["owner"] for value in values]

    return take


def test_the_first_record_wakes_at_once_and_a_burst_becomes_one_more_hint(streams, hinted, clock):
    streams.fill(1)
    assert hinted() == [AGENT]
    for _ in range(5):
        clock.shift(timedelta(milliseconds=100))
        streams.fill(3)
        assert hinted() == []
    clock.shift(timedelta(milliseconds=500))
    assert hinted() == [AGENT]
    clock.shift(timedelta(seconds=5))
    assert hinted() == []


async def test_what_a_lost_hint_spoke_of_still_waits(streams, hinted, reader, clock):
    streams.fill(2)
    streams.conn.execute("delete from outbox")
    clock.shift(timedelta(hours=1))
    assert hinted() == [], "nobody repeats it"
    assert [record["seq"] for record in (await reader.lease(10))["records"]] == [1, 2]


def test_an_append_after_the_second_wakes_itself_and_leaves_nothing_due(streams, hinted, clock):
    streams.fill(1)
    streams.fill(1)
    assert hinted() == [AGENT]
    clock.shift(timedelta(milliseconds=1001))
    streams.fill(1)
    assert hinted() == [AGENT]
    clock.shift(timedelta(seconds=2))
    assert hinted() == []


def test_each_owner_has_a_second_of_its_own(streams, hinted):
    streams.fill(1)
    streams.fill(1, "agent:other")
    streams.fill(1)
    assert sorted(hinted()) == ["agent:other", AGENT]


@pytest.mark.parametrize("seed", range(5))
def test_a_hint_follows_every_record_within_a_second_and_two_are_a_second_apart(
    streams, hinted, clock, seed
):
    rng = random.Random(seed)
    now, unhinted, last = 0, None, None
    for _ in range(60):
        if rng.random() < 0.5:
            streams.fill(rng.randint(1, 3))
            unhinted = now if unhinted is None else unhinted
        else:
            step = rng.choice([10, 200, 700])
            clock.shift(timedelta(milliseconds=step))
            now += step
        if found := hinted():
            assert len(found) == 1
            assert last is None or now - last >= 1000
            unhinted, last = None, now
        assert unhinted is None or now - unhinted < 1000


def test_a_clock_that_goes_back_silences_nobody(streams, hinted, clock):
    streams.fill(1)
    assert hinted() == [AGENT]
    clock.shift(timedelta(hours=-1))
    streams.fill(1)
    assert hinted() == [AGENT]


async def test_what_was_dead_and_comes_back_wakes_its_owner(
    streams, hinted, reader, operator, clock
):
    """Whoever redrives need not be the one who reads."""
    await operator.send("PUT", "/v1/settings", {"redeliveries": 0})
    streams.fill(1)
    await reader.lease(1, 30)
    clock.shift(timedelta(seconds=31))
    notice = await reader.lease(1)
    await reader.ack(notice)
    assert hinted() == [AGENT, AGENT], "the record, and the notice of its death"
    path = f"{AGENT}/dead-letters/redrive"
    await operator.send("POST", path, {"all": True, "dry_run": True})
    assert hinted() == []
    await operator.send("POST", path, {"all": True})
    assert hinted() == [AGENT]
    await operator.send("POST", path, {"all": True})
    assert hinted() == []


async def test_a_dead_record_appended_again_wakes_its_owner(
    streams, hinted, reader, operator, clock, database
):
    await operator.send("PUT", "/v1/settings", {"redeliveries": 0})
    streams.fill(1)
    await reader.lease(1, 30)
    clock.shift(timedelta(seconds=31))
    await reader.lease(1)
    hinted()
    database.owner.execute("update mailbox.mailbox set oldest = head + 1, low_water = head + 1")
    await operator.send("POST", f"{AGENT}/dead-letters/redrive", {"all": True})
    assert hinted() == [AGENT]


async def test_who_is_let_in_wakes_the_owner_and_who_waits_in_the_box_does_not(
    streams, hinted, reader, new_record
):
    streams.append(new_record(sender=STRANGER, relationship="unknown"))
    assert hinted() == []
    await reader.send("POST", "me/requests/agent:nobody/accept")
    assert hinted() == []
    await reader.send("POST", f"me/requests/{STRANGER}/accept")
    assert hinted() == [AGENT]


async def test_a_subscription_to_a_request_box_that_holds_something_wakes(
    streams, hinted, reader, new_record
):
    await reader.send("PUT", "me/requests/subscription")
    assert hinted() == []
    await reader.send("DELETE", "me/requests/subscription")
    streams.append(new_record(sender=STRANGER, relationship="unknown"))
    await reader.send("PUT", "me/requests/subscription")
    assert hinted() == [AGENT]


async def test_a_deleted_mailbox_is_hinted_at_when_it_is_back(streams, hinted, operator):
    streams.fill(1)
    streams.fill(1)
    assert hinted() == [AGENT]
    await operator.send("PUT", f"{AGENT}/state", {"state": "deleted"})
    streams.fill(1)
    assert hinted() == []
    await operator.send("PUT", f"{AGENT}/state", {"state": "active"})
    assert hinted() == [AGENT]
    await operator.send("PUT", f"{AGENT}/state", {"state": "active"})
    assert hinted() == []


def test_two_sweepers_at_once_announce_each_hint_once(streams, hinted, new_record, database, clock):
    owners = [f"agent:{n}" for n in range(300)]
    for _ in range(2):
        streams.append(*(new_record(owner) for owner in owners))
    hinted()
    clock.shift(timedelta(seconds=2))
    streams.conn.execute("update mailbox set hint_due_at = relay.now()")
    conns = [database.connect("relay_mailbox_stream") for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda c: sweeper.announce_hints(streams.appending, c), conns))
    assert sum(count["hints_announced"] for count in counts) == 300
    assert sorted(hinted()) == sorted(owners)
