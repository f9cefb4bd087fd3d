"""Expiries in the outbox: many waitpoints end at one time; that is told when it is published."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
from relay_common import outbox
from relay_common.outbox import ROW_BYTES, Addressed, NewRow

from relay_matcher.announcement import Announcer
from relay_matcher.domain.waitpoint import Active
from relay_matcher.operations import lifecycle

LAYOUT = 3


class ExpiriesRow(msgspec.Struct, frozen=True, array_like=True):
    """The payload of one row: waitpoints as they were when they expired."""

    layout: int
    at: datetime
    waitpoints: list[Active]


ENCODE = msgspec.msgpack.Encoder(uuid_format="bytes").encode
DECODE = msgspec.msgpack.Decoder(ExpiriesRow).decode


def rows_of(
    announcer: Announcer, overdue: Sequence[Active], at: datetime, shards: int
) -> list[NewRow]:
    """Return the rows that announce that `overdue` expired at `at`, in their order in a shard."""
    done: list[NewRow] = []
    building: dict[int, list[msgspec.Raw]] = {}
    sizes: dict[int, int] = {}

    def finished(shard: int) -> NewRow:
        payload = ENCODE((LAYOUT, at, building.pop(shard)))
        return NewRow(shard, announcer.waitpoints, payload)

    for waitpoint in overdue:
        shard = outbox.shard_of(waitpoint.key.encoded(), shards)
        one = msgspec.Raw(ENCODE(lifecycle.slim(waitpoint)))
        sizes[shard] = sizes.get(shard, 0) + len(one)
        if shard in building and sizes[shard] > ROW_BYTES:
            done.append(finished(shard))
            sizes[shard] = len(one)
        building.setdefault(shard, []).append(one)
    return [*done, *(finished(shard) for shard in list(building))]


def expand(announcer: Announcer, payload: bytes) -> list[Addressed]:
    """Return the messages of one row."""
    row = DECODE(payload)
    return [
        addressed
        for waitpoint in row.waitpoints
        for message in lifecycle.expired(announcer, waitpoint, row.at)
        for addressed in outbox.spread(message)
    ]
