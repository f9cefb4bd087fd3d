"""The forms in which events come: Relay's own and CloudEvents 1.0, each read into domain events.

A batch is taken whole or refused whole: every fault of every event is named, by its index.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self, TypeVar, cast
from urllib.parse import unquote

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import ErrorDetails
from relay_common import limits
from relay_common.errors import (
    FieldError,
    Json,
    MalformedRequest,
    PayloadTooLarge,
    ValidationFailed,
)
from relay_common.strict_json import parse
from relay_common.wire import (
    IdentityText,
    KeyText,
    SourceText,
    Time,
    Wire,
    expected,
    kind,
    pointer,
    refused,
)

from relay_intake.domain.event import Event

EXTENSION = re.compile(r"[a-z0-9]{1,20}")
DIGEST = re.compile(r"sha-256:[A-Za-z0-9_-]{43}")
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\x00-\x20\x7f]{1,2000}")
MAX_EXTENSIONS = 32

ModelT = TypeVar("ModelT", bound=BaseModel)
Path = tuple[int | str, ...]


def uri(value: str) -> str:
    """Refuse what is no absolute URI."""
    if not URI.fullmatch(value):
        raise expected("an absolute URI of at most 2,000 characters", "another form")
    return value


def digest(value: str) -> str:
    """Refuse what is no digest in the form of Relay."""
    if not DIGEST.fullmatch(value):
        raise expected("sha-256: and 43 characters of base64url", "another form")
    return value


Uri = Annotated[str, AfterValidator(uri)]
Digest = Annotated[str, AfterValidator(digest)]
AnyJson = Annotated[object, WithJsonSchema({})]


class DataRef(Wire):
    """Data by reference: where it lies, and the digest of its bytes."""

    uri: Uri
    digest: Digest


class EventIn(Wire):
    """An event in Relay's own form."""

    event_type: KeyText
    correlation_key: KeyText
    id: SourceText | None = None
    source: SourceText | None = None
    recipient: IdentityText | None = None
    occurred_at: Time | None = None
    data: AnyJson = None
    dataref: Annotated[DataRef, WithJsonSchema(DataRef.model_json_schema())] | None = None

    @model_validator(mode="after")
    def one_of_both(self) -> Self:
        """Refuse data that comes both inline and by reference."""
        if self.data is not None and self.dataref is not None:
            raise expected("data or dataref", "both")
        return self


class CloudEventIn(BaseModel):
    """A CloudEvent 1.0; what is not named here is one of its extensions."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    specversion: Literal["1.0"]
    id: SourceText
    source: SourceText
    type: KeyText
    correlationkey: KeyText
    recipient: IdentityText | None = None
    time: Time | None = None
    data: AnyJson = None
    dataref: Uri | None = None
    datarefdigest: Digest | None = None

    @model_validator(mode="after")
    def one_of_both(self) -> Self:
        """Refuse data that comes both inline and by reference, and a reference without digest."""
        if self.data is not None and self.dataref is not None:
            raise expected("data or dataref", "both")
        if (self.dataref is None) != (self.datarefdigest is None):
            raise expected("dataref together with datarefdigest", "one alone")
        return self

    @model_validator(mode="after")
    def extensions(self) -> Self:
        """Refuse what is no attribute of CloudEvents; binary data travels by reference."""
        attributes = self.model_extra or {}
        if "data_base64" in attributes:
            raise expected("data as JSON, or dataref", "data_base64")
        if len(attributes) > MAX_EXTENSIONS:
            raise expected(f"at most {MAX_EXTENSIONS} attributes more", str(len(attributes)))
        for name, value in attributes.items():
            if not EXTENSION.fullmatch(name):
                raise expected("attribute names of 1 to 20 characters a-z and 0-9", "another")
            if not isinstance(value, str | int) or len(str(value)) > limits.SOURCE_BYTES.default:
                raise expected("attributes that are short texts, integers or booleans", kind(value))
        return self


class Raw(msgspec.Struct):
    """The part of an event that travels byte for byte as it came; empty when there is none."""

    data: msgspec.Raw = msgspec.Raw(b"")


class RawBatch(msgspec.Struct):
    """The parts of a batch in Relay's own form that travel as they came."""

    events: list[Raw]


def read_own_form(body: bytes) -> list[Event]:
    """Return the events of an `application/json` body: one event, or `{"events": […]}`.

    Raises MalformedJson, UnknownField, ValidationFailed or PayloadTooLarge.
    """
    found = parse(body)
    if not isinstance(found, Mapping) or "events" not in found:
        models = validated(EventIn, {(): found})
        return own_form(models, [msgspec.json.decode(body, type=Raw)], [()])
    unknown = [name for name in found if name != "events"]
    if unknown:
        raise refused([fault("extra_forbidden", (name,)) for name in unknown])
    items = {("events", index): one for index, one in enumerate(listed(found["events"], "/events"))}
    models = validated(EventIn, items)
    return own_form(models, msgspec.json.decode(body, type=RawBatch).events, list(items))


