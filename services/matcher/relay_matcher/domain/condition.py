"""Conditions in CEL behind one small interface (spec, Matching; design D9).

The library has no time limit of its own, so the input is bounded instead: source, macros, and the
view of the event that a condition sees.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

import orjson
from cel_expr_python import cel
from relay_common.errors import ConditionInvalid, FieldError, Json
from relay_common.limits import CONDITION_BYTES, KIB

from relay_matcher.domain.event import Event

VIEW_BYTES = 16 * KIB
VIEW_DEPTH = 32
REASON_CHARACTERS = 200
STRING_LITERAL = re.compile(
    r"""[rRbB]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')""",
    re.DOTALL,
)
UNBOUNDED = re.compile(r"\b(map|filter)\s*\(")

EventView = dict[str, object]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a condition says of an event: only exactly true matches; an error has a reason."""

    matches: bool
    error: str | None = None


class Condition:
    """A compiled condition."""

    def __init__(self, source: str) -> None:
        """Compile `source`. Raises ConditionInvalid when it is bad, empty or unbounded."""
        check_source(source)
        try:
            self.program = ENVIRONMENT.compile(source)
        except (RuntimeError, ValueError, TypeError) as error:
            raise invalid(first_line(error)) from error
        if self.program.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
            raise invalid(f"expected a boolean, found {self.program.return_type().name()}")

    def evaluate(self, view: EventView | str) -> Verdict:
        """Return the verdict on the event of `view`; a view that is text says why there is none."""
        if isinstance(view, str):
            return Verdict(False, view)
        try:
            result = self.program.eval(data={"event": view})
            kind = result.type()
        except Exception as error:
            return Verdict(False, first_line(error))
        if kind == cel.Type.BOOL:
            return Verdict(bool(result.value()))
        if kind == cel.Type.ERROR:
            return Verdict(False, str(result)[:REASON_CHARACTERS])
        return Verdict(False, f"expected a boolean, found {kind.name()}")


ENVIRONMENT = cel.NewEnv(variables={"event": cel.Type.Map(cel.Type.STRING, cel.Type.DYN)})


@lru_cache(maxsize=10_000)
def compiled(source: str) -> Condition:
    """Return the condition of `source`, compiled once. Raises ConditionInvalid."""
    return Condition(source)


def check_source(source: str) -> None:
    """Raise ConditionInvalid for a source that is empty, too long or has no bound."""
    size = len(source.encode("utf-8", "surrogatepass"))
    if not source.strip():
        raise invalid("expected an expression, found nothing")
    if size > CONDITION_BYTES.default:
        raise ConditionInvalid(
            f"Expected at most {CONDITION_BYTES.default} bytes, found {size}.",
            limit=CONDITION_BYTES.hit(size),
        )
    found = UNBOUNDED.search(STRING_LITERAL.sub('""', source))
    if found:
        raise invalid(f"expected no macro that builds lists, found {found[1]}")


def invalid(detail: str) -> ConditionInvalid:
    """Return the error for a condition, pointing at it."""
    return ConditionInvalid(errors=[FieldError("/condition", detail)])


def first_line(error: Exception) -> str:
    """Return the first line of a library's message, shortened."""
    return (str(error).splitlines() or [type(error).__name__])[0][:REASON_CHARACTERS]


def view_of(event: Event) -> EventView | str:
    """Return what a condition sees of `event`: its attributes, its `data`, and the fields of data
    beside them where no attribute has the name. Text when it cannot be shown."""
    data = event.data
    if data is not None and len(data) > VIEW_BYTES:
        return f"expected data of at most {VIEW_BYTES} bytes, found {len(data)}"
    content: object = None
    if data is not None:
        try:
            content = orjson.loads(data)
        except orjson.JSONDecodeError as error:
            return f"expected data in JSON: {error.msg}"
    if deeper_than(content, VIEW_DEPTH):
        return f"expected data of at most {VIEW_DEPTH} levels"
    return view(attributes_of(event), content)


def attributes_of(event: Event) -> EventView:
    """Return the attributes of an event that a condition may name."""
    return {
        "event_type": event.key.event_type,
        "correlation_key": event.key.correlation_key,
        "recipient": event.recipient,
        "source": event.source,
        "id": event.source_id,
    }


def example_view(attributes: EventView, data: Json) -> EventView | str:
    """Return the view of an example event, within the same bounds as a recorded one."""
    if len(orjson.dumps(data)) > VIEW_BYTES:
        return f"expected data of at most {VIEW_BYTES} bytes"
    if deeper_than(data, VIEW_DEPTH):
        return f"expected data of at most {VIEW_DEPTH} levels"
    return view(attributes, data)


def view(attributes: EventView, data: object) -> EventView:
    """Return the view of an event with `attributes` and decoded `data`."""
    known = {name: value for name, value in attributes.items() if value is not None}
    fields: EventView = data if isinstance(data, dict) else {}  # pyright: ignore[reportUnknownVariableType]
    return {**fields, "data": data, **known}


def deeper_than(value: object, levels: int) -> bool:
    """Tell whether JSON `value` nests more than `levels` deep."""
    layer = [value]
    for _ in range(levels):
        below: list[object] = []
        for item in layer:
            if isinstance(item, dict):
                below.extend(item.values())  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
            elif isinstance(item, list):
                below.extend(item)  # pyright: ignore[reportUnknownArgumentType]
        if not below:
            return False
        layer = below
    return any(isinstance(item, dict | list) for item in layer)
