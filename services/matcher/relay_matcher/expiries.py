"""Expiries in the outbox: many waitpoints end at one time; that is told when it is published."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
from relay_common import outbox
from relay_common.outbox import ROW_BYTES, Addressed, NewRow

from relay_matcher.announcement import Announcer
from relay_matcher.domain.waitpoint import Active
from relay_matcher.filling import filled
from relay_matcher.operations import lifecycle

LAYOUT = 3


class ExpiriesRow(msgspec.Struct, frozen=True, array_like=True):
    """The payload of one row: waitpoints as they were when they expired."""

    layout: int
    at: datetime
    waitpoints: list[Active]


ENCODE = msgspec.msgpack.Encoder(uuid_format="bytes").encode
DECODE = msgspec.msgpack.Decoder(ExpiriesRow).decode


class ExpiriesBuilder:
    """Collects waitpoints of one shard until a row is full."""

    def __init__(self) -> None:
        self.waitpoints: list[msgspec.Raw] = []
        self.size = 0

    def fits(self, waitpoint: msgspec.Raw) -> bool:
        """Say whether one more waitpoint, packed, goes into this row."""
        return not self.waitpoints or self.size + len(waitpoint) <= ROW_BYTES

    def add(self, waitpoint: msgspec.Raw) -> None:
        """Append one packed waitpoint."""
        self.waitpoints.append(waitpoint)
        self.size += len(waitpoint)

    def payload(self, at: datetime) -> bytes:
        """Return the row's bytes."""
        return ENCODE((LAYOUT, at, self.waitpoints))


def rows_of(
    announcer: Announcer, overdue: Sequence[Active], at: datetime, shards: int
) -> list[NewRow]:
    """Return the rows that announce that `overdue` expired at `at`, in their order in a shard."""
    placed = (
        (
            outbox.shard_of(waitpoint.key.encoded(), shards),
            msgspec.Raw(ENCODE(lifecycle.slim(waitpoint))),
        )
        for waitpoint in overdue
    )
    return filled(announcer.waitpoints, placed, at, ExpiriesBuilder)


def expand(announcer: Announcer, payload: bytes) -> list[Addressed]:
    """Return the messages of one row."""
    row = DECODE(payload)
    return [
        addressed
        for waitpoint in row.waitpoints
        for message in lifecycle.expired(announcer, waitpoint, row.at)
        for addressed in outbox.spread(message)
    ]
