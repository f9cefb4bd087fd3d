"""Questions and reviews: sessions, replies, rejections, early replies (spec, Invariants)."""

import asyncio
import base64
import hashlib
import uuid
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
import rfc8785
from relay_matcher.operations import sweeping

REPLIER = "waitpoints:reply waitpoints:read"
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "by": {"type": "string", "format": "date-time"}},
    "required": ["ok"],
    "additionalProperties": False,
}
CONTENT = {"action": "refund", "amount": "19.99", "target": "order-1"}


def digest_of(content: Any) -> str:
    """Return the subject digest as a client computes it."""
    digest = hashlib.sha256(rfc8785.dumps(content)).digest()
    return "sha-256:" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


async def ask(matcher: Any, key: str = "q", **given: Any) -> Any:
    """Open a question of agent:a to two people, or a review when actions are given."""
    how = {n: given.pop(n) for n in ("who", "scope", "tenant") if n in given}
    kind = given.pop("kind", "question")
    body = {
        "kind": kind,
        "match": {"event_type": "refund.decided", "correlation_key": key},
        "expires_at": in_an_hour(matcher),
        "responders": ["subscriber:ann", "subscriber:bob"],
        "content": CONTENT,
        **({"response_schema": SCHEMA} if kind == "question" else {"actions": ["approve", "deny"]}),
        **given,
    }
    body = {name: value for name, value in body.items() if value is not None}
    return await matcher.call("POST", "/v1/waitpoints", body, **how)


def in_an_hour(matcher: Any) -> str:
    """Return a deadline by the database's clock."""
    return (matcher.one("select relay.now()") + timedelta(hours=1)).isoformat()


async def session(matcher: Any, waitpoint: str, who: str = "subscriber:ann", **body: Any) -> Any:
    """Open a reply session."""
    how = {"scope": body.pop("scope", REPLIER)}
    path = f"/v1/waitpoints/{waitpoint}/reply-sessions"
    return await matcher.call("POST", path, body, who=who, **how)


async def reply(
    matcher: Any, waitpoint: dict[str, Any], who: str = "subscriber:ann", **given: Any
) -> Any:
    """Open a session and reply in it; fields of the reply may be given."""
    how = {"scope": given.pop("scope", REPLIER)}
    claim = {n: given[n] for n in ("responder", "channel") if n in given}
    if "reply_session" not in given:
        opened = await session(matcher, waitpoint["id"], who, **claim, **how)
        given["reply_session"] = opened.json().get("reply_session", "rs_none")
    body = {"subject_digest": waitpoint["subject_digest"], **given}
    if "response" not in body and "decision" not in body:
        body["response"] = {"ok": True}
    path = f"/v1/waitpoints/{waitpoint['id']}/replies"
    return await matcher.call("POST", path, body, who=who, **how)


@pytest.mark.spec(
    "WP-KIND-QUESTION",
    "WP-REPLY-VALUE",
    "WP-REPLY-RESPONDER",
    "WP-REPLY-CHANNEL",
    "WP-REPLY-EVIDENCE",
    "WP-REPLY-TIME",
    "WP-REPLY-DIGEST",
    "WP-REPLY-NAME",
    "WP-EVIDENCE-SESSION",
    "WP-OBJ-CLAIM",
    "WP-OBJ-CONTENT",
    "WP-OBJ-DIGEST",
)
async def test_question_is_resolved_by_a_valid_reply(matcher: Any) -> None:
    opened = (await ask(matcher, claim_text="please be quick")).json()
    assert opened["subject_digest"] == digest_of(CONTENT)
    assert opened["claim_text"] == "please be quick"
    assert "claim_text" not in opened["content"]
    assert opened["protocol_state"] == {
        "a2a": "TASK_STATE_INPUT_REQUIRED",
        "mcp": "input_required",
    }
    opening = await session(matcher, opened["id"])
    assert opening.status_code == 201
    assert opening.json()["subject_digest"] == opened["subject_digest"]
    done = await reply(matcher, opened, reply_session=opening.json()["reply_session"])
    assert done.status_code == 200, done.text
    found = done.json()
    assert found["state"] == "resolved"
    assert found["resolution"] == {
        "response": {"ok": True},
        "responder": "subscriber:ann",
        "channel": "inbox",
        "evidence_level": "relay_session",
        "responded_at": found["closed_at"],
        "subject_digest": opened["subject_digest"],
    }
    assert found == await matcher.get(opened["id"])
    assert found == await matcher.get(opened["id"], who="subscriber:bob", scope=REPLIER)
    assert found["protocol_state"] == {"a2a": "TASK_STATE_WORKING", "mcp": "working"}
    messages = [m for m in matcher.announced() if m.topic == "relay.mailbox"]
    assert [(m.record["owner"], m.record["type"]) for m in messages] == [
        ("agent:a", "waitpoint.created"),
        ("subscriber:ann", "waitpoint.invitation"),
        ("subscriber:bob", "waitpoint.invitation"),
        ("agent:a", "waitpoint.resolved"),
        ("subscriber:ann", "waitpoint.no_reply_needed"),
        ("subscriber:bob", "waitpoint.no_reply_needed"),
    ]
    assert messages[1].body["message_class"] == "action_required"
    assert messages[1].body["sender"] == "agent:a", "blocks of a responder go by the sender (D14)"
    assert messages[4].record["supersedes"] == messages[1].record["message_id"]


