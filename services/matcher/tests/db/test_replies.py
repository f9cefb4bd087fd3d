"""Replies by id: sessions, who may reply, rejections (spec, Invariants)."""

import base64
import hashlib
from datetime import timedelta
from typing import Any

import pytest
import rfc8785

REPLIER = "waitpoints:reply waitpoints:read"
CONTENT = {"action": "refund", "amount": "19.99", "target": "order-1"}


def digest_of(content: Any) -> str:
    """Return the subject digest as a client computes it."""
    digest = hashlib.sha256(rfc8785.dumps(content)).digest()
    return "sha-256:" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


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
    opened = (await matcher.ask(claim_text="please be quick")).json()
    assert opened["subject_digest"] == digest_of(CONTENT)
    assert opened["claim_text"] == "please be quick"
    assert "claim_text" not in opened["content"]
    assert opened["protocol_state"] == {
        "a2a": "TASK_STATE_INPUT_REQUIRED",
        "mcp": "input_required",
    }
    opening = await matcher.session(opened["id"])
    assert opening.status_code == 201
    assert opening.json()["subject_digest"] == opened["subject_digest"]
    done = await matcher.reply(opened, reply_session=opening.json()["reply_session"])
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
    opened = (await matcher.ask(kind="review", content=content)).json()
    wrong = await matcher.reply(opened, decision="postpone")
    assert (wrong.status_code, wrong.json()["code"]) == (422, "reply_schema_violation")
    part = await matcher.reply(opened, response="approve")
    assert part.json()["errors"][0]["pointer"] == "/response"
    done = await matcher.reply(opened, decision={"action": "deny", "comment": "no"})
    assert done.json()["resolution"]["decision"] == {"action": "deny", "comment": "no"}
    for evidence, pointer in (([{}, {"uri": "x"}], "/1"), ({"uri": "x"}, "")):
        bare = await matcher.ask("other", kind="review", content={"evidence": evidence})
        assert bare.json()["errors"][0]["pointer"] == f"/content/evidence{pointer}/digest"


@pytest.mark.spec("WP-INV-1", "WP-OBJ-WAITER")
async def test_waiter_never_replies_on_any_path(matcher: Any) -> None:
    """W19."""
    listed = await matcher.ask(responders=["agent:a", "subscriber:ann"])
    assert (listed.status_code, listed.json()["code"]) == (422, "responder_is_waiter")
    opened = (await matcher.ask()).json()
    adapter = "replies:channel waitpoints:reply"
    answers = [
        await matcher.session(opened["id"], "agent:a"),
        await matcher.reply(opened, "agent:a", reply_session="rs_none"),
        await matcher.reply(
            opened,
            "client:sms",
            responder="agent:a",
            channel="sms",
            scope=adapter + " operator",
            reply_session="rs_none",
        ),
        await matcher.reply_by_key(opened, "agent:a"),
        await matcher.reply_by_key(opened, "agent:a", correlation_key="nothing-here"),
    ]
    assert {a.json()["code"] for a in answers} == {"responder_is_waiter"}
    assert (await matcher.get(opened["id"]))["state"] == "open"


@pytest.mark.spec("WP-INV-2", "WP-OBJ-RESPONDERS")
async def test_only_a_listed_responder_in_its_own_session(matcher: Any) -> None:
    opened = (await matcher.ask()).json()
    stranger = await matcher.session(opened["id"], "subscriber:eve")
    assert stranger.status_code == 404
    operator = await matcher.session(opened["id"], "client:ops", scope="operator waitpoints:reply")
    assert (operator.status_code, operator.json()["code"]) == (403, "responder_not_listed")
    ann = (await matcher.session(opened["id"], "subscriber:ann")).json()["reply_session"]
    bob = await matcher.reply(opened, "subscriber:bob", reply_session=ann)
    assert (bob.status_code, bob.json()["code"]) == (403, "reply_session_mismatch")
    other = (await matcher.ask("other")).json()
    crossed = await matcher.reply(other, "subscriber:ann", reply_session=ann)
    assert crossed.json()["code"] == "reply_session_mismatch"
    none = await matcher.reply(opened, reply_session="rs_AAAAAAAAAAAAAAAAAAAAAA")
    assert none.json()["code"] == "reply_session_mismatch"
    assert (await matcher.reply(opened, reply_session=ann)).status_code == 200


async def test_reply_session_is_short_lived(matcher: Any, clock: Any) -> None:
    opened = (await matcher.ask()).json()
    started = (await matcher.session(opened["id"])).json()["reply_session"]
    clock.shift(timedelta(minutes=15))
    late = await matcher.reply(opened, reply_session=started)
    assert late.json()["code"] == "reply_session_mismatch"
    assert (await matcher.reply(opened)).status_code == 200


async def test_reply_session_ends_with_its_waitpoint(matcher: Any, clock: Any) -> None:
    """A reply in it is late then, not out of session."""
    soon = (clock.now() + timedelta(minutes=2)).isoformat()
    opened = (await matcher.ask(expires_at=soon)).json()
    started = (await matcher.session(opened["id"])).json()
    assert started["expires_at"] == opened["expires_at"]
    clock.shift(timedelta(minutes=2))
    late = await matcher.reply(opened, reply_session=started["reply_session"])
    assert late.json()["code"] == "waitpoint_expired"


