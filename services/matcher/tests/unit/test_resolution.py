"""What is packed by hand for a batch is what the general announcement says, byte for byte."""

import uuid
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from relay_common import outbox
from relay_common.avro import Codec
from relay_common.match_key import MatchKey, owner_key
from relay_matcher import expiries
from relay_matcher.announcement import Announcer
from relay_matcher.domain.event import Event
from relay_matcher.domain.waitpoint import Active
from relay_matcher.expansion import expander
from relay_matcher.operations import lifecycle
from relay_matcher.resolution import Resolutions
from relay_matcher.takes import rows_of

TEXT = st.text(min_size=1, max_size=90)
TIMES = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
KEYS = st.builds(MatchKey, TEXT, TEXT, TEXT, TEXT)
ANNOUNCER = Announcer(Codec().prefix, lambda name: f"x.{name}")


@st.composite
def takes(draw):
    """Return a waitpoint and the event it takes."""
    key = draw(KEYS)
    waitpoint = Active(
        uuid.UUID(bytes=draw(st.binary(min_size=16, max_size=16))),
        key,
        1,
        draw(TEXT),
        "event",
        None,
        None,
        draw(TIMES),
        draw(st.integers(1, 300)),
        draw(st.integers(1, 300)),
        draw(st.none() | TEXT),
        None,
        draw(st.binary(max_size=20_000)),
    )
    event_id = draw(st.binary(min_size=16, max_size=16))
    trace = draw(st.sampled_from([(), (("traceparent", b"00-1-2-01"),)]))
    recipient = draw(st.none() | TEXT)
    event = Event(key, 1, recipient, None, None, event_id, True, None, 0, -1, b"", trace)
    return waitpoint, event, draw(st.binary(max_size=300))


@given(st.lists(takes(), min_size=1, max_size=4), TIMES)
def test_hand_packed_resolution_is_the_general_one(batch, at):
    expected = [
        message
        for waitpoint, event, shown in batch
        for message in lifecycle.resolved_by_event(ANNOUNCER, waitpoint, event, shown, at)
    ]
    assert Resolutions(ANNOUNCER, at).messages(batch) == expected


def addressed(rows):
    """Return what the publisher makes of `rows`."""
    return [one for row in rows for one in expander(ANNOUNCER)(row.topic, row.payload)]


DIFFERENT = st.lists(takes(), min_size=1, max_size=4, unique_by=lambda take: take[1].event_id)


@given(DIFFERENT, TIMES)
def test_row_of_takes_expands_to_the_general_announcements(batch, at):
    decided = [(waitpoint, event) for waitpoint, event, _ in batch]
    general = [
        message
        for waitpoint, event in decided
        for message in lifecycle.resolved_by_event(
            ANNOUNCER, waitpoint, event, lifecycle.event_json(event, at), at
        )
    ]
    expected = [one for message in general for one in outbox.spread(message)]
    assert addressed(rows_of(ANNOUNCER, decided, at, 1)) == expected


def test_takes_fill_rows_in_order_and_hold_a_shared_event_once():
    at = datetime(2026, 1, 1, tzinfo=UTC)
    key = MatchKey("acme", "prod", "settled", "k")
    value = b"v" * 200_000
    event = Event(key, 1, None, None, None, b"e" * 16, True, None, 0, -1, value)
    waiting = [
        Active(
            uuid.uuid4(), key, 1, f"w{n}", "event", None, None, at, 1, 1, None, None, b"x" * 90_000
        )
        for n in range(40)
    ]
    rows = rows_of(ANNOUNCER, [(waitpoint, event) for waitpoint in waiting], at, 2)
    assert len(rows) == 5
    assert {row.shard for row in rows} == {outbox.shard_of(key.encoded(), 2)}
    assert all(len(row.payload) <= outbox.LARGEST_MESSAGE for row in rows)
    owners = [key for topic, (key, _, _) in addressed(rows) if topic == "x.relay.mailbox"]
    assert owners == [owner_key("acme", "prod", waitpoint.waiter) for waitpoint in waiting]


@given(st.lists(takes(), min_size=1, max_size=4), TIMES)
def test_row_of_expiries_expands_to_the_general_announcements(batch, at):
    overdue = [waitpoint for waitpoint, _, _ in batch]
    expected = [
        addressed
        for waitpoint in overdue
        for message in lifecycle.expired(ANNOUNCER, waitpoint, at)
        for addressed in outbox.spread(message)
    ]
    assert addressed(expiries.rows_of(ANNOUNCER, overdue, at, 1)) == expected


def test_rows_of_expiries_end_where_rows_end():
    key = MatchKey("t", "e", "x", "k")
    at = datetime(2026, 1, 1, tzinfo=UTC)
    opened = b'{"tags":"' + b"x" * 300_000 + b'"'
    overdue = [
        Active(uuid.uuid4(), key, 1, "w", "event", None, None, at, 1, 1, None, None, opened)
        for _ in range(7)
    ]
    rows = expiries.rows_of(ANNOUNCER, overdue, at, 2)
    assert [len(row.payload) // 300_000 for row in rows] == [3, 3, 1]
    assert len(addressed(rows)) == 14