@pytest.mark.spec("WP-KIND-REVIEW")
async def test_review_takes_one_of_its_actions_after_the_evidence(matcher: Any) -> None:
    evidence = [{"uri": "https://files.test/1", "digest": "sha-256:abc"}, {"note": "by value"}]
    content = {**CONTENT, "evidence": evidence}
    opened = (await ask(matcher, kind="review", content=content)).json()
    wrong = await reply(matcher, opened, decision="postpone")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "reply_schema_violation")
    part = await reply(matcher, opened, response="approve")
    assert part.json()["errors"][0]["pointer"] == "/response"
    done = await reply(matcher, opened, decision={"action": "deny", "comment": "no"})
    assert done.json()["resolution"]["decision"] == {"action": "deny", "comment": "no"}
    for evidence, pointer in (([{}, {"uri": "x"}], "/1"), ({"uri": "x"}, "")):
        bare = await ask(matcher, "other", kind="review", content={"evidence": evidence})
        assert bare.json()["errors"][0]["pointer"] == f"/content/evidence{pointer}/digest"


@pytest.mark.spec("WP-INV-1", "WP-OBJ-WAITER")
async def test_waiter_never_replies_on_any_path(matcher: Any) -> None:
    """W19."""
    listed = await ask(matcher, responders=["agent:a", "subscriber:ann"])
    assert (listed.status_code, listed.json()["code"]) == (422, "responder_is_waiter")
    opened = (await ask(matcher)).json()
    adapter = "replies:channel waitpoints:reply"
    answers = [
        await session(matcher, opened["id"], "agent:a"),
        await reply(matcher, opened, "agent:a", reply_session="rs_none"),
        await reply(
            matcher,
            opened,
            "client:sms",
            responder="agent:a",
            channel="sms",
            scope=adapter + " operator",
            reply_session="rs_none",
        ),
        await early(matcher, opened, "agent:a"),
        await early(matcher, opened, "agent:a", correlation_key="nothing-here"),
    ]
    assert {a.json()["code"] for a in answers} == {"responder_is_waiter"}
    assert (await matcher.get(opened["id"]))["state"] == "open"


@pytest.mark.spec("WP-INV-2", "WP-OBJ-RESPONDERS")
async def test_only_a_listed_responder_in_its_own_session(matcher: Any) -> None:
    opened = (await ask(matcher)).json()
    stranger = await session(matcher, opened["id"], "subscriber:eve")
    assert stranger.status_code == 404
    operator = await session(matcher, opened["id"], "client:ops", scope="operator waitpoints:reply")
    assert (operator.status_code, operator.json()["code"]) == (403, "responder_not_listed")
    ann = (await session(matcher, opened["id"], "subscriber:ann")).json()["reply_session"]
    bob = await reply(matcher, opened, "subscriber:bob", reply_session=ann)
    assert (bob.status_code, bob.json()["code"]) == (403, "reply_session_mismatch")
    other = (await ask(matcher, "other")).json()
    crossed = await reply(matcher, other, "subscriber:ann", reply_session=ann)
    assert crossed.json()["code"] == "reply_session_mismatch"
    none = await reply(matcher, opened, reply_session="rs_AAAAAAAAAAAAAAAAAAAAAA")
    assert none.json()["code"] == "reply_session_mismatch"
    assert (await reply(matcher, opened, reply_session=ann)).status_code == 200


