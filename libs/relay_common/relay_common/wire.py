"""Requests as typed values: strict pydantic models, times, durations, and faults with pointers."""

import re
from collections.abc import Mapping, Sequence, Sized
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from relay_common import limits
from relay_common.errors import (
    FieldError,
    LimitHit,
    RelayError,
    UnknownField,
    ValidationFailed,
    catalogue,
)

TIME = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:)(\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
NO_FIXED_LENGTH = re.compile(r"P[^T]*[YM]")
SPAN = TypeAdapter(timedelta)
BY_CODE = {error.code: error for error in catalogue()}
Measured = TypeVar("Measured", bound=Sized | int)


class Wire(BaseModel):
    """A request body: unknown fields and values of another type are refused, not bent."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def expected(what: str, found: str, hit: LimitHit | None = None) -> PydanticCustomError:
    """Return the error that says what a field should have been, and the limit that it hit."""
    context: dict[str, object] = {"message": f"expected {what}, found {found}", "limit": hit}
    return PydanticCustomError("relay", "{message}", context)


def parse_time(value: object) -> datetime:
    """Return an RFC 3339 time in UTC; the offset is required, fractions beyond µs are cut."""
    if not isinstance(value, str):
        raise expected("a time as text (RFC 3339)", kind(value))
    parts = TIME.fullmatch(value)
    if parts is None:
        raise expected("an RFC 3339 time such as 2030-01-31T12:00:00Z", "another form")
    day, minute, second, fraction, offset = parts.groups(default="")
    if not offset:
        raise expected("a time with its offset (Z or +hh:mm)", "no offset")
    if second == "60":
        raise expected("a second from 00 to 59", "a leap second")
    offset = "+00:00" if offset in "Zz" else offset
    try:
        return datetime.fromisoformat(f"{day}T{minute}{second}{fraction[:7]}{offset}").astimezone(
            UTC
        )
    except (ValueError, OverflowError):
        raise expected("a time that exists, years 0001 to 9999", "another") from None


def parse_duration(value: object) -> timedelta:
    """Return a duration given in seconds or as ISO 8601; years and months have no fixed length."""
    if isinstance(value, str) and NO_FIXED_LENGTH.match(value):
        raise expected("weeks, days, hours, minutes or seconds", "years or months")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number and not (isinstance(value, str) and value.startswith("P")):
        raise expected("seconds as a number, or an ISO 8601 duration such as PT30S", kind(value))
    try:
        return not_negative(SPAN.validate_python(value))
    except ValueError:
        raise expected("a duration such as PT30S, at most 2,000 years", "another") from None


def not_negative(duration: timedelta) -> timedelta:
    """Return `duration`. Raises PydanticCustomError below zero."""
    if duration < timedelta(0):
        raise expected("a duration of zero or more", "a negative one")
    return duration


def key_text(value: object) -> object:
    """Refuse text outside 1 to 512 bytes of UTF-8 (event type, correlation key; design D18)."""
    return bounded(value, limits.KEY_BYTES)


def identity_text(value: object) -> object:
    """Refuse text outside 1 to 512 bytes of UTF-8 (waiter, responder, recipient, owner)."""
    return bounded(value, limits.IDENTITY_BYTES)


def source_text(value: object) -> object:
    """Refuse text outside 1 to 1024 bytes of UTF-8 (source and id of an event)."""
    return bounded(value, limits.SOURCE_BYTES)


def bounded(value: object, limit: limits.Limit) -> object:
    """Return `value`; text must have 1 to `limit` bytes of UTF-8 without NUL."""
    if isinstance(value, str):
        size = len(value.encode("utf-8", "surrogatepass"))
        if not 1 <= size <= limit.default:
            hit = limit.hit(size) if size else None
            raise expected(f"1 to {limit.default} bytes of UTF-8", f"{size}", hit)
        if "\x00" in value:
            raise expected("text without NUL", "one")
    return value


def at_most(limit: limits.Limit) -> AfterValidator:
    """Return the validator of what has a size, or is a number, up to `limit`."""

    def checked(value: Measured) -> Measured:
        got = value if isinstance(value, int) else len(value)
        if got > limit.upper:
            hit = limit.hit(got, limit.upper)
            raise expected(f"at most {limit.upper} {limit.unit}", f"{got}", hit)
        return value

    return AfterValidator(checked)


Time = Annotated[
    datetime, PlainValidator(parse_time), WithJsonSchema({"type": "string", "format": "date-time"})
]
Duration = Annotated[
    timedelta,
    PlainValidator(parse_duration),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "format": "duration"}]}),
]
KeyText = Annotated[str, BeforeValidator(key_text)]
IdentityText = Annotated[str, BeforeValidator(identity_text)]
SourceText = Annotated[str, BeforeValidator(source_text)]
PageSize = Annotated[int, Field(ge=1), at_most(limits.LIST_ITEMS)]


def rfc3339(moment: datetime) -> str:
    """Return `moment` in UTC with `Z`."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def kind(value: object) -> str:
    """Name the kind of a JSON value; the value itself is never repeated."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case Mapping():
            return "an object"
        case _:
            return "a list" if isinstance(value, list | tuple) else "something else"


def pointer(path: Sequence[int | str]) -> str:
    """Return the RFC 6901 pointer of `path`."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)


def refused(faults: Sequence[ErrorDetails]) -> RelayError:
    """Return the error for what pydantic found in a body.

    A validator that raises PydanticCustomError with a code of the tree as its type gets that error.
    """
    errors = [FieldError(pointer(fault["loc"]), told(fault)) for fault in faults]
    types = [fault["type"] for fault in faults]
    named = next((BY_CODE[name] for name in types if name in BY_CODE), None)
    if named is not None:
        return named(errors=errors)
    if "extra_forbidden" in types:
        return UnknownField(errors=errors)
    detail = f"Expected other values in {len(errors)} places."
    return ValidationFailed(detail, errors=errors, limit=limit_in(faults))


def limit_in(faults: Sequence[ErrorDetails]) -> LimitHit | None:
    """Return the first limit that `faults` say was hit."""
    hits = (fault.get("ctx", {}).get("limit") for fault in faults)
    return next((hit for hit in hits if isinstance(hit, LimitHit)), None)


def told(fault: ErrorDetails) -> str:
    """Say what was expected and what was found, without repeating the value."""
    match fault["type"]:
        case "extra_forbidden":
            return "expected a field of the contract, found an unknown one"
        case "missing":
            return "expected a value, found none"
        case name if name == "relay" or name in BY_CODE:
            return fault["msg"]
        case "too_short":
            return f"expected at least {fault.get('ctx', {})['min_length']}, found fewer"
        case _:
            said = fault["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
            return f"expected {said}, found {kind(fault['input'])}"
