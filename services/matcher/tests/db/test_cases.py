"""Public faults of systems like Relay, tried here (reference cases W1 to W30)."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from relay_matcher.operations import sweeping

REPLIER = "waitpoints:reply waitpoints:read"


async def ask(matcher: Any, key: str = "q", **given: Any) -> dict[str, Any]:
    """Open a question or review of agent:a to ann."""
    body = {
        "kind": "question",
        "match": {"event_type": "asked", "correlation_key": key},
        "expires_at": (matcher.one("select relay.now()") + timedelta(hours=1)).isoformat(),
        "responders": ["subscriber:ann"],
        "content": {"action": "x"},
        "response_schema": {"type": "integer"},
        **given,
    }
    body = {name: value for name, value in body.items() if value is not None}
    opened = await matcher.call("POST", "/v1/waitpoints", body)
    assert opened.status_code == 201, opened.text
    return opened.json()


async def reply(matcher: Any, opened: dict[str, Any], **given: Any) -> Any:
    """Reply as ann."""
    how = {"who": "subscriber:ann", "scope": REPLIER}
    path = f"/v1/waitpoints/{opened['id']}"
    started = (await matcher.call("POST", f"{path}/reply-sessions", {}, **how)).json()
    body = {
        "reply_session": started.get("reply_session", "rs_none"),
        "subject_digest": opened["subject_digest"],
        **given,
    }
    return await matcher.call("POST", f"{path}/replies", body, **how)


async def test_w6_resolved_comes_after_created(matcher: Any) -> None:
    await reply(matcher, await ask(matcher), response=1)
    order = [m.body["revision"] for m in matcher.announced("relay.mailbox") if "revision" in m.body]
    assert order == [1, 2]


async def test_w7_events_may_come_in_another_order_than_waits(matcher: Any) -> None:
    matcher.event("b")
    matcher.event("a")
    assert (await matcher.open("a")).json()["state"] == "resolved"
    assert (await matcher.open("b")).json()["state"] == "resolved"


async def test_w8_a_retry_after_a_crash_finds_the_first_deadline_and_it_holds(
    matcher: Any, clock: Any
) -> None:
    """The row, its deadline and its announcement commit together; there is no job to lose."""
    given = {"idempotency": "once", "expires_at": after(clock, 600)}
    first = (await matcher.open("k", **given)).json()
    clock.shift(timedelta(seconds=300))
    again = (await matcher.open("k", **{**given, "expires_at": after(clock, 900)})).json()
    assert again["expires_at"] == first["expires_at"]
    clock.shift(timedelta(seconds=300))
    assert matcher.expire_due() == 1


def after(clock: Any, seconds: float) -> str:
    """Return a time after the database's clock."""
    return (clock.now() + timedelta(seconds=seconds)).isoformat()


async def test_w11_a_held_event_serves_every_waiter_as_a_live_one_does(matcher: Any) -> None:
    waiters = ("agent:a", "agent:b")
    matcher.event("held", id="one")
    held = [(await matcher.open("held", who=who)).json() for who in waiters]
    live = [(await matcher.open("live", who=who)).json() for who in waiters]
    matcher.event("live", id="two")
    live = [await matcher.get(w["id"], who=w["waiter"]) for w in live]
    for found in (held, live):
        assert [w["state"] for w in found] == ["resolved", "resolved"]
        assert len({w["resolution"]["event"]["id"] for w in found}) == 1
    assert [set(w) for w in held] == [set(w) for w in live]


async def test_w13_a_reply_to_an_unknown_id_is_one_answer_and_leaves_nothing(matcher: Any) -> None:
    opened = await ask(matcher)
    stranger = {"tenant": "other"}
    asked = [("wp_AAAAAAAAAAAAAAAAAAAAAA", {}), (opened["id"], stranger), ("nonsense", {})]
    bodies = set()
    for identifier, how in asked:
        path = f"/v1/waitpoints/{identifier}"
        given = {"reply_session": "rs_none", "subject_digest": "sha-256:x", "response": 1}
        by = {"who": "subscriber:ann", "scope": REPLIER, **how}
        for action, body in (("reply-sessions", {}), ("replies", given)):
            found = await matcher.call("POST", f"{path}/{action}", body, **by)
            assert found.status_code == 404
            bodies.add(found.content)
    assert len(bodies) == 1
    assert matcher.one("select count(*) from matcher.rejection") == 0
    assert matcher.one("select count(*) from matcher.reply_session") == 0