async def test_reply_session_is_short_lived(matcher: Any, clock: Any) -> None:
    opened = (await ask(matcher)).json()
    started = (await session(matcher, opened["id"])).json()["reply_session"]
    clock.shift(timedelta(minutes=15))
    late = await reply(matcher, opened, reply_session=started)
    assert late.json()["code"] == "reply_session_mismatch"
    assert (await reply(matcher, opened)).status_code == 200


async def test_reply_session_ends_with_its_waitpoint(matcher: Any, clock: Any) -> None:
    """A reply in it is late then, not out of session."""
    soon = (clock.now() + timedelta(minutes=2)).isoformat()
    opened = (await ask(matcher, expires_at=soon)).json()
    started = (await session(matcher, opened["id"])).json()
    assert started["expires_at"] == opened["expires_at"]
    clock.shift(timedelta(minutes=2))
    late = await reply(matcher, opened, reply_session=started["reply_session"])
    assert late.json()["code"] == "waitpoint_expired"


@pytest.mark.spec("WP-INV-3", "WP-EVENT-REJECTED", "WP-INV-4")
async def test_late_and_losing_replies_are_refused_and_recorded(matcher: Any, clock: Any) -> None:
    resolved, cancelled, expired = [(await ask(matcher, key)).json() for key in "abc"]
    tokens = {
        w["id"]: (await session(matcher, w["id"], "subscriber:bob")).json()["reply_session"]
        for w in (resolved, cancelled, expired)
    }
    assert (await reply(matcher, resolved)).status_code == 200
    await matcher.call("POST", f"/v1/waitpoints/{cancelled['id']}/cancel")
    before = await matcher.get(resolved["id"])
    clock.shift(timedelta(hours=1))
    matcher.announced()
    for waitpoint, code in (
        (resolved, "waitpoint_resolved"),
        (cancelled, "waitpoint_cancelled"),
        (expired, "waitpoint_expired"),
    ):
        late = await reply(
            matcher,
            waitpoint,
            "subscriber:bob",
            reply_session=tokens[waitpoint["id"]],
            response={"ok": False},
        )
        assert (late.status_code, late.json()["code"]) == (409, code)
        listed = await matcher.call("GET", f"/v1/waitpoints/{waitpoint['id']}/rejections")
        assert [(r["reason"], r["responder"]) for r in listed.json()["items"]] == [
            (code, "subscriber:bob")
        ]
        assert "ok" not in listed.text
    assert matcher.lifecycle() == [
        ("waitpoint.response_rejected", 3),
        ("waitpoint.response_rejected", 3),
        ("waitpoint.expired", 2),
        ("waitpoint.response_rejected", 3),
    ]
    after = await matcher.get(resolved["id"])
    assert after == {**before, "revision": 3}, "a resolved waitpoint is immutable"


@pytest.mark.spec("WP-INV-5", "WP-OBJ-SCHEMA")
async def test_reply_that_fails_the_schema_is_stored_nowhere(matcher: Any) -> None:
    canary = "canary-7f3a91"
    opened = (await ask(matcher)).json()
    bad = await reply(matcher, opened, response={"ok": canary, "by": "tomorrow", "x": canary})
    assert (bad.status_code, bad.json()["code"]) == (422, "reply_schema_violation")
    assert {e["pointer"] for e in bad.json()["errors"]} == {
        "/response",
        "/response/ok",
        "/response/by",
    }
    assert canary not in bad.text
    columns = matcher.database.owner.execute(
        "select table_schema, table_name, column_name, data_type from information_schema.columns"
        " where table_schema in ('matcher', 'relay', 'mailbox', 'intake', 'escalation')"
    ).fetchall()
    for schema, table, column, kind in columns:
        shown = f"encode({column}, 'escape')" if kind == "bytea" else f"{column}::text"
        place = f"select count(*) from {schema}.{table} where strpos({shown}, %s) > 0"
        found = matcher.one(place, canary)
        assert found == 0, (schema, table, column)
    for message in matcher.announced():
        assert canary.encode() not in message.record["body"]
    assert (await matcher.get(opened["id"]))["state"] == "open"


