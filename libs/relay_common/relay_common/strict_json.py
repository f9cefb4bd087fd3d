"""JSON as Relay takes it: one meaning for every reader, and nothing that a later stage chokes on.

Refused: what is not UTF-8, NaN and Infinity (also by overflow), integers beyond 64 bits, duplicate
keys, lone surrogates, NUL in strings, nesting beyond the published depth.
"""

import json
import re
from typing import NoReturn

from relay_common import limits
from relay_common.errors import Json, MalformedJson

ESCAPE = re.compile(rb"\\.", re.DOTALL)
NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
ESCAPED = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**64 - 1
INTEGER_DIGITS = 20


def parse(body: bytes) -> Json:
    """Return the value of `body`. Raises MalformedJson that says what was found."""
    levels = limits.JSON_DEPTH.default
    if nests_too_deep(body, levels):
        raise MalformedJson(
            f"Expected at most {levels} levels, found more.",
            limit=limits.JSON_DEPTH.hit(levels + 1),
        )
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedJson(f"Expected UTF-8, found another byte at {error.start}.") from error
    try:
        found: Json = DECODER.decode(text)
    except RecursionError as error:
        raise MalformedJson("Expected JSON, found brackets that never close.") from error
    except json.JSONDecodeError as error:
        raise MalformedJson(f"Expected JSON, found a fault at character {error.pos}.") from error
    if ESCAPED.search(text) or "\x00" in text:
        refuse_bad_text(found)
    return found


def nests_too_deep(body: bytes, levels: int) -> bool:
    """Tell whether `body` nests deeper than `levels`, in linear time and without recursion.

    Each round takes the innermost brackets away. What is left because it never closes is the
    parser's to refuse.
    """
    if body.count(b"[") + body.count(b"{") <= levels:
        return False  # it cannot be deeper than it has brackets
    outside_strings = b"".join(ESCAPE.sub(b"", body).split(b'"')[::2])
    brackets = outside_strings.translate(None, NOT_BRACKETS)
    for _ in range(levels):
        closed = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(closed) == len(brackets):
            return False
        brackets = closed
    return b"[]" in brackets or b"{}" in brackets


def refuse_bad_text(value: Json) -> None:
    """Raise MalformedJson when a string in `value` has a NUL or half of a surrogate pair."""
    if isinstance(value, str):
        if "\x00" in value:
            raise MalformedJson("Expected text without NUL, found one.")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise MalformedJson("Expected whole characters, found a lone surrogate.")
    elif isinstance(value, dict):
        for name, member in value.items():
            refuse_bad_text(name)
            refuse_bad_text(member)
    elif isinstance(value, list):
        for member in value:
            refuse_bad_text(member)


def unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    """Return `pairs` as an object. Raises MalformedJson when a name comes twice."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MalformedJson("Expected each name once in an object, found one twice.")
    return found


def integer(digits: str) -> int:
    """Return the integer. Raises MalformedJson beyond 64 bits: not every reader has more."""
    if len(digits) <= INTEGER_DIGITS and INTEGER_MIN <= (value := int(digits)) <= INTEGER_MAX:
        return value
    raise MalformedJson("Expected an integer of at most 64 bits, found more; send it as text.")


def number(digits: str) -> float:
    """Return the number. Raises MalformedJson when it is too large to be one."""
    value = float(digits)
    if value in (float("inf"), float("-inf")):
        raise MalformedJson("Expected a finite number, found one that is too large.")
    return value


def constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which are not JSON."""
    raise MalformedJson(f"Expected JSON, found {name}.")


DECODER = json.JSONDecoder(
    object_pairs_hook=unique, parse_int=integer, parse_float=number, parse_constant=constant
)
