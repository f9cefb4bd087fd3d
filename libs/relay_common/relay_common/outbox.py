"""The outbox: what a transaction announces, written with what it changes (design §3.3).

Pure packing and one SQL text, used by both colours. A row belongs to a transaction, a topic and a
shard and holds many messages; what several of them share is stored once, the publisher expands it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import LiteralString

import msgspec
import xxhash

Unpacked = tuple[bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]  # key, value, headers

ROW_BYTES = 1 << 20  # a row ends here; only a single larger message makes a larger row
LARGEST_MESSAGE = ROW_BYTES + 60_000  # the table refuses rows above 1 MiB + 64 KiB
OVERHEAD = 32  # msgpack framing of one message, rounded up

INSERT: LiteralString = """
insert into outbox (shard, topic, payload)
select q.shard, q.topic, q.payload
from unnest(%(shards)s::int2[], %(topics)s::text[], %(payloads)s::bytea[])
  with ordinality q (shard, topic, payload, place)
order by q.place
"""


@dataclass(frozen=True, slots=True)
class OutMessage:
    """One message to announce. Its value is `head + shared + tail`, or null for a tombstone.

    Give the same `shared` bytes to every target of one event: a row stores them once.
    """

    topic: str
    key: bytes | None
    head: bytes
    headers: tuple[tuple[str, bytes], ...] = ()
    shared: bytes | None = None
    tail: bytes = b""
    tombstone: bool = False

    def size(self) -> int:
        """Return the bytes this message needs in a row of its own, without framing."""
        headers = sum(len(name) + len(value) + 10 for name, value in self.headers)
        key = len(self.key or b"")
        return key + len(self.head) + len(self.shared or b"") + len(self.tail) + headers


class Packed(msgspec.Struct, frozen=True, array_like=True):
    """One message in a row; `shared` points into the row's shared values, -1 for none."""

    key: bytes | None
    head: bytes
    shared: int
    tail: bytes
    headers: tuple[tuple[str, bytes], ...]
    tombstone: bool


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

    def fits(self, message: OutMessage) -> bool:
        """Say whether `message` still goes into this row."""
        known = len(message.shared or b"") if message.shared in self.shared else 0
        return not self.messages or self.size + message.size() - known + OVERHEAD <= ROW_BYTES

    def add(self, message: OutMessage) -> None:
        """Append `message`; its shared value only if the row does not hold it yet."""
        self.size += message.size() + OVERHEAD
        place = -1
        if message.shared is not None:
            if message.shared in self.shared:
                self.size -= len(message.shared)
            place = self.shared.setdefault(message.shared, len(self.shared))
        self.messages.append(
            Packed(
                message.key, message.head, place, message.tail, message.headers, message.tombstone
            )
        )

    def payload(self) -> bytes:
        """Return the row's bytes."""
        return ENCODE.encode(Row(1, list(self.shared), self.messages))


def shard_of(key: bytes, shards: int) -> int:
    """Return the shard of a match key or owner: all messages of one key keep their order."""
    return xxhash.xxh3_64_intdigest(key) % shards


def pack(messages: Sequence[OutMessage], shards: int) -> dict[str, object]:
    """Return the parameters of INSERT for `messages`, in their order within topic and shard.

    Raises MessageTooLargeError for a message above LARGEST_MESSAGE bytes. No messages give empty
    arrays, with which INSERT writes nothing.
    """
    done: list[tuple[int, str, bytes]] = []
    building: dict[tuple[int, str], RowBuilder] = {}
    for message in messages:
        if message.size() > LARGEST_MESSAGE:
            raise MessageTooLargeError(
                f"{message.topic}: expected at most {LARGEST_MESSAGE} bytes, found {message.size()}"
            )
        place = (shard_of(message.key or b"", shards), message.topic)
        row = building.setdefault(place, RowBuilder())
        if not row.fits(message):
            done.append((*place, row.payload()))
            row = building[place] = RowBuilder()
        row.add(message)
    done.extend((*place, row.payload()) for place, row in building.items())
    return {
        "shards": [shard for shard, _, _ in done],
        "topics": [topic for _, topic, _ in done],
        "payloads": [payload for _, _, payload in done],
    }


def repack(messages: Iterable[Unpacked]) -> bytes:
    """Return the payload of one row, of whatever size, that holds just `messages`."""
    packed = [Packed(k, v or b"", -1, b"", headers, v is None) for k, v, headers in messages]
    return ENCODE.encode(Row(1, [], packed))


def unpack(payload: bytes) -> list[Unpacked]:
    """Return key, value and headers of each message of a row, shared values expanded.

    Raises msgspec.DecodeError or ValueError for bytes that no `pack` wrote.
    """
    row = DECODE.decode(payload)
    if row.version != 1:
        raise ValueError(f"expected outbox layout 1, found {row.version}")
    return [(m.key, None if m.tombstone else value_of(row, m), m.headers) for m in row.messages]


def value_of(row: Row, message: Packed) -> bytes:
    """Return the value of one message of `row`."""
    shared = row.shared[message.shared] if message.shared >= 0 else b""
    return message.head + shared + message.tail
