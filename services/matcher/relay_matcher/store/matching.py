"""The statements of one batch of events; their number does not depend on its size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg import Cursor
from psycopg.errors import UniqueViolation
from psycopg.rows import TupleRow
from relay_common import outbox, queries
from relay_common.arrays import longs, tids, uuids
from relay_common.db import Connection
from relay_common.errors import Busy
from relay_common.match_key import MatchKey
from relay_common.outbox import NewRow, OutMessage

from relay_matcher.domain.event import Event
from relay_matcher.domain.matching import Outcome
from relay_matcher.domain.rules import Rule
from relay_matcher.domain.waitpoint import Active
from relay_matcher.store.columns import closed_columns, key_columns, take_columns, waitpoint_columns

SQL = queries.load("relay_matcher", "matching")
SHARED = queries.load("relay_matcher", "shared")


class TakenBefore(Busy):
    """A waiter of this batch took one of its events long ago: match again, and look first."""


BLOCK = 4096  # arrival numbers in one block of the sequence
AHEAD = "24 hours"
# The id goes over as its 16 bytes: for COPY a uuid is nothing else.
EVENT_TYPES = ("timestamptz", "int8", "int8", "bytea", "int2", *["text"] * 6, "bytea")


@dataclass(frozen=True, slots=True)
class Clock:
    """One reading of the clock under the key locks, and the first arrival number of the batch."""

    at: datetime
    arrival: int


@dataclass(frozen=True, slots=True)
class BatchContext:
    """The ids of topics, and the source prefixes that a tenant and environment accept (D21)."""

    topic_ids: Mapping[str, str]
    sources: Mapping[tuple[str, str], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Active waitpoints whose rows are locked, and where in the table each of them lies."""

    waitpoints: list[Active]
    places: list[bytes]


@dataclass(frozen=True, slots=True)
class Found:
    """What stands against a batch: who waits, which of its events the log has, and the time."""

    waiting: Waiting
    repeated: set[int]
    clock: Clock


def lock_and_find(conn: Connection, keys: Mapping[MatchKey, int], events: Sequence[Event]) -> Found:
    """Lock `keys` (key → hash) until the transaction ends, then find what stands against `events`.

    A waitpoint that another transaction moved or closed between being found and being locked is
    looked for again.
    """
    found = None
    while found is None:
        found = find_once(conn, keys, events)
    return found


def find_once(
    conn: Connection, keys: Mapping[MatchKey, int], events: Sequence[Event]
) -> Found | None:
    """Return what stands against `events`; None when a waitpoint moved before it was locked.

    Four statements, each with a snapshot of its own, in one round trip: the locks of the keys, the
    active event waitpoints with their rows locked in id order, the repetitions, the clock
    (design D4, D5, D17).
    """
    hashes = longs(event.key_hash for event in events)
    ids = uuids([event.event_id for event in events])
    with conn.pipeline():
        conn.execute(SHARED["lock_match_keys"], {"key_hashes": longs(sorted(set(keys.values())))})
        locked = conn.execute(SQL["lock_waitpoints"], key_columns(keys), binary=True)
        columns = {"key_hashes": hashes, "event_ids": ids}
        repeated = conn.execute(SQL["repeated_events"], columns, binary=True)
        clock = conn.execute(SQL["read_clock"], binary=True)
    rows = locked.fetchall()
    if any(row[0] is None for row in rows):
        return None
    return Found(
        waiting_of(keys, rows),
        {row[0] - 1 for row in repeated},
        clock_of(conn, clock.fetchone()),
    )


def waiting_of(keys: Mapping[MatchKey, int], rows: Sequence[TupleRow]) -> Waiting:
    """Return the waitpoints in `rows`; each row says which of `keys` it is for."""
    order = list(keys)
    found: list[Active] = []
    for row in rows:
        number: int = row[1] - 1
        key = order[number]
        found.append(Active(row[2], key, keys[key], *row[3:]))
    return Waiting(found, [row[0] for row in rows])


def clock_of(conn: Connection, row: TupleRow | None) -> Clock:
    """Return the clock, creating the slice of the event log it points into if that is missing."""
    if row is None:
        raise LookupError("expected a clock, found none")
    at, arrival, has_slice = row
    if not has_slice:
        conn.execute(SQL["create_slices"], {"ahead": AHEAD})
    return Clock(at, arrival)


