"""Leases: an opaque id that fences, and the four answers to an acknowledgement."""

import struct
import uuid
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from relay_common.ids import decode_id, encode_id

AckResult: TypeAlias = Literal["acked", "already_acked", "lease_lost", "not_found"]
ACK_RESULTS: tuple[AckResult, ...] = get_args(AckResult)

PREFIX = "ls_"
LAYOUT = struct.Struct(">16sqq")


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease: only its token fences; first and last seq say where its records lie.

    So that no table of leases is needed. Somebody who forges the range finds nothing there that
    carries the token.
    """

    token: uuid.UUID
    first: int
    last: int

    def encoded(self) -> str:
        """Return the id that a reader gets (`ls_…`)."""
        return encode_id(PREFIX, LAYOUT.pack(self.token.bytes, self.first, self.last))


def decode_lease(text: str) -> Lease | None:
    """Return the lease behind `text`, None when it is not one that Relay hands out."""
    raw = decode_id(PREFIX, text, LAYOUT.size)
    if raw is None:
        return None
    token, first, last = LAYOUT.unpack(raw)
    return Lease(uuid.UUID(bytes=token), first, last) if 1 <= first <= last else None