@pytest.mark.spec("WP-INV-6")
async def test_reply_for_one_subject_is_no_reply_for_another(matcher: Any) -> None:
    """W20: only canonical equality passes."""
    opened = (await ask(matcher, content={"b": 1, "a": "x"})).json()
    assert opened["subject_digest"] == digest_of({"a": "x", "b": 1.0})
    other = (await ask(matcher, "other", content={"b": 2, "a": "x"})).json()
    wrong = [
        other["subject_digest"],
        opened["subject_digest"].upper(),
        opened["subject_digest"].removeprefix("sha-256:"),
        digest_of({"a": "x", "b": "1"}),
    ]
    for digest in wrong:
        refused = await reply(matcher, opened, subject_digest=digest)
        assert (refused.status_code, refused.json()["code"]) == (409, "subject_digest_mismatch")
    missing = await reply(matcher, opened, subject_digest=None)
    assert missing.status_code == 422
    assert (await reply(matcher, opened)).status_code == 200
    supplied = await ask(matcher, "third", subject_digest=digest_of({"not": "this"}))
    assert supplied.json()["code"] == "subject_digest_mismatch"
    huge = await ask(matcher, "fourth", content={"amount": 2**60})
    assert (huge.status_code, huge.json()["errors"][0]["pointer"]) == (422, "/content")


@pytest.mark.spec("WP-EVIDENCE-CLAIM")
async def test_channel_adapter_speaks_for_a_responder(matcher: Any) -> None:
    opened = (await ask(matcher)).json()
    claim = {"responder": "subscriber:ann", "channel": "sms"}
    forbidden = await session(matcher, opened["id"], "subscriber:ann", **claim)
    assert (forbidden.status_code, forbidden.json()["scope"]) == (403, "replies:channel")
    adapter = {"scope": "replies:channel", **claim}
    stranger = {**adapter, "responder": "subscriber:eve"}
    assert (await session(matcher, opened["id"], "client:sms", **stranger)).status_code == 404
    done = await reply(matcher, opened, "client:sms", **adapter)
    assert done.status_code == 200, done.text
    resolution = done.json()["resolution"]
    assert (resolution["channel"], resolution["evidence_level"]) == ("sms", "channel_claim")
    assert resolution["responder"] == "subscriber:ann"


@pytest.mark.spec("WP-INV-2", "WP-EVIDENCE-SESSION")
async def test_a_session_that_a_channel_claimed_proves_nobody(matcher: Any) -> None:
    """The channel may say whose session it opens; only her own token makes it hers."""
    opened = (await ask(matcher)).json()
    claim = {"responder": "subscriber:ann", "channel": "inbox"}
    adapter = {"scope": "replies:channel", **claim}
    claimed = (await session(matcher, opened["id"], "client:app", **adapter)).json()
    own = (await session(matcher, opened["id"])).json()
    taken = await reply(matcher, opened, reply_session=claimed["reply_session"])
    crossed = await reply(
        matcher, opened, "client:app", reply_session=own["reply_session"], **adapter
    )
    assert {one.json()["code"] for one in (taken, crossed)} == {"reply_session_mismatch"}
    assert (await reply(matcher, opened, reply_session=own["reply_session"])).status_code == 200


async def test_reply_idempotently(matcher: Any) -> None:
    opened = (await ask(matcher)).json()
    started = (await session(matcher, opened["id"])).json()["reply_session"]
    body = {
        "reply_session": started,
        "subject_digest": opened["subject_digest"],
        "response": {"ok": True},
    }
    how = {"who": "subscriber:ann", "scope": REPLIER, "key": "r1"}
    path = f"/v1/waitpoints/{opened['id']}/replies"
    first = await matcher.call("POST", path, body, **how)
    again = await matcher.call("POST", path, body, **how)
    assert (again.status_code, again.content) == (200, first.content)
    assert again.headers["idempotent-replayed"] == "true"
    second = await matcher.call("POST", path, body, **{**how, "key": "r2"})
    assert second.json()["code"] == "waitpoint_resolved"
    refused = await matcher.call("POST", path, body, **{**how, "key": "r2"})
    assert refused.headers["idempotent-replayed"] == "true"
    assert matcher.one("select count(*) from matcher.rejection") == 1


