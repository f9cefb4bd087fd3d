"""The HTTP front of `relay.events`: parse, publish, answer."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response
from relay_common.combiner import answer
from relay_common.errors import UnsupportedMediaType
from relay_common.http import caller, create_router, idempotency_key, render
from relay_common.tokens import Caller

from relay_intake import forms
from relay_intake.domain import event
from relay_intake.operations import EventTopic, publish_events

OWN = "application/json"
CLOUD = "application/cloudevents+json"
CLOUD_BATCH = "application/cloudevents-batch+json"
READERS = {
    OWN: forms.read_own_form,
    CLOUD: forms.read_structured,
    CLOUD_BATCH: forms.read_structured_batch,
}
EXPECTED = f"{OWN}, {CLOUD}, {CLOUD_BATCH}, or ce- headers with a JSON body"


def events_router(out: EventTopic) -> APIRouter:
    """Return the route that takes events in and publishes them to `out`."""
    router = create_router("/v1")

    @router.post("/events", status_code=202, openapi_extra=documented())
    async def post_events(
        request: Request,
        who: Annotated[Caller, Depends(caller("events:write"))],
        key: Annotated[str, Depends(idempotency_key)],
    ) -> Response:
        """Take one event, a batch, or CloudEvents; answer when the broker has acknowledged."""
        whose = event.Request(who.tenant, who.environment, who.sub, key)
        events = await read(request)
        return render(answer(202, {"accepted": await publish_events(out, whose, events)}))

    return router


async def read(request: Request) -> list[event.Event]:
    """Return the events of a request in whichever form it comes.

    Raises UnsupportedMediaType, else what relay_intake.forms raises.
    """
    content_type = request.headers.get("content-type", "")
    media = content_type.partition(";")[0].strip().lower()
    if reader := READERS.get(media if "ce-specversion" not in request.headers else ""):
        return reader(await request.body())
    attributes = {n[3:]: v for n, v in request.headers.items() if n.startswith("ce-")}
    if "specversion" in attributes and (media in {OWN, ""} or media.endswith("+json")):
        return forms.read_binary(attributes, content_type, await request.body())
    raise UnsupportedMediaType(f"Expected {EXPECTED}, found another type.")


def documented() -> dict[str, object]:
    """Return the request body for the OpenAPI document; it is read by hand, in four forms."""
    own = forms.EventIn.model_json_schema()
    batch = {
        "type": "object",
        "properties": {"events": {"type": "array", "items": own}},
        "required": ["events"],
    }
    cloud = forms.CloudEventIn.model_json_schema()
    return {
        "requestBody": {
            "required": True,
            "content": {
                OWN: {"schema": {"anyOf": [own, batch]}},
                CLOUD: {"schema": cloud},
                CLOUD_BATCH: {"schema": {"type": "array", "items": cloud}},
            },
        }
    }
