"""Routes: who calls, a body by Relay's rules, and the plan by which an endpoint is run (ADR 17).

FastAPI reads the signature of an endpoint and documents it. What it found is made into a plan once:
to look at it again in every call was a fifth of what a call cost.
"""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from inspect import iscoroutinefunction, signature
from typing import Any, Protocol, cast

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic.fields import FieldInfo
from starlette.types import Receive, Scope, Send

from relay_common.errors import (
    FieldError,
    InvalidToken,
    Json,
    UnsupportedMediaType,
    ValidationFailed,
)
from relay_common.strict_json import parse
from relay_common.tokens import Caller

Faults = list[dict[str, object]]
Handle = Callable[[Request], Coroutine[object, object, Response]]


class Verifier(Protocol):
    """Tells who a token speaks for (TokenVerifier)."""

    async def verify(self, token: str) -> Caller:
        """Return the caller. Raises InvalidToken."""
        ...


class Parameter(Protocol):
    """A parameter as FastAPI has read it (ModelField)."""

    name: str
    alias: str
    field_info: FieldInfo

    def validate(self, value: object, *, loc: tuple[int | str, ...]) -> tuple[object, Faults]:
        """Return the typed value, and what is wrong with it at `loc`."""
        ...


Ask = Callable[[Request], Awaitable[object]]
Endpoint = Callable[..., Awaitable[Response]]


class StrictRequest(Request):
    """A request whose JSON is read by Relay's rules."""

    async def json(self) -> Json:
        """Return the body. Raises UnsupportedMediaType or MalformedJson."""
        if not hasattr(self, "_json"):
            self._json = parse(await self.body()) if is_json(self) else not_json(self)
        return self._json


def is_json(request: Request) -> bool:
    """Tell whether the body says it is JSON."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return media == "application/json" or (
        media.startswith("application/") and media.endswith("+json")
    )


def not_json(request: Request) -> Json:
    """Refuse a body of another type."""
    found = "another" if request.headers.get("content-type") else "no"
    raise UnsupportedMediaType(f"Expected Content-Type application/json, found {found} type.")


async def authenticate(request: Request) -> Caller:
    """Return who calls, checked once a request. Raises InvalidToken."""
    known: Caller | None = request.scope.get("relay.caller")
    if known is None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise InvalidToken
        verifier = cast(Verifier, request.app.state.verifier)
        known = request.scope["relay.caller"] = await verifier.verify(token.strip())
    return known


# Of all that FastAPI may find in a signature: what makes no difference, and what a plan can give.
NEUTRAL = {"name", "call", "path", "scope", "use_cache"}
FROM_REQUEST = NEUTRAL | {"request_param_name"}
FROM_PLAN = FROM_REQUEST | {"path_params", "body_params", "dependencies"}


@dataclass(frozen=True, slots=True)
class Plan:
    """How to run an endpoint: what it asks for by name, what it takes from path and body."""

    endpoint: Endpoint
    asked: Sequence[tuple[str, Ask]]
    path: Sequence[Parameter]
    body: Parameter | None
    request_name: str | None

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, as ASGI."""
        response = await self.respond(Request(scope, receive))
        await response(scope, receive, send)

    async def respond(self, request: Request) -> Response:
        """Answer a request: first who calls, then the body, then what the endpoint asks for."""
        if self.body is not None:
            request = StrictRequest(request.scope, request.receive)
            await authenticate(request)
            if await request.body():
                await request.json()
        values = {name: await ask(request) for name, ask in self.asked}
        faults: Faults = []
        for one in self.path:
            given = request.path_params[one.alias]
            values[one.name], found = one.validate(given, loc=("path", one.name))
            faults += found
        if self.body is not None:
            values[self.body.name], found = await body_of(self.body, request)
            faults += found
        if faults:
            raise RequestValidationError(faults)
        if self.request_name is not None:
            values[self.request_name] = request
        return await self.endpoint(**values)


async def body_of(wanted: Parameter, request: Request) -> tuple[object, Faults]:
    """Return the body as `wanted`, and what is wrong with it."""
    if await request.body():
        return wanted.validate(await request.json(), loc=("body",))
    if wanted.field_info.is_required():
        return None, [{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}]
    return wanted.field_info.get_default(call_default_factory=True, validated_data={}), []


def plan_of(route: APIRoute) -> Plan | None:
    """Return the plan of `route`; None when it asks for more, then FastAPI runs it."""
    found = route.dependant
    if (
        not within(found, FROM_PLAN)
        or not all(within(one, FROM_REQUEST) and one.name for one in found.dependencies)
        or found.body_params not in ([], [route.body_field])
        or signature(route.endpoint).return_annotation is not Response
    ):
        return None
    return Plan(
        cast(Endpoint, found.call),
        [(str(one.name), asking(one)) for one in found.dependencies],
        cast(Sequence[Parameter], found.path_params),
        cast(Parameter | None, route.body_field),
        found.request_param_name,
    )


def within(found: Dependant, possible: Collection[str]) -> bool:
    """Tell whether `found` is asynchronous and asks for nothing but what is `possible`."""
    others = (getattr(found, one.name) for one in fields(found) if one.name not in possible)
    return iscoroutinefunction(found.call) and not any(others)


def asking(found: Dependant) -> Ask:
    """Return how to ask a dependency, which takes the request or nothing."""
    name, call = found.request_param_name, cast(Endpoint, found.call)
    return (lambda _: call()) if name is None else (lambda request: call(**{name: request}))


class StrictRoute(APIRoute):
    """A route that runs by its plan, where it has one; with a JSON body it must."""

    def __init__(self, path: str, endpoint: Endpoint, **options: Any) -> None:  # noqa: ANN401
        """Serve `path` by `endpoint`; the options are FastAPI's.

        Raises TypeError for a body without a plan: FastAPI would read it by other rules.
        """
        super().__init__(path, endpoint, **options)
        if self.plan is not None:
            self.app = self.plan.app  # past the stacks for what a plan does not do

    @cached_property
    def plan(self) -> Plan | None:
        """How to run the endpoint; None when FastAPI does."""
        return plan_of(self)

    def get_route_handler(self) -> Handle:
        """Return the handler of this route, also where a router of FastAPI includes it."""
        if self.plan is None and self.body_field is not None:
            raise TypeError(f"expected parameters of {self.path} that a plan can give, found more")
        if self.plan is not None:
            return self.plan.respond
        return strictly(super().get_route_handler(), query_names(self.dependant))


def query_names(found: Dependant) -> set[str]:
    """Return the parameters of the URL that an endpoint or what it depends on asks for."""
    own = {one.alias for one in found.query_params}
    return own.union(*(query_names(one) for one in found.dependencies))


def strictly(handle: Handle, names: set[str]) -> Handle:
    """Return `handle` that refuses other parameters of the URL than `names`: a filter with a slip
    of the pen would show everything. Who is nobody hears that first."""

    async def respond(request: Request) -> Response:
        if unknown := sorted(request.query_params.keys() - names):
            await authenticate(request)
            expected = f"expected one of {', '.join(sorted(names))}"
            raise ValidationFailed(errors=[FieldError(f"?{name}", expected) for name in unknown])
        return await handle(request)

    return respond
