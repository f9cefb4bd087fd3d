"""The HTTP side: every fault is a problem, nothing unknown is told apart, nothing crashes."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Mapping
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI
from relay_common import middleware
from relay_common.combiner import answer
from relay_common.errors import StoreUnavailable, WaitpointNotFound
from relay_common.http import (
    add_routes,
    attempt,
    caller,
    create_app,
    create_router,
    idempotency_key,
    internal_app,
    render,
)
from relay_common.idempotency import Attempt
from relay_common.testing.issuer import Issuer
from relay_common.tokens import Caller, TokenVerifier
from relay_common.wire import KeyText, Time, Wire, rfc3339
from starlette.responses import Response
from starlette.types import Message
from structlog.testing import capture_logs


class Match(Wire):
    event_type: KeyText


class Thing(Wire):
    match: Match
    expires_at: Time | None = None


GOOD = {"match": {"event_type": "paid"}}
router = create_router("/v1")


@router.post("/things")
async def post_thing(
    given: Thing,
    who: Annotated[Caller, Depends(caller("things:write"))],
    tried: Annotated[Attempt, Depends(attempt("expires_at"))],
) -> Response:
    body = {
        "sub": who.sub,
        "route": tried.route,
        "key": tried.key,
        "fingerprint": tried.fingerprint.hex(),
        "expires_at": rfc3339(given.expires_at) if given.expires_at else None,
    }
    return render(answer(201, body))


@router.post("/things/{id}/cancel")
async def cancel(id: str, key: Annotated[str, Depends(idempotency_key)]) -> Response:
    return render(answer(200, {"key": key}))


@router.get("/things/{id}")
async def get_thing(id: str, who: Annotated[Caller, Depends(caller())]) -> Response:
    raise WaitpointNotFound


@router.get("/list")
async def list_things(limit: int = 10) -> Response:
    return render(answer(200, limit))


@router.post("/list")
async def add_to_list() -> Response:
    return render(answer(201, None))


@router.get("/boom")
async def boom() -> Response:
    raise ValueError("a secret")


@router.get("/down")
async def down() -> Response:
    raise StoreUnavailable from OSError("host db.internal refused")


@pytest.fixture
def app(issuer: Issuer) -> FastAPI:
    verifier = TokenVerifier(issuer.url, issuer.audience, issuer.fetch_jwks)
    made = create_app("things", "1", verifier)
    add_routes(made, router)
    return made


@pytest.fixture
async def client(app: FastAPI, issuer: Issuer) -> AsyncIterator[httpx.AsyncClient]:
    headers = {
        "authorization": f"Bearer {issuer.token(scope='things:write')}",
        "idempotency-key": "key-1",
    }
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://relay", headers=headers
    ) as made:
        yield made


def code(found: httpx.Response, status: int) -> str:
    assert found.status_code == status, found.text
    assert found.headers["content-type"] == "application/problem+json"
    body = found.json()
    assert body["status"] == status
    assert body["type"] == f"urn:relay:problem:{body['code']}"
    assert body["title"]
    assert body["detail"]
    return body["code"]


async def test_a_good_request_is_answered(client: httpx.AsyncClient):
    found = await client.post(
        "/v1/things", json={**GOOD, "expires_at": "2030-01-01T01:00:00+01:00"}
    )
    assert found.status_code == 201
    body = found.json()
    assert body["expires_at"] == "2030-01-01T00:00:00.000000Z"
    assert (body["sub"], body["route"], body["key"]) == ("client:test", "POST /v1/things", "key-1")


async def test_the_first_deadline_stands_so_it_is_not_in_the_fingerprint(client: httpx.AsyncClient):
    bodies = [
        {**GOOD, "expires_at": "2030-01-01T00:00:00Z"},
        {**GOOD, "expires_at": "2031-01-01T00:00:00Z"},
        {"match": {"event_type": "other"}, "expires_at": "2030-01-01T00:00:00Z"},
    ]
    found = [(await client.post("/v1/things", json=b)).json()["fingerprint"] for b in bodies]
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("path", "method", "status", "expected"),
    [
        ("/nothing", "GET", 404, "not_found"),
        ("/v1/things/", "GET", 404, "not_found"),
        ("/v1/things/%00", "GET", 404, "waitpoint_not_found"),
        ("/v1/things/wp_1", "GET", 404, "waitpoint_not_found"),
        ("/v1/things", "PUT", 405, "method_not_allowed"),
        ("/v1/list?limit=x", "GET", 422, "validation_failed"),
        ("/v1/list?limit=%00", "GET", 422, "validation_failed"),
        ("/v1/boom", "GET", 500, "internal_error"),
        ("/v1/down", "GET", 503, "store_unavailable"),
    ],
)
async def test_every_fault_is_a_problem(
    client: httpx.AsyncClient, path: str, method: str, status: int, expected: str
):
    with capture_logs() as logged:
        found = await client.request(method, path)
    assert code(found, status) == expected
    assert [line["event"] for line in logged] == (["request_failed"] if status == 500 else [])
    assert "secret" not in found.text
    assert "db.internal" not in found.text


async def test_an_unknown_parameter_of_the_url_is_refused(client: httpx.AsyncClient):
    found = await client.get("/v1/list?lmit=3&after=x&limit=3")
    assert code(found, 422) == "validation_failed"
    assert [one["pointer"] for one in found.json()["errors"]] == ["?after", "?lmit"]
    assert "expected one of limit" in found.text
    assert (await client.get("/v1/list?limit=3")).status_code == 200
    del client.headers["authorization"]
    assert code(await client.get("/v1/list?lmit=3"), 401) == "invalid_token"


async def test_what_goes_with_a_status_is_in_its_headers(client: httpx.AsyncClient):
    assert (await client.put("/v1/things")).headers["allow"] == "POST"
    assert (await client.put("/v1/list")).headers["allow"] == "GET, POST", "of all its routes"
    assert (await client.get("/v1/down")).headers["retry-after"] == "1"
    assert (await client.get("/v1/down")).json()["retry_after"] == 1


async def test_unknown_ids_get_the_same_bytes(client: httpx.AsyncClient):
    ids = [
        "wp_AAAAAAAAAAAAAAAAAAAAAA",
        "wp_BBBBBBBBBBBBBBBBBBBBBA",
        "x",
        "%F0%9F%98%80",
        "wp_%00%ff",
    ]
    found = [await client.get(f"/v1/things/{one}") for one in ids]
    assert len({one.content for one in found}) == 1
    assert len({tuple(sorted(one.headers.items())) for one in found}) == 1


@pytest.mark.parametrize(
    ("content", "status", "expected"),
    [
        (b"{", 400, "malformed_json"),
        (b'{"match": NaN}', 400, "malformed_json"),
        (b'{"a":1,"a":1}', 400, "malformed_json"),
        (b'{"match":{"event_type":"\\ud800"}}', 400, "malformed_json"),
        (b'{"match":{"event_type":"\\u0000"}}', 400, "malformed_json"),
        (b"[" * 100_000, 400, "malformed_json"),
        (b"\xff\xfe", 400, "malformed_json"),
        (b"", 422, "validation_failed"),
        (b"null", 422, "validation_failed"),
        (b"[]", 422, "validation_failed"),
        (b"{}", 422, "validation_failed"),
        (b'{"match":{"event_type":"x","y":1}}', 422, "unknown_field"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_bodies_outside_the_contract(
    client: httpx.AsyncClient, content: bytes, status: int, expected: str
):
    found = await client.post(
        "/v1/things", content=content, headers={"content-type": "application/json; charset=utf-8"}
    )
    assert code(found, status) == expected


async def test_an_unknown_field_is_pointed_at(client: httpx.AsyncClient):
    found = await client.post("/v1/things", json={"match": {"event_type": "x", "wat/er": 1}})
    assert found.json()["errors"][0]["pointer"] == "/match/wat~1er"


@pytest.mark.parametrize("media", ["text/plain", "", "application/xml", "multipart/form-data"])
async def test_other_media_types_are_refused(client: httpx.AsyncClient, media: str):
    found = await client.post(
        "/v1/things", content=json.dumps(GOOD), headers={"content-type": media} if media else {}
    )
    assert code(found, 415) == "unsupported_media_type"


async def test_compressed_bodies_are_refused(client: httpx.AsyncClient):
    packed = gzip.compress(json.dumps(GOOD).encode())
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    found = await client.post("/v1/things", content=packed, headers=headers)
    assert code(found, 415) == "unsupported_media_type"


@pytest.mark.parametrize("declared", [True, False], ids=["declared", "streamed"])
async def test_a_body_over_the_limit_is_refused_with_the_limit(
    client: httpx.AsyncClient, declared: bool
):
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 20_000

    content = b" " * 2_000_000 if declared else chunks()
    found = await client.post(
        "/v1/things", content=content, headers={"content-type": "application/json"}
    )
    assert code(found, 413) == "payload_too_large"
    limit = found.json()["limit"]
    assert (limit["name"], limit["value"]) == ("request_bytes", 1024 * 1024)
    # A streamed body is left where it went over, not read to its end.
    assert limit["got"] == (2_000_000 if declared else 1_060_000)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, "Bearer"),
        ({"authorization": "Basic eDp5"}, "Bearer"),
        ({"authorization": "Bearer"}, "Bearer"),
        ({"authorization": "Bearer nonsense"}, "Bearer"),
    ],
    ids=repr,
)
async def test_without_a_valid_token_nothing_is_read(
    app: FastAPI, headers: Mapping[str, str], expected: str
):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        given = {"content-type": "application/json", **headers}
        found = await client.post("/v1/things", content=b"{broken", headers=given)
    assert code(found, 401) == "invalid_token"
    assert found.headers["www-authenticate"].startswith(expected)


async def test_a_missing_scope_is_named(client: httpx.AsyncClient, issuer: Issuer):
    headers = {"authorization": f"Bearer {issuer.token(scope='other')}"}
    found = await client.post("/v1/things", json=GOOD, headers=headers)
    assert code(found, 403) == "insufficient_scope"
    assert 'scope="things:write"' in found.headers["www-authenticate"]


@pytest.mark.parametrize(
    ("given", "key"),
    [("abc-1", "abc-1"), ('"abc 1"', "abc 1"), ('"a\\"b"', 'a"b'), ("x" * 255, "x" * 255)],
)
async def test_idempotency_keys_come_quoted_or_bare(
    client: httpx.AsyncClient, given: str, key: str
):
    found = await client.post("/v1/things/1/cancel", headers={"idempotency-key": given})
    assert found.json() == {"key": key}


@pytest.mark.parametrize("given", ["", "a b", '"open', "x" * 256, "a\tb", '""'])
async def test_other_idempotency_keys_are_refused(client: httpx.AsyncClient, given: str):
    found = await client.post("/v1/things/1/cancel", headers={"idempotency-key": given})
    assert code(found, 400) == "idempotency_key_invalid"


async def test_two_idempotency_keys_are_none(client: httpx.AsyncClient):
    twice = [("idempotency-key", "a"), ("idempotency-key", "b")]
    found = await client.post("/v1/things/1/cancel", headers=twice)
    assert code(found, 400) == "idempotency_key_invalid"


async def test_a_missing_idempotency_key_is_asked_for(app: FastAPI, issuer: Issuer):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        headers = {"authorization": f"Bearer {issuer.token(scope='things:write')}"}
        found = await client.post("/v1/things", json=GOOD, headers=headers)
    assert code(found, 400) == "idempotency_key_required"


async def test_limits_are_open_to_everyone(app: FastAPI):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        found = await client.get("/v1/limits")
    assert {"name", "value", "upper", "unit", "description"} == set(found.json()["limits"][0])


async def test_the_openapi_document_speaks_of_problems(client: httpx.AsyncClient):
    found = (await client.get("/openapi.json")).json()
    responses = found["paths"]["/v1/things"]["post"]["responses"]
    assert "application/problem+json" in responses["default"]["content"]
    assert "422" not in responses


class Readiness:
    def __init__(self, **checks: str | None) -> None:
        self.checks = checks

    def report(self) -> Mapping[str, str | None]:
        return self.checks


@pytest.mark.parametrize(
    ("checks", "status"),
    [({"database": None}, 200), ({"database": None, "kafka": "no answer"}, 503)],
)
async def test_readiness_shows_what_is_missing(checks: dict[str, str | None], status: int):
    app = internal_app(Readiness(**checks))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        found = await client.get("/readyz")
        assert found.status_code == status
        assert found.json()["checks"] == {name: text or "ok" for name, text in checks.items()}
        assert (await client.get("/healthz")).status_code == 200
        assert "relay_http_request_seconds" in (await client.get("/metrics")).text


async def drive(app: FastAPI, messages: list[Message], headers: Mapping[str, str]) -> list[Message]:
    """Serve one POST whose body comes as `messages`, and return what was sent."""
    sent: list[Message] = []
    source = iter(messages)

    async def receive() -> Message:
        await asyncio.sleep(0)
        return next(source)

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/things",
        "raw_path": b"/v1/things",
        "query_string": b"",
        "headers": [(n.encode(), v.encode()) for n, v in headers.items()],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("relay", 80),
        "client": ("127.0.0.1", 1),
        "root_path": "",
    }
    await app(scope, receive, send)
    return sent


async def test_many_tiny_chunks_are_one_body(app: FastAPI, issuer: Issuer):
    body = json.dumps(GOOD).encode()
    messages: list[Message] = [
        {"type": "http.request", "body": body[i : i + 1], "more_body": i < len(body) - 1}
        for i in range(len(body))
    ]
    token = issuer.token(scope="things:write")
    headers = {
        "authorization": f"Bearer {token}",
        "content-type": "application/json",
        "idempotency-key": "k",
    }
    sent = await drive(app, messages, headers)
    assert sent[0]["status"] == 201


async def test_a_client_that_hangs_up_gets_no_answer_and_breaks_nothing(
    app: FastAPI, issuer: Issuer
):
    messages: list[Message] = [
        {"type": "http.request", "body": b'{"match"', "more_body": True},
        {"type": "http.disconnect"},
    ]
    headers = {
        "authorization": f"Bearer {issuer.token(scope='things:write')}",
        "content-type": "application/json",
        "idempotency-key": "k",
    }
    assert await drive(app, messages, headers) == []


async def test_a_body_that_does_not_come_is_not_waited_for(
    app: FastAPI, issuer: Issuer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(middleware, "BODY_SECONDS", 0.05)
    never = asyncio.Event()

    async def trickle() -> AsyncIterator[bytes]:
        yield b'{"match"'
        await never.wait()

    headers = {
        "authorization": f"Bearer {issuer.token(scope='things:write')}",
        "content-type": "application/json",
    }
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        found = await client.post("/v1/things", content=trickle(), headers=headers)
    assert code(found, 408) == "request_timeout"
