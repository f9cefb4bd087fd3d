"""The statements of one batch of events; their number does not depend on its size."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from psycopg.errors import UniqueViolation
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
    """One reading of the clock under the key locks, and the first arrival number of the batch.

    An event is a repetition when the log has it between `since` and `until`.
    """

    at: datetime
    arrival: int
    since: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class BatchContext:
    """The ids of topics, and the source prefixes that a tenant and environment accept (D21)."""

    topic_ids: Mapping[str, str]
    sources: Mapping[tuple[str, str], tuple[str, ...]]


def lock_match_keys(conn: Connection, key_hashes: Iterable[int]) -> None:
    """Lock match keys until the transaction ends (design D4)."""
    conn.execute(SHARED["lock_match_keys"], {"key_hashes": longs(sorted(set(key_hashes)))})


@dataclass(frozen=True, slots=True)
class Waiting:
    """Active waitpoints whose rows are locked, and where in the table each of them lies."""

    waitpoints: list[Active]
    places: list[bytes]


def lock_waitpoints(conn: Connection, keys: Mapping[MatchKey, int]) -> Waiting:
    """Return the active event waitpoints of `keys` (key → hash), their rows locked in id order."""
    order = list(keys)
    rows = conn.execute(SQL["lock_waitpoints"], key_columns(keys), binary=True).fetchall()
    found: list[Active] = []
    for row in rows:
        number: int = row[1] - 1
        key = order[number]
        found.append(Active(row[2], key, keys[key], *row[3:]))
    return Waiting(found, [row[0] for row in rows])


def read_clock(conn: Connection) -> Clock:
    """Return the clock, creating the slice of the event log it points into if that is missing."""
    row = conn.execute(SQL["read_clock"], binary=True).fetchone()
    if row is None:
        raise LookupError("expected a clock, found none")
    if not row[4]:
        conn.execute(SQL["create_slices"], {"ahead": AHEAD})
    return Clock(*row[:4])


def repeated_events(conn: Connection, events: Sequence[Event], clock: Clock) -> set[int]:
    """Return the places of the events that the log has already (design D17)."""
    rows = conn.execute(
        SQL["repeated_events"],
        {
            "key_hashes": longs(event.key_hash for event in events),
            "event_ids": uuids([event.event_id for event in events]),
            "since": clock.since,
            "until": clock.until,
        },
        binary=True,
    )
    return {row[0] - 1 for row in rows}


def taken_before(conn: Connection, takes: Sequence[tuple[Active, Event]]) -> set[int]:
    """Return the places of the takes whose waiter has taken that event already."""
    if not takes:
        return set()
    rows = conn.execute(SQL["taken_before"], take_columns(takes), binary=True)
    return {row[0] - 1 for row in rows}


def resolve_by_event(
    conn: Connection, places: Sequence[bytes], events: Sequence[Event], at: datetime
) -> None:
    """Resolve the waitpoint at each of `places`, locked in this transaction, by its event.

    Raises TakenBefore when a waiter took its event long ago, and LookupError when a waitpoint was
    not there: a locked row does not move.
    """
    if not places:
        return
    columns = {"places": tids(places), "event_ids": uuids([event.event_id for event in events])}
    try:
        resolved = conn.execute(SQL["resolve_by_event"], {**columns, "at": at}).rowcount
    except UniqueViolation as violation:
        if violation.diag.constraint_name != "waitpoint_takes_an_event_once":
            raise
        raise TakenBefore from violation
    if resolved != len(places):
        raise LookupError(f"expected to resolve {len(places)} locked waitpoints, found {resolved}")


def expire_waitpoints(conn: Connection, overdue: Sequence[Active], at: datetime) -> None:
    """Expire waitpoints whose deadline has passed."""
    if overdue:
        conn.execute(SHARED["expire_waitpoints"], {**waitpoint_columns(overdue), "at": at})


def count_closed(conn: Connection, closed: Iterable[Active]) -> None:
    """Note how many waitpoints of each waiter were closed."""
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
    row = conn.execute(SQL["batch_context"]).fetchone()
    topic_ids, sources = row if row is not None else (None, None)
    return BatchContext(topic_ids or {}, {(one[0], one[1]): tuple(one[2]) for one in sources or ()})
