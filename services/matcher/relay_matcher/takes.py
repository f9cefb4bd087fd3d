"""Takes in the outbox: what was decided, to be rendered when it is published.

The transaction that decides holds the locks of its keys, so it writes down waitpoint and event as
it has them; `waitpoint.resolved` for each topic is made from that outside of it.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec
from relay_common import outbox
from relay_common.match_key import MatchKey
from relay_common.outbox import ROW_BYTES, Addressed, NewRow

from relay_matcher.announcement import Announcer
from relay_matcher.domain.event import Event
from relay_matcher.domain.waitpoint import Active
from relay_matcher.filling import filled
from relay_matcher.operations.lifecycle import event_json
from relay_matcher.resolution import Resolutions

LAYOUT = 2
Take = tuple[Active, Event]


class TakesRow(msgspec.Struct, frozen=True, array_like=True):
    """The payload of one row: each waitpoint as it was, and the place of the event it took."""

    layout: int
    at: datetime
    events: list[Event]
    takes: list[tuple[Active, int]]


ENCODE = msgspec.msgpack.Encoder(uuid_format="bytes").encode
DECODE = msgspec.msgpack.Decoder(TakesRow).decode


class TakesBuilder:
    """Collects takes of one shard until a row is full; an event is in it once for all takers."""

    def __init__(self) -> None:
        self.places: dict[tuple[MatchKey, bytes], int] = {}
        self.events: list[msgspec.Raw] = []
        self.takes: list[msgspec.Raw] = []
        self.size = 0

    def fits(self, take: Take) -> bool:
        """Say whether one more take goes into this row; its small parts may exceed the size."""
        waitpoint, event = take
        known = (event.key, event.event_id) in self.places
        size = len(waitpoint.opened) + (0 if known else len(event.value))
        return not self.takes or self.size + size <= ROW_BYTES

    def add(self, take: Take) -> None:
        """Append one take."""
        waitpoint, event = take
        known = (event.key, event.event_id)
        place = self.places.get(known)
        if place is None:
            place = self.places[known] = len(self.events)
            self.events.append(msgspec.Raw(ENCODE(event)))
            self.size += len(self.events[-1])
        self.takes.append(msgspec.Raw(ENCODE((waitpoint, place))))
        self.size += len(self.takes[-1])

    def payload(self, at: datetime) -> bytes:
        """Return the row's bytes."""
        return ENCODE((LAYOUT, at, self.events, self.takes))


def rows_of(announcer: Announcer, takes: Sequence[Take], at: datetime, shards: int) -> list[NewRow]:
    """Return the rows that announce `takes`, decided at `at`, in their order within a shard."""
    placed = ((outbox.shard_of(take[0].key.encoded(), shards), take) for take in takes)
    return filled(announcer.waitpoints, placed, at, TakesBuilder)


def expand(announcer: Announcer, payload: bytes) -> list[Addressed]:
    """Return the messages of one row."""
    row = DECODE(payload)
    shown = [event_json(event, row.at) for event in row.events]
    whole = [(waitpoint, row.events[place], shown[place]) for waitpoint, place in row.takes]
    messages = Resolutions(announcer, row.at).messages(whole)
    return [addressed for message in messages for addressed in outbox.spread(message)]
