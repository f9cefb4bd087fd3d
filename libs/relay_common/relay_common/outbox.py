"""The outbox: what a transaction announces, written with what it changes (design §3.3).

Pure packing and one SQL text, used by both colours. A row belongs to a transaction, a topic and a
shard and holds many messages; what several of them share is stored once, the publisher expands it.
One announcement may go to several topics: its twins have their own topic, key and head, and the
rest in common. They stand in the row of the first, so they keep their order among themselves.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import LiteralString, NamedTuple

import msgspec
import xxhash

from relay_common import queries

Unpacked = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]  # key, value, headers
Addressed = tuple[str, Unpacked]  # the topic it goes to
Expand = Callable[[str, bytes], list[Addressed]]  # topic and payload of a row

ROW_BYTES = 1 << 20  # a row ends here; only a single larger message makes a larger row
LARGEST_MESSAGE = ROW_BYTES + 60_000  # the table refuses rows above 1 MiB + 64 KiB
OVERHEAD = 32  # msgpack framing of one message, rounded up

INSERT: LiteralString = queries.load("relay_common", "outbox")["append"]


class Twin(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The same announcement on another topic: all but topic, key and head is the first one's."""

    topic: str
    key: bytes | None
    head: bytes


# A msgspec struct: a batch makes thousands, at a sixth of a dataclass's cost.
class OutMessage(msgspec.Struct, frozen=True, gc=False):
    """One message to announce. Its value is `head + own + shared + tail`, or null for a tombstone.

    Twins share all but the head. Give the same `shared` bytes to every target of one event: a row
    stores them once. With `beside`, a topic and a key, it stands in the row of that topic's
    messages of that key, and keeps its place among them and their twins.
    """

    topic: str
    key: bytes | None
    head: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    shared: bytes | None = None
    tail: bytes = b""
    tombstone: bool = False
    own: bytes = b""
    twins: tuple[Twin, ...] = ()
    beside: tuple[str, bytes] | None = None

    def size(self) -> int:
        """Return the bytes this message needs in a row of its own, without framing."""
        size = len(self.key or b"") + len(self.head) + len(self.own) + len(self.tail)
        size += len(self.shared or b"")
        for name, value in self.headers:
            size += len(name) + len(value) + 10
        for twin in self.twins:
            size += len(twin.key or b"") + len(twin.head) + len(twin.topic) + OVERHEAD
        return size


class Packed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message in a row; `shared` points into the row's shared values, -1 for none."""

    key: bytes | None
    head: bytes
    shared: int
    tail: bytes
    headers: tuple[tuple[str, bytes], ...]
    tombstone: bool
    own: bytes = b""
    twins: tuple[Twin, ...] = ()
    topic: str | None = None  # none: the row's


class Row(msgspec.Struct, frozen=True, array_like=True):
    """The payload of one row (msgpack). The first field is the layout's version."""

    version: int
    shared: list[bytes]
    messages: list[Packed]


class MessageTooLargeError(ValueError):
    """One message alone is larger than a row may be."""


ENCODE = msgspec.msgpack.Encoder()
DECODE = msgspec.msgpack.Decoder(Row)


class RowBuilder:
    """Collects messages of one topic and shard until a row is full."""

    def __init__(self) -> None:
        self.shared: dict[bytes, int] = {}
        self.messages: list[Packed] = []
        self.size = 0

    def fits(self, message: OutMessage, size: int) -> bool:
        """Say whether `message` of `size` bytes still goes into this row."""
        known = len(message.shared or b"") if message.shared in self.shared else 0
        return not self.messages or self.size + size - known + OVERHEAD <= ROW_BYTES

    def add(self, message: OutMessage, size: int) -> None:
        """Append `message`; its shared value only if the row does not hold it yet."""
        self.size += size + OVERHEAD
        place = -1
        shared = message.shared
        if shared is not None:
            if shared in self.shared:
                self.size -= len(shared)
            place = self.shared.setdefault(shared, len(self.shared))
        self.messages.append(
            Packed(
                message.key,
                message.head,
                place,
                message.tail,
                message.headers,
                message.tombstone,
                message.own,
                message.twins,
                message.topic if message.beside else None,
            )
        )

    def payload(self) -> bytes:
        """Return the row's bytes."""
        return ENCODE.encode(Row(1, list(self.shared), self.messages))


