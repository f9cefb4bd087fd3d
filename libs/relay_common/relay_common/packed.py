"""Parts of an Avro body, read where they lie: for layouts that are read 20,000 times a second.

Each function takes the value and a place in it, and returns what is there and where it ends. Beyond
the end raises IndexError, or Poison; broken text raises UnicodeDecodeError.
"""

from relay_common.errors import Poison

LONG_LENGTH = 10


def long_at(value: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number at `at` and where it ends."""
    shift = result = 0
    for end in range(at, at + LONG_LENGTH):
        byte = value[end]
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result >> 1) ^ -(result & 1), end + 1
        shift += 7
    raise Poison("invalid_value", "a number is longer than 64 bits")


def bytes_at(value: bytes, at: int) -> tuple[bytes, int]:
    """Return the length-prefixed bytes at `at` and where they end."""
    size = value[at]
    if size < 0x80 and not size & 1:
        size >>= 1
        at += 1
    else:
        size, at = long_at(value, at)
    end = at + size
    if size < 0 or end > len(value):
        raise Poison("truncated", "a length points outside the value")
    return value[at:end], end


def present(value: bytes, at: int) -> bool:
    """Tell whether the union at `at` (null first) holds a value."""
    branch = value[at]
    if branch not in (0, 2):
        raise Poison("invalid_value", "a union has no such branch")
    return branch == 2


def text_or_null(value: bytes, at: int) -> tuple[str | None, int]:
    """Return the string or null at `at` and where it ends."""
    if not present(value, at):
        return None, at + 1
    raw, end = bytes_at(value, at + 1)
    return raw.decode(), end


def fixed_or_null(value: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the 16 bytes or null at `at` and where they end."""
    if not present(value, at):
        return None, at + 1
    end = at + 17
    if end > len(value):
        raise Poison("truncated", "an id points outside the value")
    return value[at + 1 : end], end
