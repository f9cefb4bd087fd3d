"""`POST /v1/conditions/check`: try a condition on an example event; nothing is stored."""

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Response
from pydantic import JsonValue
from relay_common.combiner import answer
from relay_common.errors import Json
from relay_common.http import caller, create_router, render
from relay_common.tokens import Caller
from relay_common.wire import IdentityText, KeyText, SourceText, Time, Wire

from relay_matcher.domain.condition import compiled, example_view

Author = Annotated[Caller, Depends(caller("waitpoints:write", "waitpoints:read"))]


class ExampleEvent(Wire):
    """An event as a producer would send it; all of it may be left out."""

    id: SourceText | None = None
    source: SourceText | None = None
    event_type: KeyText = "example"
    correlation_key: KeyText = "example"
    recipient: IdentityText | None = None
    occurred_at: Time | None = None
    data: JsonValue = None


class CheckIn(Wire):
    """A condition, and an event to try it on."""

    condition: str
    event: ExampleEvent | None = None


def conditions_router() -> APIRouter:
    """Return the route that tries conditions."""
    router = create_router("/v1/conditions")

    @router.post("/check")
    async def check_condition(_who: Author, form: CheckIn) -> Response:
        condition = compiled(form.condition)
        if form.event is None:
            return render(answer(200, {"valid": True}))
        event = form.event
        attributes: dict[str, object] = {
            "event_type": event.event_type,
            "correlation_key": event.correlation_key,
            "recipient": event.recipient,
            "source": event.source,
            "id": event.id,
        }
        verdict = condition.evaluate(example_view(attributes, cast(Json, event.data)))
        found: dict[str, Json] = {
            "valid": True,
            "matches": verdict.matches,
            "error": verdict.error,
        }
        return render(answer(200, found))

    return router