async def early(
    matcher: Any, waitpoint: dict[str, Any], who: str = "subscriber:ann", **given: Any
) -> Any:
    """Reply by match key."""
    how = {"scope": given.pop("scope", REPLIER)}
    body = {
        "waiter": "agent:a",
        "event_type": "refund.decided",
        "correlation_key": "q",
        "subject_digest": waitpoint["subject_digest"],
        "response": {"ok": True},
        **given,
    }
    return await matcher.call("POST", "/v1/replies", body, who=who, **how)


@pytest.mark.spec("WP-EARLY-HELD", "WP-EARLY-OPEN")
async def test_early_reply_is_held_and_resolves_the_question_when_it_opens(matcher: Any) -> None:
    subject = {"subject_digest": digest_of(CONTENT)}
    canary = {"ok": True, "by": "2031-01-01T00:00:00Z"}
    eve = await early(matcher, subject, "subscriber:eve")
    wrong = await early(matcher, {"subject_digest": "sha-256:other"}, "subscriber:ann")
    bad = await early(matcher, subject, "subscriber:bob", response={"ok": "maybe"})
    good = await early(matcher, subject, "subscriber:ann", response=canary)
    loser = await early(matcher, subject, "subscriber:bob")
    for held in (eve, wrong, bad, good, loser):
        assert (held.status_code, held.json()["held"]) == (202, True)
    shown = matcher.announced("relay.mailbox")
    assert {(m.record["owner"], m.record["kind"], m.record["state"]) for m in shown} == {
        ("agent:a", "early_event", "held")
    }
    assert all(b"2031-01-01" not in m.record["body"] for m in shown)

    opened = (await ask(matcher)).json()
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
    opened = (await ask(matcher)).json()
    done = await early(matcher, opened, "subscriber:ann")
    assert (done.status_code, done.json()["state"]) == (200, "resolved")
    late = await early(matcher, opened, "subscriber:bob")
    assert (late.status_code, late.json()["code"]) == (409, "waitpoint_resolved")
    # Another subject is for a waitpoint that is still to come.
    other = await early(matcher, {"subject_digest": digest_of({"n": 2})}, "subscriber:bob")
    assert other.status_code == 202
    again = (await ask(matcher, content={"n": 2})).json()
    assert again["state"] == "resolved"


async def test_reply_by_key_tells_a_stranger_of_no_waitpoint(matcher: Any, clock: Any) -> None:
    """Who may not see it gets the answer that stands where there is none, and touches nothing."""
    subject = {"subject_digest": digest_of(CONTENT)}

    async def strangers() -> list[Any]:
        eve = await early(matcher, subject, "subscriber:eve")
        claim = {"responder": "subscriber:eve", "channel": "sms", "scope": "replies:channel"}
        return [eve, await early(matcher, subject, "client:sms", **claim)]

    def told(answers: list[Any]) -> list[Any]:
        return [
            (one.status_code, one.json().keys(), one.headers.keys() - {"date"}) for one in answers
        ]

    nothing = told(await strangers())
    assert nothing[0][0] == 202
    opened = (await ask(matcher, expires_at=(clock.now() + timedelta(hours=1)).isoformat())).json()
    before = await matcher.get(opened["id"])
    assert told(await strangers()) == nothing, "open"
    clock.shift(timedelta(hours=2))
    matcher.announced("relay.waitpoints")
    assert told(await strangers()) == nothing, "overdue"
    assert matcher.announced("relay.waitpoints") == []
    assert (await early(matcher, subject)).json()["code"] == "waitpoint_expired"
    assert told(await strangers()) == nothing, "closed"
    listed = await matcher.call("GET", f"/v1/waitpoints/{opened['id']}/rejections")
    reasons = Counter(one["reason"] for one in listed.json()["items"])
    assert reasons == {"responder_not_listed": 2, "waitpoint_expired": 1}, "2 when it opened"
    assert before["revision"] == 3

    # What is held meets the next waitpoint of the key, and its list of responders.
    again = (await ask(matcher)).json()
    assert again["state"] == "open"
    assert (await early(matcher, subject, "subscriber:eve")).status_code == 202
    await matcher.call("POST", f"/v1/waitpoints/{again['id']}/cancel")
    lists_her = (await ask(matcher, responders=["subscriber:eve"])).json()
    assert lists_her["resolution"]["responder"] == "subscriber:eve"


