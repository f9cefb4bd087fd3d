"""What Access decides: guardians, and decisions of its approval surface (design D15, D16)."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from relay_common.testing import wait
from relay_devstack.access import create_app
from relay_matcher.access import Access

CHILD, MUM, STRANGER = "subscriber:kid", "subscriber:mum", "subscriber:eve"
CONTENT = {"action": "purchase", "amount": "4.99", "child": CHILD}
REPLIER = "waitpoints:reply waitpoints:read"
PLACE = {"tenant": "acme", "environment": "test"}


@pytest.fixture(scope="module")
def access_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The stand-in for Access, on a port of its own."""
    state: Path = tmp_path_factory.mktemp("access")
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(state), log_level="error"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    wait.until(lambda: server.started, describe="the stand-in for Access to start")
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def guarded(matcher: Any, access_url: str) -> Any:
    """The matcher with Access, which knows the child's guardian."""
    object.__setattr__(matcher.desk, "access", Access(access_url))
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
    """Reply as the guardian."""
    how = {"who": MUM, "scope": REPLIER}
    path = f"/v1/waitpoints/{waitpoint['id']}"
    opened = (await matcher.call("POST", f"{path}/reply-sessions", {}, **how)).json()
    body = {
        "reply_session": opened["reply_session"],
        "subject_digest": opened["subject_digest"],
        "decision": "approve",
        **given,
    }
    return await matcher.call("POST", f"{path}/replies", body, **how)


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

    def put(reference: str, **given: Any) -> None:
        decision = {
            **PLACE,
            "responder": MUM,
            "decision": "approve",
            "subject_digest": opened["subject_digest"],
            **given,
        }
        answer = httpx.put(f"{access_url}/approvals/{reference}", json=decision)
        assert answer.status_code == 204

    put("denied", decision="deny")
    put("others", responder=STRANGER)
    put("another", subject_digest="sha-256:another")
    put("foreign", tenant="other")
    for reference in ("denied", "others", "another", "foreign", "../jwks"):
        wrong = await decide(guarded, opened, access_reference=reference)
        assert wrong.json()["code"] == "access_reference_invalid", reference
    put("right")
    done = await decide(guarded, opened, access_reference="right")
    assert done.status_code == 200, done.text
    assert done.json()["resolution"]["evidence_level"] == "access_aas_ref"


async def test_without_access_nothing_is_approved(matcher: Any) -> None:
    unavailable = await ask_guardian(matcher)
    assert (unavailable.status_code, unavailable.json()["code"]) == (503, "access_unavailable")
    object.__setattr__(matcher.desk, "access", Access("http://127.0.0.1:9"))
    again = await ask_guardian(matcher)
    assert (again.status_code, again.json()["code"]) == (503, "access_unavailable")