@pytest.mark.spec("WP-EDGE-OPEN")
async def test_w14_three_reviews_three_outcomes(matcher: Any, clock: Any) -> None:
    review = {"kind": "review", "actions": ["approve", "deny"], "response_schema": None}
    approved, cancelled, expired = [await ask(matcher, key, **review) for key in "abc"]
    assert (await reply(matcher, approved, decision="approve")).status_code == 200
    await matcher.call("POST", f"/v1/waitpoints/{cancelled['id']}/cancel")
    clock.shift(timedelta(hours=1))
    matcher.expire_due()
    found = [await matcher.get(w["id"]) for w in (approved, cancelled, expired)]
    assert [w["state"] for w in found] == ["resolved", "cancelled", "expired"]
    assert [w["resolution"] and w["resolution"]["decision"] for w in found] == [
        "approve",
        None,
        None,
    ]


@pytest.mark.parametrize("condition", ["", "  ", "{}", "[]", "null", "event", "'true'"])
async def test_w16_an_empty_condition_is_never_any_event(matcher_once: Any, condition: str) -> None:
    refused = await matcher_once.open("w16", condition=condition)
    assert (refused.status_code, refused.json()["code"]) == (422, "condition_invalid")


async def test_w16_null_is_no_condition(matcher: Any, clock: Any) -> None:
    """A field that is null is a field left out, as everywhere in a request."""
    body = {
        "kind": "event",
        "match": {"event_type": "order.paid", "correlation_key": "k"},
        "expires_at": after(clock, 60),
        "condition": None,
    }
    opened = (await matcher.call("POST", "/v1/waitpoints", body)).json()
    assert "condition" not in opened
    matcher.event("k")
    assert (await matcher.get(opened["id"]))["state"] == "resolved"


@pytest.mark.spec("WP-OBJ-ID")
async def test_w18_looking_at_a_reply_address_changes_nothing(matcher: Any) -> None:
    opened = await ask(matcher)
    for path in ("replies", "reply-sessions", "cancel", "heartbeat"):
        for method in ("GET", "HEAD", "OPTIONS"):
            for _ in range(2):
                seen = await matcher.call(
                    method, f"/v1/waitpoints/{opened['id']}/{path}", who="subscriber:ann"
                )
                assert seen.status_code == 405
    assert await matcher.get(opened["id"]) == opened


async def test_w24_an_offset_means_what_it_says_when_the_clocks_change(
    matcher: Any, clock: Any
) -> None:
    """Half past two comes twice on that night; the offset tells which."""
    clock.freeze(datetime(2026, 10, 24, 12, tzinfo=UTC))
    summer = await matcher.open("a", expires_at="2026-10-25T02:30:00+02:00")
    winter = await matcher.open("b", expires_at="2026-10-25T02:30:00+01:00")
    assert summer.json()["expires_at"] == "2026-10-25T00:30:00.000000Z"
    assert winter.json()["expires_at"] == "2026-10-25T01:30:00.000000Z"
    clock.freeze(datetime(2026, 10, 25, 0, 30, tzinfo=UTC))
    assert matcher.expire_due() == 1
    assert (await matcher.get(winter.json()["id"]))["state"] == "open"