async def test_reply_by_key_is_seen_by_waiter_and_operator(matcher: Any) -> None:
    """They may see the waitpoint, so they are told and recorded."""
    opened = (await ask(matcher)).json()
    waiter = await early(matcher, opened, "agent:a")
    operator = await early(matcher, opened, "client:ops", scope=f"{REPLIER} operator")
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
        first = (await ask(matcher)).json()
    await matcher.call("POST", f"/v1/waitpoints/{first['id']}/cancel")
    second = (await ask(matcher)).json()
    assert second["id"] < first["id"]
    done = await early(matcher, second, "subscriber:ann")
    assert (done.status_code, done.json()["id"]) == (200, second["id"])


@pytest.mark.spec("WP-LIMIT-MESSAGES")
async def test_replies_are_held_up_to_a_limit_for_each_waiter_and_key(matcher: Any) -> None:
    """An opening runs all of them: it must not have to run any number."""
    subject = {"subject_digest": digest_of(CONTENT)}
    values = [{"response": {"ok": n}} for n in range(105)]  # none of them is valid
    answers = await asyncio.gather(*(early(matcher, subject, **value) for value in values))
    assert Counter(answer.status_code for answer in answers) == {202: 100, 429: 5}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert refused.json()["limit"] == {"name": "held_replies", "value": 100, "got": 101}
    for elsewhere in ({"waiter": "agent:b"}, {"correlation_key": "other"}):
        assert (await early(matcher, subject, **elsewhere)).status_code == 202
    assert (await ask(matcher)).json()["state"] == "open"
    assert matcher.one("select count(*) from matcher.rejection") == 100
    assert (await early(matcher, {"subject_digest": "sha-256:x"})).status_code == 409
    assert (await ask(matcher, "other")).json()["state"] == "resolved"


async def test_held_reply_lets_go_of_its_value_after_retention(matcher: Any, clock: Any) -> None:
    subject = {"subject_digest": digest_of(CONTENT)}
    assert (await early(matcher, subject)).status_code == 202
    clock.shift(timedelta(days=7))
    assert (await ask(matcher)).json()["state"] == "open"
    assert sweeping.expire_held_replies(matcher.stream)["held_replies_expired"] == 1
    assert matcher.one("select reply is null from matcher.held_reply")


@pytest.mark.spec(
    "WP-OBJ-HEARTBEAT",
    "WP-STALLED-REPLY",
    "WP-TIMEOUT-HEARTBEAT",
    "WP-EVENT-STALLED",
    "WP-EDGE-STALLED",
)
async def test_silent_waiter_stalls_and_its_heartbeat_brings_it_back(
    matcher: Any, clock: Any
) -> None:
    opened = (await ask(matcher, heartbeat_interval=60)).json()
    assert opened["heartbeat_interval"] == 60
    path = f"/v1/waitpoints/{opened['id']}/heartbeat"

    def sweep() -> int:
        return sweeping.stall_silent(matcher.stream, matcher.plumbing.announcer, 2)["stalled"]

    clock.freeze()
    clock.shift(timedelta(seconds=59))
    assert sweep() == 0
    assert (await matcher.call("POST", path)).json()["state"] == "open"
    clock.shift(timedelta(seconds=60))
    assert (sweep(), sweep()) == (1, 0)
    stalled = await matcher.get(opened["id"])
    assert (stalled["state"], stalled["protocol_state"]["a2a"]) == ("stalled", None)
    again = (await matcher.call("POST", path)).json()
    assert (again["state"], again["activation"], again["revision"]) == ("open", 2, 3)
    clock.shift(timedelta(seconds=61))
    assert sweep() == 1
    done = await reply(matcher, opened)
    assert done.json()["state"] == "resolved", "a stalled waitpoint accepts replies"
    assert matcher.lifecycle() == [
        ("waitpoint.created", 1),
        ("waitpoint.stalled", 2),
        ("waitpoint.reopened", 3),
        ("waitpoint.stalled", 4),
        ("waitpoint.resolved", 5),
    ]
    closed = await matcher.call("POST", path)
    assert (closed.status_code, closed.json()["code"]) == (409, "waitpoint_resolved")
    by = await matcher.call("POST", path, who="client:ops", scope="operator waitpoints:write")
    assert by.status_code == 403


@pytest.mark.spec("WP-TIMEOUT-NONE")
async def test_without_a_heartbeat_interval_only_the_deadline_applies(
    matcher: Any, clock: Any
) -> None:
    opened = (await ask(matcher)).json()
    clock.shift(timedelta(minutes=59))
    assert sweeping.stall_silent(matcher.stream, matcher.plumbing.announcer, 2)["stalled"] == 0
    beat = await matcher.call("POST", f"/v1/waitpoints/{opened['id']}/heartbeat")
    assert (beat.status_code, beat.json()) == (200, opened)


