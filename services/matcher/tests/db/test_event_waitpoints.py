"""Event waitpoints end to end: events and openings commute (design D1 to D5)."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import orjson
import pytest
from relay_common.testing.wait import until


@pytest.mark.spec("WP-KIND-EVENT", "WP-MATCH-EXACT", "WP-EVENT-CREATED", "WP-EVENT-RESOLVED")
async def test_event_resolves_the_waitpoint_that_waits(matcher: Any) -> None:
    opened = (await matcher.open("order-1", tags={"shop": "north"})).json()
    assert opened["state"] == "open"
    assert opened["resolution"] is None
    assert matcher.event("order-1", data={"amount": 7}) == []

    found = await matcher.get(opened["id"])
    assert found["state"] == "resolved"
    assert found["resolution"]["event"]["data"] == {"amount": 7}
    assert found["revision"] == 2
    assert found["closed_at"] == found["resolution"]["responded_at"]
    messages = matcher.announced()
    assert [(m.topic, m.record["type"]) for m in messages if m.topic != "relay.topics"] == [
        ("relay.waitpoints", "waitpoint.created"),
        ("relay.mailbox", "waitpoint.created"),
        ("relay.waitpoints", "waitpoint.resolved"),
        ("relay.mailbox", "waitpoint.resolved"),
    ]
    resolved = messages[-1]
    assert resolved.record["message_id"] == messages[-2].record["message_id"]
    assert resolved.record["owner"] == "agent:a"
    assert resolved.body["waitpoint"] == found
    assert resolved.headers["ce_type"] == b"waitpoint.resolved"


MOVED = "update matcher.waitpoint set revision = revision + 1"
CLOSED = "update matcher.waitpoint set state = 'cancelled', closed_at = relay.now()"


@pytest.mark.parametrize(("meanwhile", "state"), [(MOVED, "resolved"), (CLOSED, "cancelled")])
async def test_waitpoint_that_moves_before_it_is_locked_is_looked_for_again(
    matcher: Any, meanwhile: str, state: str
) -> None:
    opened = (await matcher.open("order-1")).json()
    with ThreadPoolExecutor(1) as pool:
        with matcher.database.owner.transaction():
            matcher.database.owner.execute(meanwhile)
            delivered = pool.submit(matcher.event, "order-1")
            until(lambda: matcher.database.waits_for_a_lock(matcher.stream))
        assert delivered.result(10) == []
    assert (await matcher.get(opened["id"]))["state"] == state


@pytest.mark.spec("WP-EARLY-HELD", "WP-EARLY-OPEN")
async def test_early_event_resolves_the_waitpoint_when_it_opens(matcher: Any) -> None:
    matcher.event("order-1", data={"amount": 7})
    opened = await matcher.open("order-1")

    assert opened.status_code == 201
    found = opened.json()
    assert found["state"] == "resolved"
    assert found["resolution"]["event"]["data"] == {"amount": 7}
    assert found == await matcher.get(found["id"])
    messages = matcher.announced()
    assert [(m.topic, m.record["type"]) for m in messages] == [
        ("relay.waitpoints", "waitpoint.created"),
        ("relay.mailbox", "waitpoint.created"),
        ("relay.mailbox", "order.paid"),
        ("relay.waitpoints", "waitpoint.resolved"),
        ("relay.mailbox", "waitpoint.resolved"),
    ]
    early = messages[2].record
    assert (early["kind"], early["state"]) == ("early_event", "acked")
    assert messages[-1].body["waitpoint"] == found


@pytest.mark.spec("WP-FAN-OUT")
async def test_one_event_resolves_all_its_waiters_in_any_order(matcher: Any) -> None:
    first = (await matcher.open("k", who="agent:a")).json()
    second = (await matcher.open("k", who="agent:b")).json()
    matcher.event("k")
    third = (await matcher.open("k", who="agent:c")).json()

    states = [
        (await matcher.get(w["id"], who=who))["resolution"]["event"]["id"]
        for w, who in ((first, "agent:a"), (second, "agent:b"), (third, "agent:c"))
    ]
    assert len(set(states)) == 1
    event = (await matcher.call("GET", f"/v1/events/{states[0]}")).json()
    assert {t["waiter"] for t in event["taken_by"]} == {"agent:a", "agent:b", "agent:c"}
    assert event["disposition"] == "matched"


async def test_reopening_waits_for_the_next_event(matcher: Any) -> None:
    matcher.event("k", data={"n": 1})
    first = (await matcher.open("k")).json()
    assert first["resolution"]["event"]["data"] == {"n": 1}
    second = (await matcher.open("k")).json()
    assert second["state"] == "open"
    matcher.event("k", data={"n": 2})
    assert (await matcher.get(second["id"]))["resolution"]["event"]["data"] == {"n": 2}
    assert (await matcher.open("k")).json()["state"] == "open"


async def test_openings_take_held_events_oldest_first(matcher: Any) -> None:
    matcher.deliver(*[matcher.value("k", data={"n": n}) for n in range(5)])
    taken = [(await matcher.open("k")).json()["resolution"]["event"]["data"]["n"] for _ in range(5)]
    assert taken == [0, 1, 2, 3, 4]


async def test_several_events_of_one_key_in_one_batch_all_count(matcher: Any) -> None:
    """The second event is the one whose condition or recipient fits."""
    wants_two = (await matcher.open("k", who="agent:a", condition="event.data.n == 2")).json()
    wants_any = (await matcher.open("k", who="agent:b")).json()
    addressed = (await matcher.open("k", who="agent:c", condition="event.n >= 2")).json()
    matcher.deliver(
        matcher.value("k", data={"n": 1}),
        matcher.value("k", data={"n": 2}),
        matcher.value("k", data={"n": 3}, recipient="agent:c"),
    )
    takes = [
        (await matcher.get(w["id"], who=who))["resolution"]["event"]["data"]["n"]
        for w, who in ((wants_two, "agent:a"), (wants_any, "agent:b"), (addressed, "agent:c"))
    ]
    assert takes == [2, 1, 2]


@pytest.mark.parametrize("batches", [1, 2])
async def test_repeated_event_changes_nothing(matcher: Any, batches: int) -> None:
    value = matcher.value("k", id="one")
    if batches == 1:
        matcher.deliver(value, value)
    else:
        matcher.deliver(value)
        matcher.deliver(value)
    assert matcher.one("select count(*) from matcher.event") == 1
    assert (await matcher.open("k")).json()["state"] == "resolved"
    assert (await matcher.open("k")).json()["state"] == "open"
    matcher.announced()
    matcher.deliver(value)
    assert matcher.announced() == []


async def test_repeat_beyond_the_slices_is_not_taken_twice(matcher: Any, clock: Any) -> None:
    """The log forgets ids after two slices; the takes do not (design D17)."""
    value = matcher.value("k", id="one")
    matcher.deliver(value)
    assert (await matcher.open("k")).json()["state"] == "resolved"
    clock.shift(timedelta(hours=18))
    again = (await matcher.open("k", expires_at=later(clock))).json()
    other = (await matcher.open("k", who="agent:b", expires_at=later(clock))).json()
    assert (again["state"], other["state"]) == ("open", "resolved")
    matcher.deliver(value, matcher.value("k", id="two", data={"n": 2}))
    assert matcher.one("select count(*) from matcher.event") == 3
    assert (await matcher.get(again["id"]))["resolution"]["event"]["data"] == {"n": 2}


@pytest.mark.spec("WP-EARLY-RETENTION")
async def test_event_past_retention_is_not_taken(matcher: Any, clock: Any) -> None:
    """W23: nothing depends on a sweeper being in time."""
    matcher.event("k", id="old")
    clock.shift(timedelta(days=7, seconds=1))
    assert (await matcher.open("k", expires_at=later(clock))).json()["state"] == "open"
    listed = await matcher.call(
        "GET", "/v1/events", params={"event_type": "order.paid", "correlation_key": "k"}
    )
    assert [e["disposition"] for e in listed.json()["items"]] == ["expired"]


async def test_look_back_can_be_narrowed(matcher: Any, clock: Any) -> None:
    matcher.event("k", data={"n": 1})
    clock.shift(timedelta(minutes=10))
    since = (clock.now() - timedelta(minutes=1)).isoformat()
    assert (await matcher.open("k", accept_events_since=since)).json()["state"] == "open"
    assert (await matcher.open("k", who="agent:b")).json()["state"] == "resolved"


async def test_look_back_begins_no_later_than_the_opening(matcher: Any, clock: Any) -> None:
    """Otherwise an event before it would count when it came after the opening, not when before."""
    clock.freeze()
    matcher.event("k", data={"n": 1})
    ahead = (clock.now() + timedelta(seconds=60)).isoformat()
    opened = await matcher.open("k", accept_events_since=ahead, expires_at=later(clock))
    assert opened.json()["state"] == "open"
    matcher.event("k", data={"n": 2})
    found = await matcher.get(opened.json()["id"])
    assert found["resolution"]["event"]["data"] == {"n": 2}
    ahead = (clock.now() + timedelta(seconds=61)).isoformat()
    refused = await matcher.open("k", accept_events_since=ahead)
    assert (refused.status_code, refused.json()["code"]) == (422, "validation_failed")
    assert refused.json()["errors"][0]["pointer"] == "/accept_events_since"


@pytest.mark.spec("WP-MATCH-NO-WILDCARD", "WP-OBJ-MATCH")
async def test_only_the_exact_tuple_matches(matcher: Any) -> None:
    """W9: live and held, no scope leaks into another."""
    scopes = [("acme", "test"), ("acme", "prod"), ("other", "test")]
    opened = {}
    for tenant, environment in scopes:
        found = await matcher.open("k", tenant=tenant, environment=environment)
        opened[tenant, environment] = found.json()["id"]
    near = [await matcher.open(key) for key in ("K", "k ", "k*", "%")]
    matcher.event("k", tenant="acme", environment="prod")
    for (tenant, environment), identifier in opened.items():
        seen = await matcher.get(identifier, tenant=tenant, environment=environment)
        assert (seen["state"] == "resolved") == ((tenant, environment) == ("acme", "prod"))
    for other in near:
        assert (await matcher.get(other.json()["id"]))["state"] == "open"
    held = await matcher.open("k", tenant="other", environment="prod")
    assert held.json()["state"] == "open"


async def test_hash_collision_does_not_match(matcher: Any) -> None:
    """The index finds by hash, the statement compares the whole key."""
    opened = (await matcher.open("k")).json()
    matcher.database.owner.execute("set session_replication_role = replica")
    matcher.database.owner.execute("update matcher.waitpoint set correlation_key = 'another'")
    matcher.event("k")
    assert matcher.one("select state from matcher.waitpoint") == "open"
    assert opened["state"] == "open"


@pytest.mark.spec("WP-MATCH-UNMATCHED")
async def test_each_event_says_why_it_was_not_taken(matcher: Any, clock: Any) -> None:
    await matcher.open("false", condition="event.data.amount > 100")
    await matcher.open("error", condition="event.data.missing > 100")
    await matcher.open("other")
    await matcher.open("late", expires_at=later(clock, seconds=1))
    clock.shift(timedelta(seconds=2))
    await matcher.open("taken")
    matcher.deliver(
        matcher.value("nobody"),
        matcher.value("false"),
        matcher.value("error"),
        matcher.value("other", recipient="agent:z"),
        matcher.value("late"),
        matcher.value("taken"),
    )
    now = clock.now()
    window = {
        "received_after": (now - timedelta(minutes=1)).isoformat(),
        "received_before": (now + timedelta(minutes=1)).isoformat(),
    }
    listed = (await matcher.call("GET", "/v1/events", params=window)).json()["items"]
    rules = {event["correlation_key"]: event["rule_id"] for event in listed}
    assert rules == {
        "nobody": "no_waitpoint",
        "false": "condition_false",
        "error": "condition_error",
        "other": "recipient_other",
        "late": "deadline_passed",
        "taken": "exact_key",
    }
    reasons = {event["correlation_key"]: event["reason"] for event in listed}
    assert "missing" in reasons["error"]
    unmatched = await matcher.call(
        "GET", "/v1/events", params={**window, "disposition": "unmatched"}
    )
    assert len(unmatched.json()["items"]) == 5


@pytest.mark.spec("WP-EVENT-EXPIRED", "WP-EXPIRY-DEFAULT")
async def test_overdue_waitpoint_is_expired_by_the_event_that_touches_it(
    matcher: Any, clock: Any
) -> None:
    given = {"expires_at": later(clock, seconds=5), "default_response": {"ok": False}}
    opened = (await matcher.open("k", **given)).json()
    clock.shift(timedelta(seconds=5))
    matcher.event("k")
    found = await matcher.get(opened["id"])
    assert (found["state"], found["resolution"], found["revision"]) == ("expired", None, 2)
    expired = matcher.announced("relay.mailbox")[-1]
    assert expired.record["type"] == "waitpoint.expired"
    assert expired.body["default_response"] == {"ok": False}
    assert matcher.expire_due() == 0


@pytest.mark.spec("WP-TIMEOUT-TOTAL")
async def test_sweeper_expires_what_nobody_touches(matcher: Any, clock: Any) -> None:
    for n in range(3):
        await matcher.open(f"k{n}", expires_at=later(clock, seconds=5))
    clock.shift(timedelta(seconds=5))
    shown = await matcher.call("GET", "/v1/waitpoints", params={"state": "expired"})
    assert len(shown.json()["items"]) == 3, "reads show expired from the deadline on"
    matcher.announced()
    assert matcher.expire_due() == 3
    assert matcher.expire_due() == 0
    assert sorted(matcher.lifecycle()) == [("waitpoint.expired", 2)] * 3


async def test_addressed_event_shows_at_once_and_is_superseded(matcher: Any) -> None:
    matcher.event("k", recipient="agent:a")
    held = matcher.announced("relay.mailbox")
    assert [(m.record["kind"], m.record["state"], m.record["owner"]) for m in held] == [
        ("early_event", "held", "agent:a")
    ]
    assert (await matcher.open("k", who="agent:b")).json()["state"] == "open"
    assert (await matcher.open("k", who="agent:a")).json()["state"] == "resolved"
    resolved = [m for m in matcher.announced("relay.mailbox") if m.record["supersedes"]]
    assert [m.record["supersedes"] for m in resolved] == [held[0].record["message_id"]]


async def test_large_data_travel_by_reference(matcher: Any) -> None:
    data = {"text": "x" * 20_000}
    opened = (await matcher.open("k")).json()
    matcher.event("k", data=data)
    event = (await matcher.get(opened["id"]))["resolution"]["event"]
    assert event["dataref"] == {"uri": f"/v1/events/{event['id']}"}
    whole = (await matcher.call("GET", event["dataref"]["uri"])).json()
    assert whole["data"] == data


def later(clock: Any, seconds: float = 3600) -> str:
    """Return a time after the database's clock."""
    return (clock.now() + timedelta(seconds=seconds)).isoformat()


async def test_one_id_under_two_keys_of_a_batch_is_two_events(matcher: Any) -> None:
    """An id re-sent under another key counts as a new event (design D17), with its own data."""
    opened = {key: (await matcher.open(key)).json()["id"] for key in ("a", "b")}
    matcher.deliver(*[matcher.value(key, id="same", data={"key": key}) for key in opened])
    shown = {
        m.record["correlation_key"]: orjson.loads(m.record["body"])["waitpoint"]
        for m in matcher.announced("relay.waitpoints")
        if m.record["type"] == "waitpoint.resolved"
    }
    assert {key: one["resolution"]["event"]["data"]["key"] for key, one in shown.items()} == {
        "a": "a",
        "b": "b",
    }
