"""Replies by match key: held, decided or late (spec, Early replies; design D19)."""

import asyncio
import uuid
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from relay_matcher.domain.digest import subject_digest
from relay_matcher.operations import sweeping

REPLIER = "waitpoints:reply waitpoints:read"
# Of what the kit asks.
SUBJECT = {
    "subject_digest": subject_digest({"action": "refund", "amount": "19.99", "target": "order-1"})
}


@pytest.mark.spec("WP-EARLY-HELD", "WP-EARLY-OPEN")
async def test_early_reply_is_held_and_resolves_the_question_when_it_opens(matcher: Any) -> None:
    canary = {"ok": True, "by": "2031-01-01T00:00:00Z"}
    eve = await matcher.reply_by_key(SUBJECT, "subscriber:eve")
    wrong = await matcher.reply_by_key({"subject_digest": "sha-256:other"}, "subscriber:ann")
    bad = await matcher.reply_by_key(SUBJECT, "subscriber:bob", response={"ok": "maybe"})
    good = await matcher.reply_by_key(SUBJECT, "subscriber:ann", response=canary)
    loser = await matcher.reply_by_key(SUBJECT, "subscriber:bob")
    for held in (eve, wrong, bad, good, loser):
        assert (held.status_code, held.json()["held"]) == (202, True)
    shown = matcher.announced("relay.mailbox")
    assert {(m.record["owner"], m.record["kind"], m.record["state"]) for m in shown} == {
        ("agent:a", "early_event", "held")
    }
    assert all(b"2031-01-01" not in m.record["body"] for m in shown)

    opened = (await matcher.ask()).json()
    assert (opened["state"], opened["resolution"]["response"]) == ("resolved", canary)
    assert opened["resolution"]["responder"] == "subscriber:ann"
    assert await matcher.get(opened["id"]) == {**opened, "revision": 6}
    events = [
        (m.record["type"], m.body["revision"], m.record["supersedes"] is not None)
        for m in matcher.announced("relay.mailbox")
        if m.record["owner"] == "agent:a"
    ]
    assert events == [
        ("waitpoint.created", 1, False),
        ("waitpoint.response_rejected", 2, True),
        ("waitpoint.response_rejected", 3, True),
        ("waitpoint.response_rejected", 4, True),
        ("waitpoint.resolved", 5, True),
        ("waitpoint.response_rejected", 6, True),
    ]
    listed = await matcher.call("GET", f"/v1/waitpoints/{opened['id']}/rejections")
    assert [r["reason"] for r in listed.json()["items"]] == [
        "responder_not_listed",
        "subject_digest_mismatch",
        "reply_schema_violation",
        "waitpoint_resolved",
    ]
    assert matcher.one("select count(*) from matcher.held_reply where reply is not null") == 0


async def test_reply_by_key_decides_an_open_question_and_is_late_for_a_closed_one(
    matcher: Any,
) -> None:
    opened = (await matcher.ask()).json()
    done = await matcher.reply_by_key(opened, "subscriber:ann")
    assert (done.status_code, done.json()["state"]) == (200, "resolved")
    late = await matcher.reply_by_key(opened, "subscriber:bob")
    assert (late.status_code, late.json()["code"]) == (409, "waitpoint_resolved")
    # Another subject is for a waitpoint that is still to come.
    other = await matcher.reply_by_key(
        {"subject_digest": subject_digest({"n": 2})}, "subscriber:bob"
    )
    assert other.status_code == 202
    again = (await matcher.ask(content={"n": 2})).json()
    assert again["state"] == "resolved"