async def test_w25_fifty_thousand_deadlines_at_once_each_expire_once(
    matcher: Any, clock: Any
) -> None:
    copies = """
    insert into matcher.waitpoint (tenant, environment, id, key_hash, created_at, updated_at,
      expires_at, kind, state, waiter, event_type, correlation_key, opened)
    select tenant, environment, gen_random_uuid(), n, created_at, updated_at, expires_at, kind,
      state, waiter, event_type, 'copy ' || n, opened
    from matcher.waitpoint, generate_series(1, 49999) n
    """
    await matcher.open("k", expires_at=after(clock, 60))
    matcher.database.owner.execute(copies)
    question = await ask(matcher)
    clock.shift(timedelta(seconds=60))
    assert matcher.expire_due() == 50_000
    assert matcher.expire_due() == 0
    assert (await reply(matcher, question, response=1)).status_code == 200
    expired = [m for m in matcher.announced("relay.waitpoints") if "expired" in m.record["type"]]
    assert len(expired) == len({m.record["message_id"] for m in expired}) == 50_000


async def test_w26_a_flapping_heartbeat_stalls_once_a_gap(matcher: Any, clock: Any) -> None:
    """At 0.9, 1.1 and 0.9 of the interval: one gap was too long."""
    opened = await ask(matcher, heartbeat_interval=100)
    clock.freeze()
    for seconds in (90, 110, 90):
        for part in (seconds - 5, 5):  # the sweeper looks in between as well
            clock.shift(timedelta(seconds=part))
            sweeping.stall_silent(matcher.stream, matcher.plumbing.announcer, 2)
        beat = await matcher.call("POST", f"/v1/waitpoints/{opened['id']}/heartbeat")
        assert beat.json()["state"] == "open"
    told = [name for name, _ in matcher.lifecycle()]
    assert told == ["waitpoint.created", "waitpoint.stalled", "waitpoint.reopened"]


@pytest.mark.parametrize(
    ("schema", "value", "verdict"),
    [
        ({"type": "integer"}, True, 422),
        ({"type": "integer"}, 1.0, 200),
        ({"type": "integer"}, 1.5, 422),
        ({"type": "number", "multipleOf": 0.01}, 19.99, 200),
        ({"type": "string", "format": "date-time"}, "tomorrow", 422),
        ({"type": "string", "pattern": "^(a+)+$"}, "a" * 5000 + "b", 422),
    ],
)
async def test_w29_verdicts_of_the_schema(
    matcher_once: Any, schema: Any, value: Any, verdict: int
) -> None:
    key = f"{schema}{str(value)[:20]}"
    opened = await ask(matcher_once, key, response_schema=schema)
    assert (await reply(matcher_once, opened, response=value)).status_code == verdict


@pytest.mark.spec("WP-INV-7")
async def test_state_is_in_the_record_not_in_what_announces_it(matcher: Any, clock: Any) -> None:
    """Dropping every hint, announcement and mailbox changes no state and stops nobody."""
    matcher.event("k")
    by_event = (await matcher.open("k")).json()["id"]
    beats = {"heartbeat_interval": 60}
    opened = {
        name: await ask(matcher, name, **beats) for name in ("quiet", "gone", "over", "asked")
    }
    assert (await reply(matcher, opened["over"], response=1)).status_code == 200
    await matcher.call("POST", f"/v1/waitpoints/{opened['gone']['id']}/cancel")
    clock.shift(timedelta(seconds=61))
    sweeping.stall_silent(matcher.stream, matcher.plumbing.announcer, 2)
    soon = await ask(matcher, "soon", expires_at=after(clock, 1))
    clock.shift(timedelta(seconds=1))
    assert matcher.expire_due() == 1
    await matcher.call("POST", f"/v1/waitpoints/{opened['asked']['id']}/heartbeat")
    ids = [by_event, soon["id"], *(one["id"] for one in opened.values())]
    before = [await matcher.get(one) for one in ids]
    assert {one["state"] for one in before} == {
        "resolved",
        "expired",
        "stalled",
        "cancelled",
        "open",
    }

    matcher.database.owner.execute("truncate matcher.outbox")
    matcher.database.owner.execute("drop schema mailbox, escalation, intake cascade")

    assert [await matcher.get(one) for one in ids] == before
    for name in ("quiet", "asked"):
        assert (await reply(matcher, opened[name], response=1)).json()["state"] == "resolved"
    late = await reply(matcher, opened["over"], response=2)
    assert late.json()["code"] == "waitpoint_resolved"