@pytest.mark.spec("WP-LIST-AWAITING")
async def test_what_waits_for_a_reply(matcher: Any, clock: Any) -> None:
    first = (await ask(matcher, "a")).json()
    second = (await ask(matcher, "b", kind="review")).json()
    third = (await ask(matcher, "c", who="agent:b")).json()
    await matcher.open("event")
    done = (await ask(matcher, "d")).json()
    assert (await reply(matcher, done)).status_code == 200

    async def awaiting(**how: Any) -> tuple[list[str], dict[str, int]]:
        params = {"awaiting": "reply", **how.pop("params", {})}
        found = (await matcher.call("GET", "/v1/waitpoints", params=params, **how)).json()
        return [w["id"] for w in found["items"]], found["counts"]

    assert await awaiting() == ([first["id"], second["id"]], {"open": 2, "stalled": 0})
    operator = {"who": "client:ops", "scope": "operator"}
    everything = [first["id"], second["id"], third["id"]]
    assert await awaiting(**operator) == (everything, {"open": 3, "stalled": 0})
    ann = {"who": "subscriber:ann", "scope": REPLIER}
    assert (await awaiting(**ann, params={"responder": "me"}))[0] == everything
    assert (await awaiting(params={"kind": "review"}))[0] == [second["id"]]
    # One whose waiter has gone still waits; one that is overdue does not, swept or not.
    await ask(matcher, "e", who="agent:c", heartbeat_interval=1)
    soon = (clock.now() + timedelta(seconds=2)).isoformat()
    await ask(matcher, "f", who="agent:c", expires_at=soon)
    clock.shift(timedelta(seconds=2))
    sweeping.stall_silent(matcher.stream, matcher.plumbing.announcer, 2)
    mine = {"who": "agent:c"}
    assert (await awaiting(**mine))[1] == {"open": 0, "stalled": 1}
    assert (await awaiting(**operator))[1] == {"open": 3, "stalled": 1}
    elsewhere = await awaiting(**operator, tenant="other")
    assert elsewhere == ([], {"open": 0, "stalled": 0}), "every tenant its own"


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"$ref": "http://169.254.169.254/x"}, "/response_schema/$ref"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/response_schema/$schema"),
        ({"type": "strange"}, "/response_schema"),
        ({"pattern": "(?=a)b"}, "/response_schema"),
        ({"format": "no-such-format"}, "/response_schema"),
        ({"$ref": "#/$defs/none"}, "/response_schema"),
    ],
)
async def test_schema_that_leaves_the_document_is_refused(
    matcher_once: Any, schema: Any, pointer: str
) -> None:
    """W29."""
    refused = await ask(matcher_once, response_schema=schema)
    assert (refused.status_code, refused.json()["code"]) == (422, "schema_invalid"), refused.text
    assert refused.json()["errors"][0]["pointer"] == pointer


