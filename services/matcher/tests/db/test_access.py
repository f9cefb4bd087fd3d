"""What Access decides: guardians, approvals, and relationships (design D14, D15, D16)."""

import asyncio
from datetime import timedelta
from typing import Any

import httpx
import pytest
from relay_matcher.access import Access

CHILD, MUM, STRANGER = "subscriber:kid", "subscriber:mum", "subscriber:eve"
CONTENT = {"action": "purchase", "amount": "4.99", "child": CHILD}
REPLIER = "waitpoints:reply waitpoints:read"
PLACE = {"tenant": "acme", "environment": "test"}


@pytest.fixture
def guarded(matcher: Any, access_url: str) -> Any:
    """The matcher, whose Access knows the child's guardian."""
    known = {**PLACE, "child": CHILD, "guardians": [MUM]}
    assert httpx.put(f"{access_url}/guardians", json=known).status_code == 204
    return matcher


async def ask_guardian(matcher: Any, **given: Any) -> Any:
    """Open a guardian approval of agent:a."""
    body = {
        "kind": "review",
        "profile": "guardian_approval",
        "match": {"event_type": "purchase", "correlation_key": "p1"},
        "responders": [MUM],
        "content": CONTENT,
        "actions": ["approve", "deny"],
        "expires_at": "2999-01-01T00:00:00Z",
        **given,
    }
    if "expires_at" not in given:
        later = matcher.one("select to_json(relay.now() + interval '1 hour')")
        body["expires_at"] = later
    return await matcher.call("POST", "/v1/waitpoints", body)


async def decide(matcher: Any, waitpoint: dict[str, Any], **given: Any) -> Any:
    """Reply as the guardian, under `key` if one is given."""
    how = {"who": MUM, "scope": REPLIER}
    key = given.pop("key", None)
    path = f"/v1/waitpoints/{waitpoint['id']}"
    opened = (await matcher.call("POST", f"{path}/reply-sessions", {}, **how)).json()
    body = {
        "reply_session": opened["reply_session"],
        "subject_digest": opened["subject_digest"],
        "decision": "approve",
        **given,
    }
    return await matcher.call("POST", f"{path}/replies", body, key=key, **how)


def approve(access_url: str, reference: str, opened: dict[str, Any], **given: Any) -> None:
    """Record a decision of the guardian in Access."""
    decision = {
        **PLACE,
        "responder": MUM,
        "decision": "approve",
        "subject_digest": opened["subject_digest"],
        **given,
    }
    put = httpx.put(f"{access_url}/approvals/{reference}", json=decision)
    assert put.status_code == 204


@pytest.mark.spec("WP-GUARDIAN-PROFILE", "WP-GUARDIAN-RESPONDERS", "WP-GUARDIAN-SILENCE")
async def test_guardian_approval_is_checked_when_it_opens(guarded: Any) -> None:
    stranger = await ask_guardian(guarded, responders=[MUM, STRANGER])
    assert (stranger.status_code, stranger.json()["code"]) == (422, "guardian_not_listed")
    assert stranger.json()["errors"][0]["pointer"] == "/responders/1"
    nobody = await ask_guardian(guarded, content={"action": "purchase"})
    assert nobody.json()["errors"][0]["pointer"] == "/content/child"
    silence = await ask_guardian(guarded, default_response="approve")
    assert (silence.status_code, silence.json()["code"]) == (422, "default_response_forbidden")
    without = await ask_guardian(guarded, expires_at=None)
    assert without.json()["code"] == "deadline_required"
    opened = await ask_guardian(guarded)
    assert opened.status_code == 201
    assert opened.json()["protocol_state"] == {
        "a2a": "TASK_STATE_AUTH_REQUIRED",
        "mcp": "input_required",
    }