async def test_reply_by_key_tells_a_stranger_of_no_waitpoint(matcher: Any, clock: Any) -> None:
    """Who may not see it gets the answer that stands where there is none, and touches nothing."""

    async def strangers() -> list[Any]:
        eve = await matcher.reply_by_key(SUBJECT, "subscriber:eve")
        claim = {"responder": "subscriber:eve", "channel": "sms", "scope": "replies:channel"}
        return [eve, await matcher.reply_by_key(SUBJECT, "client:sms", **claim)]

    def told(answers: list[Any]) -> list[Any]:
        return [
            (one.status_code, one.json().keys(), one.headers.keys() - {"date"}) for one in answers
        ]

    nothing = told(await strangers())
    assert nothing[0][0] == 202
    opened = (await matcher.ask(expires_at=(clock.now() + timedelta(hours=1)).isoformat())).json()
    before = await matcher.get(opened["id"])
    assert told(await strangers()) == nothing, "open"
    clock.shift(timedelta(hours=2))
    matcher.announced("relay.waitpoints")
    assert told(await strangers()) == nothing, "overdue"
    assert matcher.announced("relay.waitpoints") == []
    assert (await matcher.reply_by_key(SUBJECT)).json()["code"] == "waitpoint_expired"
    assert told(await strangers()) == nothing, "closed"
    listed = await matcher.call("GET", f"/v1/waitpoints/{opened['id']}/rejections")
    reasons = Counter(one["reason"] for one in listed.json()["items"])
    assert reasons == {"responder_not_listed": 2, "waitpoint_expired": 1}, "2 when it opened"
    assert before["revision"] == 3

    # What is held meets the next waitpoint of the key, and its list of responders.
    again = (await matcher.ask()).json()
    assert again["state"] == "open"
    assert (await matcher.reply_by_key(SUBJECT, "subscriber:eve")).status_code == 202
    await matcher.call("POST", f"/v1/waitpoints/{again['id']}/cancel")
    lists_her = (await matcher.ask(responders=["subscriber:eve"])).json()
    assert lists_her["resolution"]["responder"] == "subscriber:eve"


async def test_reply_by_key_is_seen_by_waiter_and_operator(matcher: Any) -> None:
    """They may see the waitpoint, so they are told and recorded."""
    opened = (await matcher.ask()).json()
    waiter = await matcher.reply_by_key(opened, "agent:a")
    operator = await matcher.reply_by_key(opened, "client:ops", scope=f"{REPLIER} operator")
    assert [one.json()["code"] for one in (waiter, operator)] == [
        "responder_is_waiter",
        "responder_not_listed",
    ]
    assert matcher.one("select count(*) from matcher.rejection") == 2


async def test_reply_by_key_finds_the_newest_by_the_database_clock(
    matcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids begin with the time of the process that made them; another one's may be ahead."""
    ahead = uuid.UUID("7fffffff-ffff-7fff-bfff-ffffffffffff")
    with monkeypatch.context() as other_process:
        other_process.setattr("relay_matcher.http.forms.new_id", lambda: ahead)
        first = (await matcher.ask()).json()
    await matcher.call("POST", f"/v1/waitpoints/{first['id']}/cancel")
    second = (await matcher.ask()).json()
    assert second["id"] < first["id"]
    done = await matcher.reply_by_key(second, "subscriber:ann")
    assert (done.status_code, done.json()["id"]) == (200, second["id"])


@pytest.mark.spec("WP-LIMIT-MESSAGES")
async def test_replies_are_held_up_to_a_limit_for_each_waiter_and_key(matcher: Any) -> None:
    """An opening runs all of them: it must not have to run any number."""
    values = [{"response": {"ok": n}} for n in range(105)]  # none of them is valid
    answers = await asyncio.gather(*(matcher.reply_by_key(SUBJECT, **value) for value in values))
    assert Counter(answer.status_code for answer in answers) == {202: 100, 429: 5}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["limit"] == {"name": "held_replies", "value": 100, "got": 101}
    for elsewhere in ({"waiter": "agent:b"}, {"correlation_key": "other"}):
        assert (await matcher.reply_by_key(SUBJECT, **elsewhere)).status_code == 202
    assert (await matcher.ask()).json()["state"] == "open"
    assert matcher.one("select count(*) from matcher.rejection") == 100
    assert (await matcher.reply_by_key({"subject_digest": "sha-256:x"})).status_code == 409
    assert (await matcher.ask("other")).json()["state"] == "resolved"


async def test_held_reply_lets_go_of_its_value_after_retention(matcher: Any, clock: Any) -> None:
    assert (await matcher.reply_by_key(SUBJECT)).status_code == 202
    clock.shift(timedelta(days=7))
    assert (await matcher.ask()).json()["state"] == "open"
    assert sweeping.expire_held_replies(matcher.stream)["held_replies_expired"] == 1
    assert matcher.one("select reply is null from matcher.held_reply")
