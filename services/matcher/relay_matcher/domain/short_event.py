"""The common event, read in one pass: ASCII strings under 64 bytes, no recipient, no reference.

It gives what `event.parse` gives at a third of the cost. Whatever is less common, or broken, it
leaves to `event.parse`, which reads it or says what is wrong.
"""

from hashlib import sha256

from relay_common.ids import SIZE
from relay_common.match_key import MatchKey, hash_routing

LONG = 0x81  # a bit of it in a length: negative, or more than one byte
TIME_MASK = 0x8080_8080_8080_8080
TIME_BITS = 0x0080_8080_8080_8080  # eight bytes: every microsecond from 1978 to 3111
REMEMBERED = 1024

Rest = tuple[bytes | None, bytes | None, bytes | None, bool, int, int]


class UncommonError(Exception):
    """This event is not of the common form."""


def read_routing(value: bytes, at: int, seed: int) -> tuple[MatchKey, int, bytes, int]:
    """Return match key, its hash, tenant and environment as they lie there, and where it ends.

    Raises UncommonError, or IndexError where the value ends early.
    """
    environment = at + 1 + (value[at] >> 1)
    event_type = environment + 1 + (value[environment] >> 1)
    correlation_key = event_type + 1 + (value[event_type] >> 1)
    end = correlation_key + 1 + (value[correlation_key] >> 1)
    sizes = value[at] | value[environment] | value[event_type] | value[correlation_key]
    routing = value[at:end]
    # A zero is an empty part or a NUL; the byte after the key says that there is no recipient.
    if sizes & LONG or value[end] or 0 in routing or not routing.isascii():
        raise UncommonError
    text = routing.decode()
    key = MatchKey(
        text[1 : environment - at],
        text[environment - at + 1 : event_type - at],
        text[event_type - at + 1 : correlation_key - at],
        text[correlation_key - at + 1 :],
    )
    return key, hash_routing(routing, seed), value[at:event_type], end + 1


def read_rest(value: bytes, at: int) -> Rest:
    """Return source, id, given event id, whether it came directly, and place and size of the data.

    Raises as read_routing does.
    """
    source, at = text_or_null(value, at)
    name, at = text_or_null(value, at)
    given = None
    if value[at]:
        given = value[at + 1 : at + 17]
        at += 16 if value[at] == 2 else len(value)
    if value[at + 1]:
        time = int.from_bytes(value[at + 2 : at + 10], "little")
        if value[at + 1] != 2 or time & TIME_MASK != TIME_BITS:
            raise UncommonError
        at += 8
    accepted_by, at = text_or_null(value, at + 2)
    if value[at] or value[at + 1]:
        raise UncommonError
    data_at, data_size = data_place(value, at + 2)
    return source, name, given, accepted_by is None, data_at, data_size


def text_or_null(value: bytes, at: int) -> tuple[bytes | None, int]:
    """Return the string or null at `at` and where it ends."""
    if not value[at]:
        return None, at + 1
    size = value[at + 1]
    end = at + 2 + (size >> 1)
    text = value[at + 2 : end]
    if value[at] != 2 or size & LONG or 0 in text or not text.isascii():
        raise UncommonError
    return text, end


def data_place(value: bytes, at: int) -> tuple[int, int]:
    """Return where the data begin and their size, -1 for none; they are the last of the value."""
    if not value[at]:
        begin, size = at + 1, 0
    elif value[at + 1] < 0x80:
        begin, size = at + 2, value[at + 1]
    else:
        begin, size = at + 3, value[at + 1] & 0x7F | value[at + 2] << 7
        if size > 0x3FFF:
            raise UncommonError
    if value[at] & ~2 or size & 1 or begin + (size >> 1) != len(value):
        raise UncommonError
    return begin, size >> 1 if value[at] else -1


PREFIXES: dict[tuple[bytes, bytes | None], bytes] = {}


def named_id(owner: bytes, key: MatchKey, source: bytes | None, name: bytes) -> bytes:
    """Return derive_id("event", tenant, environment, source, id); `owner` is the first two."""
    prefix = PREFIXES.get((owner, source))
    if prefix is None:
        parts = (b"event", key.tenant.encode(), key.environment.encode(), source or b"")
        prefix = b"".join([piece for part in parts for piece in (SIZE(len(part)), part)])
        if len(PREFIXES) >= REMEMBERED:
            PREFIXES.clear()
        PREFIXES[owner, source] = prefix
    return sha256(prefix + SIZE(len(name)) + name).digest()[:16]