@pytest.mark.spec("WP-GUARDIAN-LEVEL", "WP-EVIDENCE-ACCESS", "WP-PROTOCOL-AUTH")
async def test_guardian_approval_closes_only_with_a_decision_of_access(
    guarded: Any, access_url: str
) -> None:
    opened = (await ask_guardian(guarded)).json()
    bare = await decide(guarded, opened)
    assert (bare.status_code, bare.json()["code"]) == (403, "access_reference_required")
    unknown = await decide(guarded, opened, access_reference="none")
    assert (unknown.status_code, unknown.json()["code"]) == (403, "access_reference_invalid")

    approve(access_url, "denied", opened, decision="deny")
    approve(access_url, "others", opened, responder=STRANGER)
    approve(access_url, "another", opened, subject_digest="sha-256:another")
    approve(access_url, "foreign", opened, tenant="other")
    for reference in ("denied", "others", "another", "foreign", "../jwks"):
        wrong = await decide(guarded, opened, access_reference=reference)
        assert wrong.json()["code"] == "access_reference_invalid", reference
    approve(access_url, "right", opened)
    done = await decide(guarded, opened, access_reference="right")
    assert done.status_code == 200, done.text
    assert done.json()["resolution"]["evidence_level"] == "access_aas_ref"
    listed = await guarded.call("GET", f"/v1/waitpoints/{opened['id']}/rejections")
    reasons = [one["reason"] for one in listed.json()["items"]]
    assert reasons == ["access_reference_required"] + ["access_reference_invalid"] * 6


async def test_a_reference_tells_nobody_what_is_there(guarded: Any) -> None:
    """Unknown, foreign and malformed ids are one 404, with a reference as without (design D6)."""
    opened = (await ask_guardian(guarded)).json()
    given = {
        "reply_session": "rs_none",
        "subject_digest": opened["subject_digest"],
        "decision": "approve",
        "access_reference": "none",
    }
    asked = [(opened["id"], "other"), ("wp_AAAAAAAAAAAAAAAAAAAAAA", "acme"), ("x", "acme")]
    found = [
        await guarded.call(
            "POST", f"/v1/waitpoints/{one}/replies", given, who=MUM, scope=REPLIER, tenant=tenant
        )
        for one, tenant in asked
    ]
    assert {answer.status_code for answer in found} == {404}
    assert len({answer.content for answer in found}) == 1


async def test_a_repeat_does_not_need_access_again(guarded: Any, access_url: str) -> None:
    """What was done is told again, although Access is gone (design D20)."""

    async def everything() -> list[httpx.Response]:
        opened = await guarded.call("POST", "/v1/waitpoints", body, key="open")
        early = await guarded.call("POST", "/v1/replies", held, key="early", **how)
        path = f"/v1/waitpoints/{opened.json()['id']}/replies"
        replied = await guarded.call("POST", path, {**reply, **started}, key="reply", **how)
        return [opened, early, replied]

    how = {"who": MUM, "scope": REPLIER}
    later = guarded.one("select to_json(relay.now() + interval '1 hour')")
    match = {"event_type": "purchase", "correlation_key": "p1"}
    body = {
        "kind": "review",
        "profile": "guardian_approval",
        "match": match,
        "responders": [MUM],
        "content": CONTENT,
        "actions": ["approve"],
        "expires_at": later,
    }
    first = await guarded.call("POST", "/v1/waitpoints", body, key="open")
    digest = first.json()["subject_digest"]
    reply = {"subject_digest": digest, "decision": "approve", "access_reference": "ok"}
    held = {**reply, "waiter": "agent:b", **match}
    approve(access_url, "ok", first.json())
    path = f"/v1/waitpoints/{first.json()['id']}/reply-sessions"
    opened_session = await guarded.call("POST", path, {}, **how)
    started = {"reply_session": opened_session.json()["reply_session"]}
    done = await everything()
    assert [one.status_code for one in done] == [201, 202, 200]
    object.__setattr__(guarded.desk, "access", Access("http://127.0.0.1:9"))
    again = await everything()
    assert [one.content for one in again] == [one.content for one in done]
    assert {one.headers["idempotent-replayed"] for one in again} == {"true"}
    other = {**body, "content": {**CONTENT, "amount": "5.00"}}
    reused = await guarded.call("POST", "/v1/waitpoints", other, key="open")
    assert (reused.status_code, reused.json()["code"]) == (422, "idempotency_key_reused")
    fresh = await guarded.call("POST", "/v1/waitpoints", other, key="another")
    assert (fresh.status_code, fresh.json()["code"]) == (503, "access_unavailable")