@pytest.mark.spec("WP-LIMIT-PAYLOAD")
async def test_sizes_of_schema_and_reply(matcher: Any) -> None:
    large = await ask(matcher, response_schema={"description": "x" * 33_000})
    assert (large.status_code, large.json()["limit"]["name"]) == (413, "response_schema_bytes")
    opened = (await ask(matcher, response_schema={"type": "string"})).json()
    fits = 64 * 1024 - 2
    over = await reply(matcher, opened, response="x" * (fits + 1))
    assert (over.status_code, over.json()["limit"]["name"]) == (413, "reply_bytes")
    wide = "\U0001f600" * (fits // 4)
    done = await reply(matcher, opened, response=wide)
    assert done.status_code == 200
    assert (await matcher.get(opened["id"]))["resolution"]["response"] == wide
    assert all(len(m.record["body"]) < 20_000 for m in matcher.announced()), "by reference"


@pytest.mark.spec("WP-EVENT-EXPIRED", "WP-OBJ-DEFAULT", "WP-EXPIRY-DEFAULT")
async def test_default_response_is_no_reply(matcher: Any, clock: Any) -> None:
    bad = await ask(matcher, default_response={"ok": "?"})
    assert bad.json()["errors"][0]["pointer"] == "/default_response/ok"
    # It stands whole in the event, so it is as large as a reply at most, on every kind.
    for refused in (
        await ask(matcher, response_schema={}, default_response="x" * 65_535),
        await matcher.open("event", default_response="x" * 65_535),
    ):
        assert (refused.status_code, refused.json()["limit"]["name"]) == (413, "reply_bytes")
    opened = (await ask(matcher, default_response={"ok": False})).json()
    clock.shift(timedelta(hours=1))
    assert matcher.expire_due() == 1
    found = await matcher.get(opened["id"])
    assert (found["state"], found["resolution"]) == ("expired", None)
    mine = [m for m in matcher.announced("relay.mailbox") if m.record["owner"] == "agent:a"]
    assert mine[-1].body["default_response"] == {"ok": False}
    assert mine[-1].body["waitpoint"]["resolution"] is None


async def test_conditions_can_be_tried(matcher_once: Any) -> None:
    async def check(condition: str, event: Any = None) -> Any:
        body = {"condition": condition, **({"event": event} if event else {})}
        found = await matcher_once.call("POST", "/v1/conditions/check", body, key="")
        return found.status_code, found.json()

    event = {"event_type": "t", "correlation_key": "k", "data": {"amount": 7}}
    assert await check("event.data.amount > 5") == (200, {"valid": True})
    yes = {"valid": True, "matches": True, "error": None}
    assert await check("event.data.amount > 5 && event.amount == 7", event) == (200, yes)
    assert (await check("event.data.amount > 9", event))[1]["matches"] is False
    failed = (await check("event.data.missing > 9", event))[1]
    assert failed["matches"] is False
    assert "missing" in failed["error"]
    assert (await check("event.", event))[1]["code"] == "condition_invalid"


@pytest.mark.spec("WP-OBJ-ESCALATION", "WP-OBJ-SURFACE")
async def test_policies_are_kept_and_announced(matcher: Any) -> None:
    surface = {"subscriber:ann": [{"surfaces": ["device:1"], "escalate_after": 60}]}
    given = {"escalation_policy": "ep_night", "surface_policy": surface}
    opened = (await ask(matcher, **given)).json()
    assert {name: opened[name] for name in given} == given
    created = matcher.announced("relay.waitpoints")[0]
    assert {name: created.body["waitpoint"][name] for name in given} == given


@pytest.mark.spec("WP-LIMIT-MESSAGES")
async def test_rejections_stop_being_recorded_at_the_limit_but_a_valid_reply_still_counts(
    matcher: Any,
) -> None:
    opened = (await ask(matcher)).json()
    matcher.database.owner.execute("update matcher.waitpoint set revision = 999")
    for _ in range(3):
        assert (await reply(matcher, opened, response={"ok": 1})).status_code == 422
    assert matcher.one("select count(*) from matcher.rejection") == 1
    assert (await reply(matcher, opened)).json()["revision"] == 1001


async def test_settings_are_the_operators_and_stay_under_their_upper_limits(matcher: Any) -> None:
    operator = {"who": "client:ops", "scope": "operator"}
    path = "/v1/settings"
    assert (await matcher.call("GET", path)).status_code == 403
    usual = (await matcher.call("GET", path, **operator)).json()
    assert usual["retention_seconds"] == 7 * 86_400
    too_long = await matcher.call("PUT", path, {"retention_seconds": 10**9}, **operator)
    assert (too_long.status_code, too_long.json()["limit"]["name"]) == (422, "retention_seconds")
    chosen = {"retention_seconds": 3600, "event_sources": ["shop"]}
    assert (await matcher.call("PUT", path, chosen, **operator)).json() == {**usual, **chosen}
    assert (await matcher.call("GET", path, **operator)).json() == {**usual, **chosen}
    other = await matcher.call("GET", path, tenant="other", **operator)
    assert other.json() == usual
    # Direct producers are held to the sources; intake vouches for its own (design D21).
    letters = matcher.deliver(
        matcher.value("k", source="shop/eu"),
        matcher.value("k", source="elsewhere"),
        matcher.value("k", source="elsewhere", accepted_by="client:shop"),
    )
    assert [letter.reason for letter in letters] == ["source_not_allowed"]
    await matcher.call("PUT", path, {}, **operator)
    assert (await matcher.call("GET", path, **operator)).json() == usual