def read_structured(body: bytes) -> list[Event]:
    """Return the event of an `application/cloudevents+json` body. Raises like read_own_form."""
    models = validated(CloudEventIn, {(): parse(body)})
    return cloud_form(models, [msgspec.json.decode(body, type=Raw)], [()])


def read_structured_batch(body: bytes) -> list[Event]:
    """Return the events of an `application/cloudevents-batch+json` body.

    Raises like read_own_form.
    """
    items: dict[Path, Json] = {(i,): one for i, one in enumerate(listed(parse(body), ""))}
    models = validated(CloudEventIn, items)
    return cloud_form(models, msgspec.json.decode(body, type=list[Raw]), list(items))


def read_binary(attributes: Mapping[str, str], content_type: str, body: bytes) -> list[Event]:
    """Return the event whose attributes are the `ce-` headers and whose data is the body.

    Raises MalformedRequest for a header that is not percent-encoded UTF-8, else like read_own_form.
    """
    try:
        found: dict[str, Json] = {
            name: unquote(value, errors="strict") for name, value in attributes.items()
        }
    except UnicodeDecodeError as error:
        raise MalformedRequest("Expected ce- headers in percent-encoded UTF-8.") from error
    found["data"] = parse(body) if body else None
    if content_type:
        found["datacontenttype"] = content_type
    models = validated(CloudEventIn, {(): found})
    return cloud_form(models, [Raw(msgspec.Raw(body))], [()])


def listed(found: Json, place: str) -> Sequence[Json]:
    """Return the events of a batch. Raises ValidationFailed or PayloadTooLarge for their number."""
    if not isinstance(found, list) or not found:
        what = kind(found) if not isinstance(found, list) else "none"
        raise ValidationFailed(
            errors=[FieldError(place, f"expected a list of events, found {what}")]
        )
    limit = limits.EVENTS_PER_BATCH
    if len(found) > limit.default:
        raise PayloadTooLarge(
            f"Expected at most {limit.default} events, found {len(found)}.",
            limit=limit.hit(len(found)),
        )
    return cast(Sequence[Json], found)


def validated(model: type[ModelT], items: Mapping[Path, Json]) -> list[ModelT]:
    """Return `items` as models. Raises one error that names every fault of every event."""
    models: list[ModelT] = []
    faults: list[ErrorDetails] = []
    for path, item in items.items():
        try:
            models.append(model.model_validate(item))
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False)
            faults += [cast(ErrorDetails, {**one, "loc": (*path, *one["loc"])}) for one in found]
    if faults:
        raise refused(faults)
    return models


def fault(name: str, path: Path) -> ErrorDetails:
    """Return a fault in the form of pydantic."""
    return {"type": name, "loc": path, "msg": "", "input": None}


def sized(raws: Sequence[Raw], paths: Sequence[Path]) -> list[bytes | None]:
    """Return the data of each event. Raises PayloadTooLarge naming every one that is too large."""
    limit = limits.EVENT_DATA_BYTES
    contents = [bytes(raw.data) for raw in raws]
    sizes = [len(data) for data in contents]
    if max(sizes) > limit.default:
        wanted = f"expected at most {limit.default} bytes, or dataref, found"
        raise PayloadTooLarge(
            f"Expected data of at most {limit.default} bytes, found {max(sizes)}; use dataref.",
            limit=limit.hit(max(sizes)),
            errors=[
                FieldError(pointer([*path, "data"]), f"{wanted} {size}")
                for path, size in zip(paths, sizes, strict=True)
                if size > limit.default
            ],
        )
    return [None if data in (b"", b"null") else data for data in contents]


def own_form(models: Sequence[EventIn], raws: Sequence[Raw], paths: Sequence[Path]) -> list[Event]:
    """Return events that came in Relay's own form."""
    return [
        Event(
            event_type=model.event_type,
            correlation_key=model.correlation_key,
            recipient=model.recipient,
            source=model.source,
            id=model.id,
            occurred_at=model.occurred_at,
            data=data,
            dataref_uri=model.dataref.uri if model.dataref else None,
            dataref_digest=model.dataref.digest if model.dataref else None,
        )
        for model, data in zip(models, sized(raws, paths), strict=True)
    ]


def cloud_form(
    models: Sequence[CloudEventIn], raws: Sequence[Raw], paths: Sequence[Path]
) -> list[Event]:
    """Return events that came as CloudEvents; their `type` is the event type."""
    return [
        Event(
            event_type=model.type,
            correlation_key=model.correlationkey,
            recipient=model.recipient,
            source=model.source,
            id=model.id,
            occurred_at=model.time,
            data=data,
            dataref_uri=model.dataref,
            dataref_digest=model.datarefdigest,
            attributes=tuple((n, attribute(v)) for n, v in (model.model_extra or {}).items()),
        )
        for model, data in zip(models, sized(raws, paths), strict=True)
    ]


def attribute(value: object) -> str:
    """Return an attribute in the text form of CloudEvents."""
    return str(value).lower() if isinstance(value, bool) else str(value)
