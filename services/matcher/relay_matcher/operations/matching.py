"""Matching: one batch of events against the waitpoints of their keys, in one transaction."""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from relay_common import outbox
from relay_common.db import Connection
from relay_common.outbox import OutMessage

from relay_matcher import takes as announced
from relay_matcher.announcement import Announcer
from relay_matcher.domain.event import Event
from relay_matcher.domain.matching import Outcome, Pair, Verdicts, match
from relay_matcher.domain.rules import Rule
from relay_matcher.domain.waitpoint import Active
from relay_matcher.operations import lifecycle
from relay_matcher.store import matching as store


@dataclass(frozen=True, slots=True)
class Matched:
    """What a batch came to: events recorded by rule, and waitpoints closed."""

    rules: Mapping[Rule, int]
    repeated: int
    resolved: int
    expired: int


def match_events(
    conn: Connection,
    events: Sequence[Event],
    announcer: Announcer,
    shards: int,
    *,
    look_first: bool = False,
) -> Matched:
    """Match and record `events`, in offset order, in the open transaction of `conn`.

    Each waitpoint gets the first event that recipient and condition allow; one event resolves all
    its waiters (spec, Matching; design D1 to D5, D17). An event the log has changes nothing.

    Raises TakenBefore, unless it may `look_first`, when a waiter took an event before the log last
    forgot it. That is rare, so only the database looks each time (`waitpoint_takes_an_event_once`).
    """
    keys = {event.key: event.key_hash for event in events}
    found = store.lock_and_find(conn, keys, events)
    waiting, clock = found.waiting.waitpoints, found.clock
    fresh = first_of_each(events, found.repeated)
    outcome = take(conn, waiting, fresh, clock.at, look_first=look_first)
    takes = [(waiting[waiter], fresh[place]) for waiter, place in outcome.taken.items()]
    overdue = [w for w in waiting if w.expires_at <= clock.at]
    places = [found.waiting.places[waiter] for waiter in outcome.taken]
    closed = [m for w in overdue for m in lifecycle.expired(announcer, w, clock.at)]
    shown = held(announcer, fresh, outcome, clock.at)
    rows = [
        *outbox.rows_of(closed, shards),
        *announced.rows_of(announcer, takes, clock.at, shards),
        *outbox.rows_of(shown, shards),
    ]
    store.close(conn, store.Closings(takes, places, overdue), clock.at, rows)
    store.record_events(conn, fresh, outcome, clock)
    return Matched(
        rule_counts(outcome, len(fresh)), len(events) - len(fresh), len(takes), len(overdue)
    )


def rule_counts(outcome: Outcome, events: int) -> Counter[Rule]:
    """Return how many events are recorded by each rule."""
    counts = Counter(outcome.rules.values())
    counts[Rule.no_waitpoint] += events - len(outcome.rules)
    return counts


def first_of_each(events: Sequence[Event], repeated: set[int]) -> Sequence[Event]:
    """Return the events that are neither in the log nor earlier in this batch."""
    if not repeated and len({event.event_id for event in events}) == len(events):
        return events
    first: dict[tuple[int, bytes], Event] = {}
    for place, event in enumerate(events):
        if place not in repeated:
            first.setdefault((event.key_hash, event.event_id), event)
    return list(first.values())


def take(
    conn: Connection,
    waiting: Sequence[Active],
    events: Sequence[Event],
    at: datetime,
    *,
    look_first: bool,
) -> Outcome:
    """Say who takes what; a waiter that took an event long ago gets the next one (design D2).

    Raises SlowConditions when the batch has to be cut.
    """
    began = time.monotonic()
    verdicts = Verdicts(events, lambda: time.monotonic() - began)
    refused: set[Pair] = set()
    while True:
        outcome = match(waiting, events, at, refused, verdicts)
        if not look_first:
            return outcome
        wanted = list(outcome.taken.items())
        before = store.taken_before(conn, [(waiting[w], events[place]) for w, place in wanted])
        if not before:
            return outcome
        refused |= {wanted[number] for number in before}


def held(
    announcer: Announcer, events: Sequence[Event], outcome: Outcome, at: datetime
) -> list[OutMessage]:
    """Return the records that show addressed events nobody took to their recipients (design D1)."""
    return [
        lifecycle.early_event(
            announcer, event, event.recipient, lifecycle.event_json(event, at), "held"
        )
        for place, event in enumerate(events)
        if event.recipient is not None and outcome.rule(place) is not Rule.exact_key
    ]
