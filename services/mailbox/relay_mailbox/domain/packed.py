"""A record as the consumer reads it, straight from the Avro bytes of `relay.mailbox.v1`.

fastavro takes three times as long, and is the judge of this in tests/contracts.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

from relay_common.errors import Poison
from relay_common.packed import bytes_at, fixed_or_null, long_at, present

from relay_mailbox.domain.record import (
    APPENDED_STATES,
    RECORD_KINDS,
    NewRecord,
    Owner,
    checked_name,
    sender_of,
)

SCHEMA = "relay.mailbox.v1"
SymbolT = TypeVar("SymbolT")


def read_record(value: bytes, at: int) -> NewRecord:
    """Return the record whose Avro body begins at `at` of `value`. Raises Poison."""
    try:
        return parse(value, at)
    except IndexError as error:
        raise Poison("truncated", "a length points outside the value") from error
    except UnicodeDecodeError as error:
        raise Poison("invalid_utf8", f"at byte {error.start} of a string") from error


def parse(value: bytes, at: int) -> NewRecord:
    """Walk over all fields once; the order is the schema's."""
    tenant, at = name_at(value, at)
    environment, at = name_at(value, at)
    owner, at = name_at(value, at)
    message_id, at = value[at : at + 16], at + 16
    kind, at = symbol_at(value, at, RECORD_KINDS)
    type_, at = name_at(value, at)
    state, at = symbol_at(value, at, APPENDED_STATES)
    trust, at = name_or_null(value, at)
    relationship, at = name_or_null(value, at)
    waitpoint_id, at = name_or_null(value, at)
    supersedes, at = fixed_or_null(value, at)
    wakes = value[at] != 0
    body, at = bytes_at(value, at + 1)
    if at != len(value):
        raise Poison("trailing_bytes", f"{len(value) - at} after the record")
    return NewRecord(
        Owner(tenant, environment, owner),
        message_id,
        kind,
        type_,
        state,
        body,
        wakes,
        trust,
        relationship,
        sender_of(kind, body),
        waitpoint_id,
        supersedes,
    )


def name_at(value: bytes, at: int) -> tuple[str, int]:
    """Return the name at `at` and where it ends. Raises Poison for one out of bounds."""
    raw, at = bytes_at(value, at)
    return name_of(raw), at


@lru_cache(maxsize=10_000)
def name_of(raw: bytes) -> str:
    """Return a name from its bytes. Cached: a batch has the same ones thousands of times."""
    return checked_name(raw.decode())


def name_or_null(value: bytes, at: int) -> tuple[str | None, int]:
    """Return the name or null at `at` and where it ends."""
    return name_at(value, at + 1) if present(value, at) else (None, at + 1)


def symbol_at(value: bytes, at: int, symbols: Sequence[SymbolT]) -> tuple[SymbolT, int]:
    """Return the symbol of an enum at `at` and where it ends."""
    place, end = value[at] >> 1, at + 1
    if value[at] & 0x81:
        place, end = long_at(value, at)
    if not 0 <= place < len(symbols):
        raise Poison("invalid_value", "an enum has no such symbol")
    return symbols[place], end
