"""The match key: the one exact key by which events and waitpoints find each other."""

from dataclasses import dataclass
from struct import Struct

import xxhash

LENGTH = Struct(">H")
MASK = 0xFFFF_FFFF_FFFF_FFFF


@dataclass(frozen=True, slots=True)
class MatchKey:
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
        return hash_encoded(self.encoded(), seed)


def hash_encoded(encoded: bytes, seed: int) -> int:
    """Return what MatchKey.hash returns, for a key that is encoded already."""
    unsigned = xxhash.xxh3_64_intdigest(encoded, seed & MASK)
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def owner_key(tenant: str, environment: str, owner: str) -> bytes:
    """Return the Kafka key of `relay.mailbox` and `relay.hints`: one mailbox, one partition."""
    return prefixed(tenant, environment, owner)


def prefixed(*parts: str) -> bytes:
    """Return `parts` as UTF-8, each with its length before it (u16, big-endian).

    Raises struct.error when a part is longer than 65,535 bytes.
    """
    encoded: list[bytes] = []
    for part in parts:
        raw = part.encode("utf-8")
        encoded.append(LENGTH.pack(len(raw)))
        encoded.append(raw)
    return b"".join(encoded)
