"""An event as the matcher reads it: its routing, straight from the Avro bytes.

The layout is `relay.events.v1`; the bytes themselves are stored, so nothing after the routing is
turned into objects before somebody takes the event.
"""

import uuid

import msgspec
import msgspec.structs
from relay_common.errors import Poison
from relay_common.ids import derive_id, encode_id
from relay_common.limits import EVENT_DATA_BYTES, IDENTITY_BYTES, KEY_BYTES, SOURCE_BYTES
from relay_common.match_key import MatchKey
from relay_common.packed import bytes_at, fixed_or_null, long_at, present, text_or_null

from relay_matcher.domain import short_event


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One event: routing, identity (16 raw bytes), and its framed Avro value as it was written."""

    key: MatchKey
    key_hash: int
    recipient: str | None
    source: str | None
    source_id: str | None
    event_id: bytes
    direct: bool
    dataref: tuple[str, str | None] | None
    data_at: int
    data_size: int
    value: bytes
    trace: tuple[tuple[str, bytes], ...] = ()

    @property
    def external_id(self) -> str:
        """The id outside: key hash and event id, so that finding it needs one probe a slice."""
        return external_id(self.key_hash, self.event_id)

    @property
    def data(self) -> bytes | None:
        """The event's data (JSON, UTF-8), None when it has none or carries it by reference."""
        if self.data_size < 0:
            return None
        return self.value[self.data_at : self.data_at + self.data_size]


def external_id(key_hash: int, event_id: bytes) -> str:
    """Return the id of an event as the API shows it."""
    return encode_id("ev_", key_hash.to_bytes(8, "big", signed=True) + event_id)


class Origin(msgspec.Struct, frozen=True, gc=False):
    """Where an event was read: it names an event that brings no id of its own (design D17)."""

    topic_id: str
    partition: int
    offset: int
    trace: tuple[tuple[str, bytes], ...] = ()


def read_event(value: bytes, offset: int, seed: int, origin: Origin) -> Event:
    """Return the event whose Avro body begins at `offset` of `value`.

    `seed` is the installation's. Raises Poison: truncated, trailing_bytes, invalid_utf8,
    invalid_value, invalid_key, invalid_identity or oversized.
    """
    try:
        return read_common(value, offset, seed, origin)
    except (short_event.UncommonError, IndexError):
        pass
    try:
        return parse(value, offset, seed, origin)
    except IndexError as error:
        raise Poison("truncated", "a length points outside the value") from error
    except UnicodeDecodeError as error:
        raise Poison("invalid_utf8", f"at byte {error.start} of a string") from error


def read_common(value: bytes, offset: int, seed: int, origin: Origin) -> Event:
    """Return an event of the common form. Raises UncommonError or IndexError for any other."""
    key, key_hash, owner, at = short_event.read_routing(value, offset, seed)
    source, name, given, direct, data_at, data_size = short_event.read_rest(value, at)
    if name is not None:
        event_id = short_event.named_id(owner, key, source, name)
    else:
        event_id = identity(key, None, None, given, origin)
    return Event(
        key,
        key_hash,
        None,
        None if source is None else source.decode(),
        None if name is None else name.decode(),
        event_id,
        direct,
        None,
        data_at,
        data_size,
        value,
        origin.trace,
    )


def stored_event(value: bytes, offset: int, key_hash: int, event_id: uuid.UUID) -> Event:
    """Return a recorded event; hash and id are the log's, the rest is in its bytes."""
    event = parse(value, offset, 0, Origin("", 0, 0))
    return msgspec.structs.replace(event, key_hash=key_hash, event_id=event_id.bytes)


def parse(value: bytes, offset: int, seed: int, origin: Origin) -> Event:
    """Walk over all fields once; the order is the schema's."""
    tenant, at = bytes_at(value, offset)
    environment, at = bytes_at(value, at)
    event_type, at = bytes_at(value, at)
    correlation_key, at = bytes_at(value, at)
    check_key(tenant, environment, event_type, correlation_key)
    recipient, at = text_or_null(value, at)
    source, at = text_or_null(value, at)
    source_id, at = text_or_null(value, at)
    given, at = fixed_or_null(value, at)
    at = skip_time(value, at)
    accepted_by, at = text_or_null(value, at)
    uri, at = text_or_null(value, at)
    digest, at = text_or_null(value, at)
    data_at, data_size = data_place(value, at)
    check_bounds(recipient, source, source_id, data_size)
    key = MatchKey(
        tenant.decode(), environment.decode(), event_type.decode(), correlation_key.decode()
    )
    return Event(
        key=key,
        key_hash=key.hash(seed),
        recipient=recipient,
        source=source,
        source_id=source_id,
        event_id=identity(key, source, source_id, given, origin),
        direct=accepted_by is None,
        dataref=None if uri is None else (uri, digest),
        data_at=data_at,
        data_size=data_size,
        value=value,
        trace=origin.trace,
    )


def identity(
    key: MatchKey,
    source: str | None,
    source_id: str | None,
    given: bytes | None,
    origin: Origin,
) -> bytes:
    """Return the id by which the log deduplicates (design D17)."""
    if source_id is not None:
        return derive_id("event", key.tenant, key.environment, source or "", source_id)
    if given is not None:
        return given
    return derive_id("event-kafka", origin.topic_id, str(origin.partition), str(origin.offset))


def skip_time(value: bytes, at: int) -> int:
    """Return where the time or null at `at` ends."""
    return long_at(value, at + 1)[1] if present(value, at) else at + 1


def data_place(value: bytes, at: int) -> tuple[int, int]:
    """Return where the data begin and how many bytes they are, -1 for none; they are the last."""
    if not present(value, at):
        begin, size, end = at + 1, -1, at + 1
    else:
        size, begin = long_at(value, at + 1)
        end = begin + size
        if size < 0 or end > len(value):
            raise Poison("truncated", "the data point outside the value")
    if end != len(value):
        raise Poison("trailing_bytes", f"{len(value) - end} after the record")
    return begin, size


def check_key(tenant: bytes, environment: bytes, event_type: bytes, correlation_key: bytes) -> None:
    """Raise Poison for a match key outside its bounds."""
    longest = KEY_BYTES.default
    if not (0 < len(event_type) <= longest and 0 < len(correlation_key) <= longest):
        raise Poison("invalid_key", f"expected 1 to {longest} bytes of type and key")
    if not (0 < len(tenant) <= 256 and 0 < len(environment) <= 256):
        raise Poison("invalid_identity", "expected 1 to 256 bytes of tenant and environment")
    if b"\0" in event_type or b"\0" in correlation_key or b"\0" in tenant or b"\0" in environment:
        raise Poison("invalid_key", "expected no NUL")


def check_bounds(
    recipient: str | None, source: str | None, source_id: str | None, data_size: int
) -> None:
    """Raise Poison for an event whose other parts are outside their bounds."""
    if data_size > EVENT_DATA_BYTES.default:
        raise Poison("oversized", f"expected at most {EVENT_DATA_BYTES.default} bytes of data")
    if recipient is not None and not 0 < len(recipient.encode()) <= IDENTITY_BYTES.default:
        raise Poison("invalid_identity", f"expected 1 to {IDENTITY_BYTES.default} bytes")
    for text in (recipient, source, source_id):
        if text is not None and ("\0" in text or len(text) > SOURCE_BYTES.default):
            raise Poison(
                "invalid_identity", "expected no NUL and a shorter source, id or recipient"
            )


def uuid_of(event_id: bytes) -> uuid.UUID:
    """Return the id as the database stores it."""
    return uuid.UUID(bytes=event_id)
