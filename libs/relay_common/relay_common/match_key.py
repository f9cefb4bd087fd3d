"""The match key: the one exact key by which events and waitpoints find each other."""

from struct import Struct

import msgspec
import xxhash

LENGTH = Struct(">H")
MASK = 0xFFFF_FFFF_FFFF_FFFF


# A msgspec struct: every event makes one and looks it up, at a fifth of a dataclass's cost.
class MatchKey(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Tenant, environment, event type and correlation key, compared byte for byte."""

    tenant: str
    environment: str
    event_type: str
    correlation_key: str

    def encoded(self) -> bytes:
        """Return the parts as length-prefixed UTF-8: the Kafka key of events and waitpoints."""
        return prefixed(self.tenant, self.environment, self.event_type, self.correlation_key)

    def hash(self, seed: int) -> int:
        """Return the signed 64-bit key of index and advisory lock; `seed` is the installation's.

        The seed keeps outsiders from aiming a key at somebody else's lock (design §6).
        """
        return hash_routing(routing(self), seed)


def hash_encoded(encoded: bytes, seed: int) -> int:
    """Return what MatchKey.hash returns, for a key that is encoded already."""
    unsigned = xxhash.xxh3_64_intdigest(encoded, seed & MASK)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def routing(key: MatchKey) -> bytes:
    """Return `key` as its four strings lie at the beginning of an event's Avro body."""
    parts = (key.tenant, key.environment, key.event_type, key.correlation_key)
    return b"".join([piece for part in parts for piece in avro_string(part.encode())])


def avro_string(raw: bytes) -> tuple[bytes, bytes]:
    """Return the length of `raw` as Avro writes it (zigzag, seven bits a byte), and `raw`."""
    rest = len(raw) << 1
    size = bytearray()
    while rest > 0x7F:
        size.append(rest & 0x7F | 0x80)
        rest >>= 7
    size.append(rest)
    return bytes(size), raw


def hash_routing(routing: bytes, seed: int) -> int:
    """Return what MatchKey.hash returns, over the bytes as they lie in an event.

    The matcher hashes what it has read, without putting the key together again.
    """
    return hash_encoded(routing, seed)


def owner_key(tenant: str, environment: str, owner: str) -> bytes:
    """Return the Kafka key of `relay.mailbox` and `relay.hints`: one mailbox, one partition."""
    return prefixed(tenant, environment, owner)


def prefixed(*parts: str) -> bytes:
    """Return `parts` as UTF-8, each with its length before it (u16, big-endian).

    Raises struct.error when a part is longer than 65,535 bytes.
    """
    raws = [part.encode() for part in parts]
    return b"".join([piece for raw in raws for piece in (LENGTH.pack(len(raw)), raw)])