async def test_without_access_nothing_is_asked_or_approved(matcher: Any) -> None:
    for url in (None, "http://127.0.0.1:9"):
        object.__setattr__(matcher.desk, "access", Access(url))
        for ask in (ask_guardian, ask_people):
            refused = await ask(matcher)
            found = (refused.status_code, refused.json()["code"])
            assert found == (503, "access_unavailable"), (url, ask)
        assert (await matcher.open(str(url))).status_code == 201, "events need no Access"
    assert matcher.one("select count(*) from matcher.waitpoint where kind <> 'event'") == 0


async def ask_people(matcher: Any, *people: str, **given: Any) -> Any:
    """Open a review of agent:a to `people`."""
    match = {"event_type": "asked", "correlation_key": "p2"}
    return await ask_guardian(
        matcher, profile=None, match=match, responders=list(people or (MUM,)), **given
    )


def relate(access_url: str, sender: str, recipient: str, relationship: str) -> None:
    """Record a relationship in Access."""
    fact = {**PLACE, "sender": sender, "recipient": recipient, "relationship": relationship}
    assert httpx.put(f"{access_url}/relationships", json=fact).status_code == 204


def told(matcher: Any) -> list[tuple[str, str, str | None]]:
    """Return what went to responders: recipient, type, what the sender is to them."""
    return [
        (m.record["owner"], m.record["type"].removeprefix("waitpoint."), m.record["relationship"])
        for m in matcher.announced("relay.mailbox")
        if m.record["kind"] == "message"
    ]


@pytest.mark.spec("FC-UNKNOWN")
@pytest.mark.parametrize("ending", ["cancel", "expire"])
async def test_responders_are_told_what_the_waiter_is_to_them(
    matcher: Any, access_url: str, clock: Any, ending: str
) -> None:
    ann, bob = f"subscriber:ann-{ending}", f"subscriber:bob-{ending}"
    relate(access_url, "agent:a", ann, "contact")
    relate(access_url, bob, "agent:a", "contact")
    opened = (await ask_people(matcher, ann, bob)).json()
    assert told(matcher) == [(ann, "invitation", "contact"), (bob, "invitation", "unknown")]
    # What Access says later changes nothing: the second message goes where the first one went.
    relate(access_url, "agent:a", bob, "contact")
    if ending == "cancel":
        await matcher.call("POST", f"/v1/waitpoints/{opened['id']}/cancel")
    else:
        clock.shift(timedelta(hours=2))
        assert matcher.expire_due() == 1
    assert told(matcher) == [
        (ann, "no_reply_needed", "contact"),
        (bob, "no_reply_needed", "unknown"),
    ]


async def test_access_is_asked_for_ten_responders_at_a_time(matcher: Any) -> None:
    crowd = Crowd()
    client = httpx.AsyncClient(transport=httpx.ASGITransport(crowd.answer))
    object.__setattr__(matcher.desk, "access", Access("http://access", client))
    people = [f"subscriber:{number}" for number in range(100)]
    opened = await ask_people(matcher, *people)
    assert opened.status_code == 201, opened.text
    assert (crowd.answered, crowd.most) == (100, 10)
    assert {relationship for _, _, relationship in told(matcher)} == {"contact"}


class Crowd:
    """An Access that answers only when ten have asked."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[None]] = []
        self.here = self.most = self.answered = 0

    async def answer(self, _scope: Any, _receive: Any, send: Any) -> None:
        """Answer one request."""
        self.here += 1
        self.most = max(self.most, self.here)
        self.waiting.append(asyncio.get_running_loop().create_future())
        mine = self.waiting[-1]
        if len(self.waiting) == 10:
            for one in self.waiting:
                one.set_result(None)
            self.waiting.clear()
        await mine
        self.here -= 1
        self.answered += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"relationship":"contact"}'})


@pytest.mark.parametrize("answer", [b"{}", b'{"relationship":""}', b'{"relationship":"a\\u0000"}'])
async def test_an_answer_in_another_form_is_none(matcher: Any, answer: bytes) -> None:
    def odd(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=answer)

    client = httpx.AsyncClient(transport=httpx.MockTransport(odd))
    object.__setattr__(matcher.desk, "access", Access("http://access", client))
    refused = await ask_people(matcher)
    assert (refused.status_code, refused.json()["code"]) == (503, "access_unavailable")