def taken_before(conn: Connection, takes: Sequence[tuple[Active, Event]]) -> set[int]:
    """Return the places of the takes whose waiter has taken that event already."""
    if not takes:
        return set()
    rows = conn.execute(SQL["taken_before"], take_columns(takes), binary=True)
    return {row[0] - 1 for row in rows}


@dataclass(frozen=True, slots=True)
class Closings:
    """What a batch closes: takes, each with the place of its waitpoint, and what is overdue."""

    takes: Sequence[tuple[Active, Event]]
    places: Sequence[bytes]
    overdue: Sequence[Active]

    def waitpoints(self) -> list[Active]:
        """Return all waitpoints that are closed."""
        return [*(waitpoint for waitpoint, _ in self.takes), *self.overdue]


def close(conn: Connection, closings: Closings, at: datetime, rows: Sequence[NewRow]) -> None:
    """Close locked waitpoints, count them, and append outbox `rows`, in one round trip.

    Raises TakenBefore when a waiter took its event long ago, and LookupError when a waitpoint was
    not there: a locked row does not move.
    """
    if not closings.takes and not closings.overdue and not rows:
        return
    try:
        with conn.pipeline():
            resolved = resolve_by_event(conn, closings, at)
            expire_waitpoints(conn, closings.overdue, at)
            count_closed(conn, closings.waitpoints())
            append_rows(conn, rows)
    except UniqueViolation as violation:
        if violation.diag.constraint_name != "waitpoint_takes_an_event_once":
            raise
        raise TakenBefore from violation
    if resolved and resolved.rowcount != len(closings.takes):
        raise LookupError(f"expected {len(closings.takes)} locked waitpoints, found less")


def resolve_by_event(conn: Connection, closings: Closings, at: datetime) -> Cursor[TupleRow] | None:
    """Resolve waitpoints, each by the event it takes; None when there are none."""
    if not closings.takes:
        return None
    ids = uuids([event.event_id for _, event in closings.takes])
    columns = {"places": tids(closings.places), "event_ids": ids, "at": at}
    return conn.execute(SQL["resolve_by_event"], columns)


def expire_waitpoints(conn: Connection, overdue: Sequence[Active], at: datetime) -> None:
    """Expire waitpoints whose deadline has passed."""
    if overdue:
        conn.execute(SHARED["expire_waitpoints"], {**waitpoint_columns(overdue), "at": at})


def count_closed(conn: Connection, closed: Sequence[Active]) -> None:
    """Note how many waitpoints of each waiter were closed."""
    if closed:
        conn.execute(SHARED["count_closed"], closed_columns(closed))


def record_events(
    conn: Connection, events: Sequence[Event], outcome: Outcome, clock: Clock
) -> None:
    """Write every event once into the log, in order of arrival."""
    if not events:
        return
    with conn.cursor() as cursor, cursor.copy(SQL["record_events"]) as copy:
        copy.set_types(EVENT_TYPES)
        rules, no_waitpoint = outcome.rules, Rule.no_waitpoint
        for place, event in enumerate(events):
            key = event.key
            copy.write_row(
                (
                    clock.at,
                    event.key_hash,
                    clock.arrival + place,
                    event.event_id,
                    rules.get(place, no_waitpoint),
                    key.tenant,
                    key.environment,
                    key.event_type,
                    key.correlation_key,
                    event.recipient,
                    outcome.reasons.get(place),
                    event.value,
                )
            )


def announce(conn: Connection, messages: Sequence[OutMessage], shards: int) -> None:
    """Append messages to the outbox."""
    append_rows(conn, outbox.rows_of(messages, shards))


def append_rows(conn: Connection, rows: Sequence[NewRow]) -> None:
    """Append rows to the outbox."""
    if rows:
        conn.execute(outbox.INSERT, outbox.parameters(rows))


def batch_context(conn: Connection) -> BatchContext:
    """Return what reading a batch needs to know."""
    with conn.pipeline():
        found = conn.execute(SQL["batch_context"])
    row = found.fetchone()
    topic_ids, sources = row if row is not None else (None, None)
    return BatchContext(topic_ids or {}, {(one[0], one[1]): tuple(one[2]) for one in sources or ()})
