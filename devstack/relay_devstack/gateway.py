"""One URL in front of the services, for development: a streaming proxy by path (design §5)."""

import re
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

# First match wins: method and path, then who serves it.
ROUTES = tuple(
    (re.compile(pattern), service)
    for pattern, service in (
        (r"POST /v1/events$", "intake"),
        (r"\w+ /v1/(messages|capture)(/|$)", "intake"),
        (r"\w+ /v1/topics/[^/]+/messages$", "intake"),
        (r"\w+ /v1/agents/[^/]+/held-notifications(/|$)", "intake"),
        (r"\w+ /v1/waitpoints/[^/]+/escalation$", "escalation"),
        (r"\w+ /v1/(escalation-policies|surfaces)(/|$)", "escalation"),
        (r"\w+ /v1/(mailboxes|triggers)(/|$)", "mailbox"),
        (r"\w+ /v1/topics/[^/]+/subscriptions(/|$)", "mailbox"),
        (r"\w+ /v1/settings/mailbox$", "mailbox"),
        (r"\w+ /v1/(events|waitpoints|replies|conditions|limits|settings)(/|$)", "matcher"),
    )
)
HOP_BY_HOP = frozenset({"connection", "keep-alive", "te", "transfer-encoding", "upgrade", "host"})
METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]
NOT_FOUND = (404, "not_found", "No service of this stack serves this path.")


def service_for(method: str, path: str) -> str | None:
    """Return the service that serves `method` on `path`, or None."""
    asked = f"{method} {path}"
    return next((service for pattern, service in ROUTES if pattern.match(asked)), None)


def create_app(upstreams: Mapping[str, str]) -> Starlette:
    """Return the gateway in front of `upstreams` (service → base URL)."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    timeout = httpx.Timeout(120, connect=5)
    client = httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False)

    async def forward(request: Request) -> Response:
        path = request.scope["raw_path"].decode()  # a name in it may hold an encoded slash
        service = service_for(request.method, path)
        if service is None:
            return _problem(*NOT_FOUND)
        try:
            answer = await client.send(_request(client, upstreams[service], request), stream=True)
        except httpx.TransportError:
            detail = f"Expected the {service} service to answer, found nothing."
            return _problem(503, "service_unavailable", detail)
        return StreamingResponse(
            answer.aiter_raw(), answer.status_code, _kept(answer.headers), background=_close(answer)
        )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        async with client:
            yield

    routes = [Route("/healthz", _healthz), Route("/{path:path}", forward, methods=METHODS)]
    return Starlette(routes=routes, lifespan=lifespan)


async def _healthz(_: Request) -> JSONResponse:
    return JSONResponse({"status": "ok"})


def _request(client: httpx.AsyncClient, base: str, request: Request) -> httpx.Request:
    query = f"?{request.url.query}" if request.url.query else ""
    target = request.scope["raw_path"].decode() + query
    has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
    return client.build_request(
        request.method,
        base + target,
        headers=_kept(request.headers),
        content=request.stream() if has_body else None,
    )


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}


def _close(answer: httpx.Response) -> BackgroundTask:
    return BackgroundTask(answer.aclose)


def _problem(status: int, code: str, detail: str) -> JSONResponse:
    body = {"type": "about:blank", "title": detail, "status": status, "code": code}
    return JSONResponse({**body, "detail": detail}, status, media_type="application/problem+json")


if __name__ == "__main__":
    host, port, *pairs = sys.argv[1:]
    app = create_app(dict(pair.split("=", 1) for pair in pairs))
    config = uvicorn.Config(app, host=host, port=int(port), log_level="warning")
    config.timeout_keep_alive = 75  # longer than clients keep an idle connection
    config.server_header = config.date_header = False  # the service has set them
    uvicorn.Server(config).run()