@pytest.mark.spec("WP-INV-3", "WP-EVENT-REJECTED", "WP-INV-4")
async def test_late_and_losing_replies_are_refused_and_recorded(matcher: Any, clock: Any) -> None:
    resolved, cancelled, expired = [(await matcher.ask(key)).json() for key in "abc"]
    tokens = {
        w["id"]: (await matcher.session(w["id"], "subscriber:bob")).json()["reply_session"]
        for w in (resolved, cancelled, expired)
    }
    assert (await matcher.reply(resolved)).status_code == 200
    await matcher.call("POST", f"/v1/waitpoints/{cancelled['id']}/cancel")
    before = await matcher.get(resolved["id"])
    clock.shift(timedelta(hours=1))
    matcher.announced()
    for waitpoint, code in (
        (resolved, "waitpoint_resolved"),
        (cancelled, "waitpoint_cancelled"),
        (expired, "waitpoint_expired"),
    ):
        late = await matcher.reply(
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
    opened = (await matcher.ask()).json()
    bad = await matcher.reply(opened, response={"ok": canary, "by": "tomorrow", "x": canary})
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
    opened = (await matcher.ask(content={"b": 1, "a": "x"})).json()
    assert opened["subject_digest"] == digest_of({"a": "x", "b": 1.0})
    other = (await matcher.ask("other", content={"b": 2, "a": "x"})).json()
    wrong = [
        other["subject_digest"],
        opened["subject_digest"].upper(),
        opened["subject_digest"].removeprefix("sha-256:"),
        digest_of({"a": "x", "b": "1"}),
    ]
    for digest in wrong:
        refused = await matcher.reply(opened, subject_digest=digest)
        assert (refused.status_code, refused.json()["code"]) == (409, "subject_digest_mismatch")
    missing = await matcher.reply(opened, subject_digest=None)
    assert missing.status_code == 422
    assert (await matcher.reply(opened)).status_code == 200
    supplied = await matcher.ask("third", subject_digest=digest_of({"not": "this"}))
    assert supplied.json()["code"] == "subject_digest_mismatch"
    huge = await matcher.ask("fourth", content={"amount": 2**60})
    assert (huge.status_code, huge.json()["errors"][0]["pointer"]) == (422, "/content")


@pytest.mark.spec("WP-EVIDENCE-CLAIM")
async def test_channel_adapter_speaks_for_a_responder(matcher: Any) -> None:
    opened = (await matcher.ask()).json()
    claim = {"responder": "subscriber:ann", "channel": "sms"}
    forbidden = await matcher.session(opened["id"], "subscriber:ann", **claim)
    assert (forbidden.status_code, forbidden.json()["scope"]) == (403, "replies:channel")
    adapter = {"scope": "replies:channel", **claim}
    stranger = {**adapter, "responder": "subscriber:eve"}
    assert (await matcher.session(opened["id"], "client:sms", **stranger)).status_code == 404
    done = await matcher.reply(opened, "client:sms", **adapter)
    assert done.status_code == 200, done.text
    resolution = done.json()["resolution"]
    assert (resolution["channel"], resolution["evidence_level"]) == ("sms", "channel_claim")
    assert resolution["responder"] == "subscriber:ann"


@pytest.mark.spec("WP-INV-2", "WP-EVIDENCE-SESSION")
async def test_a_session_that_a_channel_claimed_proves_nobody(matcher: Any) -> None:
    """The channel may say whose session it opens; only her own token makes it hers."""
    opened = (await matcher.ask()).json()
    claim = {"responder": "subscriber:ann", "channel": "inbox"}
    adapter = {"scope": "replies:channel", **claim}
    claimed = (await matcher.session(opened["id"], "client:app", **adapter)).json()
    own = (await matcher.session(opened["id"])).json()
    taken = await matcher.reply(opened, reply_session=claimed["reply_session"])
    crossed = await matcher.reply(
        opened, "client:app", reply_session=own["reply_session"], **adapter
    )
    assert {one.json()["code"] for one in (taken, crossed)} == {"reply_session_mismatch"}
    assert (await matcher.reply(opened, reply_session=own["reply_session"])).status_code == 200


async def test_reply_idempotently(matcher: Any) -> None:
    opened = (await matcher.ask()).json()
    started = (await matcher.session(opened["id"])).json()["reply_session"]
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


@pytest.mark.spec("WP-LIMIT-MESSAGES")
async def test_rejections_stop_being_recorded_at_the_limit_but_a_valid_reply_still_counts(
    matcher: Any,
) -> None:
    opened = (await matcher.ask()).json()
    matcher.database.owner.execute("update matcher.waitpoint set revision = 999")
    for _ in range(3):
        assert (await matcher.reply(opened, response={"ok": 1})).status_code == 422
    assert matcher.one("select count(*) from matcher.rejection") == 1
    assert (await matcher.reply(opened)).json()["revision"] == 1001
