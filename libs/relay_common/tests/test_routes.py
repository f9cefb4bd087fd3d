"""A plan answers as FastAPI would, and a body without a plan is not served."""

from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.routing import APIRoute
from relay_common.combiner import answer
from relay_common.http import add_routes, caller, create_app, create_router, idempotency_key, render
from relay_common.routes import plan_of
from relay_common.testing.issuer import Issuer
from relay_common.tokens import Caller, TokenVerifier
from relay_common.wire import Wire

Short = Annotated[str, Path(max_length=3)]
Name = Annotated[Caller, Depends(caller())]
Key = Annotated[str, Depends(idempotency_key)]


class Paint(Wire):
    colour: str
    coats: int = 1


async def paint(what: Short, who: Name, key: Key, given: Paint, request: Request) -> Response:
    said = [what, who.sub, key, given.colour, given.coats, request.url.path]
    return render(answer(200, said))


async def wash(what: Short, given: Paint | None = None) -> Response:
    return render(answer(200, [what, given and given.colour]))


async def look(what: Short, who: Name) -> Response:
    return render(answer(200, [what, who.sub]))


def house(issuer: Issuer, made: APIRouter) -> FastAPI:
    made.add_api_route("/paint/{what}", paint, methods=["POST"])
    made.add_api_route("/wash/{what}", wash, methods=["POST"])
    made.add_api_route("/look/{what}", look, methods=["GET"])
    app = create_app("house", "1", TokenVerifier(issuer.url, issuer.audience, issuer.fetch_jwks))
    add_routes(app, made)
    return app


REQUESTS = [
    ("POST", "/paint/wall", {"colour": "red"}),
    ("POST", "/paint/sky", {"colour": "red", "coats": 2}),
    ("POST", "/paint/sky", {"colour": 1, "coats": "two", "gloss": True}),
    ("POST", "/paint/wall", {"coats": "two"}),
    ("POST", "/paint/sky", [1]),
    ("POST", "/paint/sky", None),
    ("POST", "/wash/sky", {"colour": "red"}),
    ("POST", "/wash/sky", None),
    ("POST", "/wash/wall", {}),
    ("GET", "/look/sky", None),
    ("GET", "/look/wall", None),
    ("PUT", "/look/sky", None),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
async def test_a_plan_answers_as_fastapi_does(
    issuer: Issuer, method: str, path: str, body: object
) -> None:
    headers = {"authorization": f"Bearer {issuer.token()}", "idempotency-key": "key"}
    found: list[tuple[int, bytes]] = []
    for made in (create_router(), APIRouter()):
        transport = httpx.ASGITransport(house(issuer, made))
        async with httpx.AsyncClient(transport=transport, base_url="http://relay") as client:
            got = await client.request(method, path, headers=headers, json=body)
            found.append((got.status_code, got.content))
    assert found[0] == found[1]


def test_what_a_plan_can_give_has_one() -> None:
    made = create_router()
    made.add_api_route("/paint/{what}", paint, methods=["POST"])
    route = made.routes[0]
    assert isinstance(route, APIRoute)
    assert plan_of(route) is not None


async def test_a_query_is_left_to_fastapi(issuer: Issuer) -> None:
    async def count(upto: Annotated[int, Query(le=9)]) -> Response:
        return render(answer(200, upto))

    made = create_router()
    made.add_api_route("/count", count, methods=["GET"])
    transport = httpx.ASGITransport(house(issuer, made))
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as client:
        assert (await client.get("/count?upto=9")).json() == 9
        assert (await client.get("/count?upto=10")).status_code == 422


def test_a_body_without_a_plan_is_refused_when_the_route_is_made() -> None:
    async def tint(given: Paint, strength: int) -> Response:
        return render(answer(200, [given.colour, strength]))

    with pytest.raises(TypeError, match="a plan can give"):
        create_router().add_api_route("/tint", tint, methods=["POST"])


@pytest.mark.parametrize("included", [True, False])
async def test_a_body_is_read_by_relays_rules_however_the_router_is_served(
    issuer: Issuer, *, included: bool
) -> None:
    made = create_router()
    app = house(issuer, create_router())
    made.add_api_route("/again/{what}", wash, methods=["POST"])
    if included:
        app.include_router(made)
    else:
        add_routes(app, made)
    headers = {"authorization": f"Bearer {issuer.token()}", "content-type": "application/json"}
    twice = b'{"colour": "red", "colour": "blue"}'
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as client:
        found = await client.post("/again/sky", content=twice, headers=headers)
    assert (found.status_code, found.json()["code"]) == (400, "malformed_json")
