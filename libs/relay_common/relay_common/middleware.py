"""What stands between the server and the routes, as pure ASGI: edge and body limit."""

import asyncio
import time

from opentelemetry import trace
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relay_common.combiner import Answer, refusal
from relay_common.errors import (
    InternalError,
    LimitHit,
    PayloadTooLarge,
    RequestTimeout,
    UnsupportedMediaType,
    ValidationFailed,
)
from relay_common.telemetry import context_of, histogram, logger

log = logger(__name__)
tracer = trace.get_tracer("relay")
BODY_SECONDS = 30.0


class Edge:
    """The outermost layer: trace, metrics, and an answer for what nobody foresaw."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap `app`."""
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; lifespan passes through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        seen = Seen(send)
        started = time.monotonic()
        context = context_of((name.decode("latin-1"), value) for name, value in scope["headers"])
        try:
            with tracer.start_as_current_span(scope["method"], context, trace.SpanKind.SERVER):
                await self.guarded(scope, receive, seen)
        finally:
            route = getattr(scope.get("route"), "path_format", "unmatched")
            histogram("relay_http_request_seconds").labels(
                known_method(scope["method"]), route, str(seen.status)
            ).observe(time.monotonic() - started)

    async def guarded(self, scope: Scope, receive: Receive, seen: "Seen") -> None:
        """Answer 500 without content for an exception that no handler knows."""
        try:
            # Like a byte that is not UTF-8: an id with it is unknown, and answered as such.
            scope["path"] = scope["path"].replace("\x00", "\ufffd")
            if refused := bad_query(scope):
                await respond(refused, seen)
            else:
                await self.app(scope, receive, seen)
        except ClientDisconnect:
            seen.status = 499
        except Exception:
            log.exception("request_failed", method=scope["method"])
            if seen.status:  # the answer is under way; all that is left is to break it off
                raise
            await respond(refusal(InternalError()), seen)


class Seen:
    """Passes messages on and remembers the status; 0 while nothing was sent."""

    def __init__(self, send: Send) -> None:
        """Wrap `send`."""
        self.send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        """Pass `message` on."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self.send(message)


def known_method(method: str) -> str:
    """Return a method that may be a label: anyone can send any word."""
    return method if method in {"GET", "PUT", "POST", "PATCH", "DELETE", "HEAD"} else "other"


def bad_query(scope: Scope) -> Answer | None:
    """Return the refusal of a NUL in the query, which no text column can hold."""
    if b"%00" in scope["query_string"]:
        return refusal(ValidationFailed("Expected query parameters without NUL, found one."))
    return None


async def respond(answer: Answer, send: Send) -> None:
    """Send `answer` as the whole response."""
    headers = {**answer.headers, "content-length": str(len(answer.body))}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": answer.status, "headers": raw})
    await send({"type": "http.response.body", "body": answer.body})


class BodyLimit:
    """Limits a request body by the bytes that come, whatever Content-Length says.

    The body is read when somebody asks for it, in one piece: many tiny chunks cost no more memory
    than a few large ones.
    """

    def __init__(self, app: ASGIApp, name: str, max_bytes: int) -> None:
        """Wrap `app`; `name` is the published limit that `max_bytes` comes from."""
        self.app = app
        self.name = name
        self.max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, refusing at once what its headers already show."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        declared = headers.get("content-length", "0")
        if headers.get("content-encoding", "identity").lower() != "identity":
            error = UnsupportedMediaType("Expected an uncompressed body, found Content-Encoding.")
            await respond(refusal(error), send)
        elif declared.isascii() and declared.isdigit() and int(declared[:20]) > self.max_bytes:
            await respond(refusal(self.too_large(int(declared[:20]))), send)
        else:
            await self.app(scope, self.counted(receive), send)

    def counted(self, receive: Receive) -> Receive:
        """Return a `receive` that gives the whole body as its first message."""
        complete = False

        async def whole() -> Message:
            nonlocal complete
            if complete:
                return await receive()
            complete = True
            try:
                async with asyncio.timeout(BODY_SECONDS):
                    return await self.read(receive)
            except TimeoutError as error:
                raise RequestTimeout from error

        return whole

    async def read(self, receive: Receive) -> Message:
        """Return the body in one message, or the disconnect that came instead.

        Raises PayloadTooLarge as soon as there is more than the limit.
        """
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return message
            body += message.get("body", b"")
            if len(body) > self.max_bytes:
                raise self.too_large(len(body))
            if not message.get("more_body", False):
                return {"type": "http.request", "body": bytes(body), "more_body": False}

    def too_large(self, got: int) -> PayloadTooLarge:
        """Return the error for `got` bytes (so far)."""
        return PayloadTooLarge(
            f"Expected a body of at most {self.max_bytes} bytes, found {got}.",
            limit=LimitHit(self.name, self.max_bytes, got),
        )