def shard_of(key: bytes, shards: int) -> int:
    """Return the shard of a match key or owner: all messages of one key keep their order."""
    return xxhash.xxh3_64_intdigest(key) % shards


class NewRow(NamedTuple):
    """A row to append."""

    shard: int
    topic: str
    payload: bytes


def pack(messages: Sequence[OutMessage], shards: int) -> dict[str, object]:
    """Return the parameters of INSERT for `messages`, in their order within topic and shard.

    Raises MessageTooLargeError for a message above LARGEST_MESSAGE bytes. No messages give empty
    arrays, with which INSERT writes nothing.
    """
    return parameters(rows_of(messages, shards))


def parameters(rows: Sequence[NewRow]) -> dict[str, object]:
    """Return the parameters of INSERT for `rows`, in their order."""
    return {
        "shards": [row.shard for row in rows],
        "topics": [row.topic for row in rows],
        "payloads": [row.payload for row in rows],
    }


def rows_of(messages: Sequence[OutMessage], shards: int) -> list[NewRow]:
    """Return the rows of `messages`. Raises as pack does."""
    done: list[NewRow] = []
    building: dict[tuple[int, str], RowBuilder] = {}
    for message in messages:
        size = message.size()
        if size > LARGEST_MESSAGE:
            raise MessageTooLargeError(
                f"{message.topic}: expected at most {LARGEST_MESSAGE} bytes, found {size}"
            )
        topic, key = message.beside or (message.topic, message.key or b"")
        place = (shard_of(key, shards), topic)
        row = building.get(place)
        if row is None or not row.fits(message, size):
            if row is not None:
                done.append(NewRow(*place, row.payload()))
            row = building[place] = RowBuilder()
        row.add(message, size)
    done.extend(NewRow(*place, row.payload()) for place, row in building.items())
    return done


def repack(messages: Iterable[Unpacked]) -> bytes:
    """Return the payload of one row, of whatever size, that holds just `messages`."""
    packed = [Packed(k, v or b"", -1, b"", headers, v is None) for k, v, headers in messages]
    return ENCODE.encode(Row(1, [], packed))


def unpack(payload: bytes) -> list[Unpacked]:
    """Return key, value and headers of each message of a row, without its twins.

    Raises msgspec.DecodeError or ValueError for bytes that no `pack` wrote.
    """
    row = decoded(payload)
    return [(m.key, value_of(row, m, m.head), m.headers) for m in row.messages]


def layout(payload: bytes) -> int:
    """Return the number of the layout of `payload`: 1 here, any other is its service's own.

    A service whose rows say what happened, to be rendered when they are published, gives the
    publisher an Expand of its own.
    """
    return payload[1]


def expand(topic: str, payload: bytes) -> list[Addressed]:
    """Return all messages of a row of `topic`, each with the topic it goes to, twins after their
    first. Raises as unpack does.
    """
    row = decoded(payload)
    found: list[Addressed] = []
    for m in row.messages:
        found.append((m.topic or topic, (m.key, value_of(row, m, m.head), m.headers)))
        for twin in m.twins:
            found.append((twin.topic, (twin.key, value_of(row, m, twin.head), m.headers)))
    return found


def spread(message: OutMessage) -> list[Addressed]:
    """Return `message` and its twins as a row of them would be expanded."""
    body = message.own + (message.shared or b"") + message.tail
    first = (message.topic, (message.key, message.head + body, message.headers))
    twins = [(t.topic, (t.key, t.head + body, message.headers)) for t in message.twins]
    return [first, *twins]


def decoded(payload: bytes) -> Row:
    """Return the row in `payload`. Raises msgspec.DecodeError or ValueError."""
    row = DECODE.decode(payload)
    if row.version != 1:
        raise ValueError(f"expected outbox layout 1, found {row.version}")
    return row


def value_of(row: Row, message: Packed, head: bytes) -> bytes | None:
    """Return the value of one message of `row`, or of its twin with this `head`."""
    if message.tombstone:
        return None
    shared = row.shared[message.shared] if message.shared >= 0 else b""
    return head + message.own + shared + message.tail
