"""The Access stand-in gives tokens that Relay accepts; the gateway finds the right service."""

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import httpx
import pytest
import uvicorn
from relay_common.tokens import TokenVerifier
from relay_devstack import access, gateway
from relay_devstack.errors import MalformedGrantError
from relay_devstack.tokens import AUDIENCE, ISSUER, Grant, SigningKey
from relay_devstack.waiting import until_none
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PLACE = {"tenant": "acme", "environment": "prod"}


@pytest.fixture
async def stand_in(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(access.create_app(tmp_path))
    async with httpx.AsyncClient(transport=transport, base_url="http://access") as client:
        yield client


async def test_its_tokens_pass_the_checks_of_relay(stand_in: httpx.AsyncClient) -> None:
    wanted = {**PLACE, "sub": "client:shop", "scope": "events:write events:read"}
    answer = await stand_in.post("/token", json=wanted)

    async def jwks() -> Mapping[str, object]:
        return (await stand_in.get("/jwks")).json()

    caller = await TokenVerifier(ISSUER, AUDIENCE, jwks).verify(answer.json()["access_token"])
    assert (caller.sub, caller.tenant, caller.environment) == ("client:shop", "acme", "prod")
    assert caller.scopes == {"events:write", "events:read"}


async def test_the_key_survives_a_restart(stand_in: httpx.AsyncClient, tmp_path: Path) -> None:
    again = httpx.ASGITransport(access.create_app(tmp_path))
    async with httpx.AsyncClient(transport=again, base_url="http://access") as client:
        assert (await client.get("/jwks")).json() == (await stand_in.get("/jwks")).json()


@pytest.mark.parametrize("sub", ["shop", "client:", "client:a b", "robot:x"])
def test_a_sub_that_cannot_be_is_a_sentence(sub: str, tmp_path: Path) -> None:
    key = SigningKey(tmp_path)
    key.create()
    with pytest.raises(MalformedGrantError, match="sub must be"):
        key.token(Grant(sub, "acme", "prod", ""))


async def test_a_stranger_is_unknown_until_access_knows_him(stand_in: httpx.AsyncClient) -> None:
    pair = {**PLACE, "sender": "agent:a", "recipient": "agent:b"}
    assert (await stand_in.get("/relationships", params=pair)).json()["relationship"] == "unknown"
    await stand_in.put("/relationships", json={**pair, "relationship": "contact"})
    assert (await stand_in.get("/relationships", params=pair)).json()["relationship"] == "contact"
    elsewhere = {**pair, "tenant": "other"}
    answer = await stand_in.get("/relationships", params=elsewhere)
    assert answer.json()["relationship"] == "unknown"


async def test_guardians_and_decisions_are_kept(stand_in: httpx.AsyncClient) -> None:
    child = {**PLACE, "child": "subscriber:kim"}
    await stand_in.put("/guardians", json={**child, "guardians": ["subscriber:lee"]})
    answer = await stand_in.get("/guardians", params=child)
    assert answer.json()["guardians"] == ["subscriber:lee"]
    decision = {"responder": "subscriber:lee", "decision": "approve", "subject_digest": "sha-256:x"}
    await stand_in.put("/approvals/aas_1", json={**PLACE, **decision})
    found = await stand_in.get("/approvals/aas_1", params=PLACE)
    assert found.json()["subject_digest"] == "sha-256:x"
    assert (await stand_in.get("/approvals/aas_2", params=PLACE)).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "service"),
    [
        ("POST", "/v1/events", "intake"),
        ("GET", "/v1/events", "matcher"),
        ("GET", "/v1/events/ev_1", "matcher"),
        ("POST", "/v1/messages", "intake"),
        ("POST", "/v1/capture/e1", "intake"),
        ("POST", "/v1/topics/news/messages", "intake"),
        ("PUT", "/v1/topics/news/subscriptions/me", "mailbox"),
        ("GET", "/v1/agents/agent:a/held-notifications", "intake"),
        ("POST", "/v1/waitpoints", "matcher"),
        ("POST", "/v1/waitpoints/wp_1/replies", "matcher"),
        ("GET", "/v1/waitpoints/wp_1/escalation", "escalation"),
        ("POST", "/v1/replies", "matcher"),
        ("GET", "/v1/mailboxes/me/records", "mailbox"),
        ("GET", "/v1/triggers/t1/wait", "mailbox"),
        ("PUT", "/v1/surfaces/s1", "escalation"),
        ("GET", "/v1/escalation-policies", "escalation"),
        ("GET", "/v1/limits", "matcher"),
        ("PUT", "/v1/settings", "matcher"),
        ("GET", "/v1/settings/matcher", "matcher"),
        ("PUT", "/v1/settings/mailbox", "mailbox"),
        ("GET", "/v1/settings/mailboxes", "matcher"),
        ("GET", "/v1/mailboxes/agent%3Aa%2Fb/records", "mailbox"),
        ("POST", "/v1/topics/news%2Fsport/messages", "intake"),
        ("GET", "/v1/eventsx", None),
        ("GET", "/metrics", None),
    ],
)
def test_a_path_leads_to_its_service(method: str, path: str, service: str | None) -> None:
    assert gateway.service_for(method, path) == service


async def echo(request: Request) -> Response:
    seen = f"{request.method} {request.url.path}?{request.url.query} ".encode()
    return Response(seen + await request.body(), 201, {"Idempotent-Replayed": "true"})


@pytest.fixture
def upstream() -> Iterator[str]:
    app = Starlette(routes=[Route("/{path:path}", echo, methods=["POST", "GET"])])
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    running = threading.Thread(target=server.run)
    running.start()
    until_none(lambda: None if server.started else "not started", 10, "the upstream")
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    running.join()


async def test_the_gateway_passes_on_what_it_gets(upstream: str) -> None:
    app = gateway.create_app({"intake": upstream, "matcher": "http://127.0.0.1:9"})
    transport = httpx.ASGITransport(app)
    relay = httpx.AsyncClient(transport=transport, base_url="http://relay")
    async with app.router.lifespan_context(app), relay as client:
        answer = await client.post("/v1/capture/a%2Fb?x=1&y=%20", content=b"raw \x00 bytes")
        assert answer.status_code == 201
        assert answer.headers["Idempotent-Replayed"] == "true"
        assert answer.content == b"POST /v1/capture/a/b?x=1&y=%20 raw \x00 bytes"
        absent = await client.get("/v1/waitpoints")
        assert (absent.status_code, absent.json()["code"]) == (503, "service_unavailable")
        assert (await client.get("/v1/else")).json()["code"] == "not_found"
