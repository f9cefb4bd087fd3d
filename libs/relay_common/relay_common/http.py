"""The HTTP side, the same in every service: problems, callers, idempotency keys, strict bodies."""

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, cast

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic_core import ErrorDetails
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Match, Route

from relay_common import limits
from relay_common.combiner import Answer, answer, refusal
from relay_common.errors import (
    FieldError,
    IdempotencyKeyInvalid,
    IdempotencyKeyRequired,
    InsufficientScope,
    MalformedRequest,
    MethodNotAllowed,
    NotFound,
    RelayError,
    ValidationFailed,
)
from relay_common.idempotency import Attempt, fingerprint
from relay_common.middleware import BodyLimit, Edge
from relay_common.routes import StrictRequest, StrictRoute, Verifier, authenticate
from relay_common.tokens import Caller
from relay_common.wire import limit_in, refused, told

KEY = re.compile(r"[\x21-\x7e]{1,255}")
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\]){1,255})"')
PROBLEM: dict[int | str, dict[str, object]] = {
    "default": {
        "description": "Problem (RFC 9457); `code` is stable",
        "content": {"application/problem+json": {"schema": {"type": "object"}}},
    }
}
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


class Ready(Protocol):
    """Tells what is missing (runtime.Readiness)."""

    def report(self) -> Mapping[str, str | None]:
        """Return each check: None when it is fine, else what is missing."""
        ...


def create_router(prefix: str = "") -> APIRouter:
    """Return a router for the routes of one noun."""
    return APIRouter(prefix=prefix, route_class=StrictRoute, responses=PROBLEM)


def add_routes(app: FastAPI, *routers: APIRouter) -> None:
    """Let `app` serve the routes of `routers` as its own, asked one after the other."""
    for router in routers:
        app.router.routes.extend(router.routes)


def create_app(
    title: str,
    version: str,
    verifier: Verifier,
    lifespan: Lifespan | None = None,
    request_limit: limits.Limit = limits.REQUEST_BYTES,
) -> FastAPI:
    """Return the app of a service: every fault a problem, bodies at most `request_limit` long."""
    app = FastAPI(
        title=title,
        version=version,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Edge traces and counts; FastAPI's own logs would quote what exceptions say.
        telemetry={"tracing": False, "metrics": False, "logs": False},
        responses=PROBLEM,
    )
    app.router.route_class = StrictRoute
    app.state.verifier = verifier
    app.add_middleware(BodyLimit, name=request_limit.name, max_bytes=request_limit.default)
    app.add_middleware(Edge)
    app.add_exception_handler(RelayError, on_relay_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_api_route("/v1/limits", get_limits, methods=["GET"])
    return app


async def get_limits() -> Response:
    """Return every published limit (spec, Limits)."""
    return render(answer(200, limits.published()))


def render(found: Answer) -> Response:
    """Return the response of an answer."""
    return Response(found.body, found.status, dict(found.headers))


async def on_relay_error(_request: Request, error: Exception) -> Response:
    """Render an error of the tree."""
    return render(refusal(cast(RelayError, error)))


async def on_invalid(_request: Request, error: Exception) -> Response:
    """Render what FastAPI found: faults of the body by pointer, others by parameter."""
    faults = cast(Sequence[ErrorDetails], cast(RequestValidationError, error).errors())
    in_body = [
        cast(ErrorDetails, {**fault, "loc": fault["loc"][1:]})
        for fault in faults
        if fault["loc"][0] == "body"
    ]
    if in_body:
        return render(refusal(refused(in_body)))
    errors = [FieldError(f"?{fault['loc'][-1]}", told(fault)) for fault in faults]
    return render(refusal(ValidationFailed(errors=errors, limit=limit_in(faults))))


async def on_http_error(request: Request, error: Exception) -> Response:
    """Render what Starlette raises by itself: no such route, no such method, unreadable."""
    found = cast(HTTPException, error)
    by_status = {404: NotFound, 405: MethodNotAllowed}
    problem = render(refusal(by_status.get(found.status_code, MalformedRequest)()))
    problem.headers.update(found.headers or {})
    if found.status_code == 405:
        problem.headers["allow"] = ", ".join(allowed_methods(request))
    return problem


def allowed_methods(request: Request) -> list[str]:
    """Return the methods of this path: each may have a route of its own (RFC 9110, 15.5.6)."""
    routes = cast(Starlette, request.app).router.routes
    asked = [(method, {**request.scope, "method": method}) for method in METHODS]
    return [m for m, scope in asked if any(r.matches(scope)[0] is Match.FULL for r in routes)]


def caller(*scopes: str) -> Callable[[Request], Awaitable[Caller]]:
    """Return a dependency: who calls, with at least one of `scopes` (none named: any caller)."""

    async def checked(request: Request) -> Caller:
        found = await authenticate(request)
        if scopes and found.scopes.isdisjoint(scopes):
            raise InsufficientScope(
                f"Expected a token with the scope {' or '.join(scopes)}, found others.",
                scope=" ".join(scopes),
            )
        return found

    return checked


async def idempotency_key(request: Request) -> str:
    """Return the Idempotency-Key, quoted (RFC 8941 string) or bare (design D20).

    Raises IdempotencyKeyRequired or IdempotencyKeyInvalid.
    """
    given = request.headers.getlist("idempotency-key")
    if not given:
        raise IdempotencyKeyRequired
    if len(given) == 1 and (quoted := QUOTED.fullmatch(given[0])):
        return re.sub(r"\\(.)", r"\1", quoted[1])
    if len(given) == 1 and KEY.fullmatch(given[0]) and not given[0].startswith('"'):
        return given[0]
    raise IdempotencyKeyInvalid


def attempt(*leave_out: str) -> Callable[[Request], Awaitable[Attempt]]:
    """Return a dependency: this try of a mutating request.

    The payload without the fields of `leave_out` must be the same at every try of a key.
    """

    async def tried(request: Request) -> Attempt:
        key = await idempotency_key(request)
        who = await authenticate(request)
        return Attempt(
            tenant=who.tenant,
            environment=who.environment,
            client=who.sub,
            route=f"{request.method} {route_path(request)}",
            key=key,
            fingerprint=await payload(request, leave_out),
        )

    return tried


def route_path(request: Request) -> str:
    """Return the path of the route that serves `request`, with its parameters' names."""
    route = request.scope.get("route")
    return request.url.path if route is None else str(route.path)


async def payload(request: Request, leave_out: Collection[str]) -> bytes:
    """Return the fingerprint of path, query and body; a route without a model takes any bytes."""
    raw = await request.body()
    body = await request.json() if raw and isinstance(request, StrictRequest) else raw.hex()
    target = f"{request.scope['path']}?{request.scope['query_string'].decode('latin-1')}"
    return fingerprint(body, target, leave_out)


def internal_app(readiness: Ready) -> Starlette:
    """Return `/healthz`, `/readyz` and `/metrics`, for the internal port."""

    async def healthz(_request: Request) -> Response:
        return render(answer(200, {"status": "alive"}))

    async def readyz(_request: Request) -> Response:
        report = readiness.report()
        ready = all(missing is None for missing in report.values())
        checks = {name: missing or "ok" for name, missing in report.items()}
        return render(answer(200 if ready else 503, {"ready": ready, "checks": checks}))

    async def metrics(_request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", metrics),
        ]
    )
