"""The common event, read in one pass, is the event that the full reader reads; or is left to it."""

import uuid
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_common.avro import Codec
from relay_common.errors import Poison
from relay_matcher.domain.event import Origin, parse, read_common, read_event
from relay_matcher.domain.short_event import UncommonError

CODEC = Codec()
ORIGIN = Origin("topic", 3, 41)
FRAMING = 10
SEED = 12345
COMMON = {
    "tenant": "acme",
    "environment": "prod",
    "event_type": "payment.settled",
    "correlation_key": "order-1",
    "recipient": None,
    "source": "shop",
    "id": "e-1",
    "event_id": None,
    "occurred_at": datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    "accepted_by": None,
    "dataref_uri": None,
    "dataref_digest": None,
    "data": b'{"a":1}',
}
TEXT = st.text(min_size=1, max_size=80).filter(lambda text: "\0" not in text)
TIMES = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
RECORDS = st.fixed_dictionaries(
    {
        "tenant": TEXT,
        "environment": TEXT,
        "event_type": TEXT,
        "correlation_key": TEXT,
        "recipient": st.none() | TEXT,
        "source": st.none() | TEXT,
        "id": st.none() | TEXT,
        "event_id": st.none() | st.binary(min_size=16, max_size=16),
        "occurred_at": st.none() | TIMES,
        "accepted_by": st.none() | TEXT,
        "dataref_uri": st.none() | TEXT,
        "dataref_digest": st.none() | TEXT,
        "data": st.none() | st.binary(max_size=200) | st.binary(min_size=8000, max_size=8500),
    }
)


def encoded(**changes: object) -> bytes:
    """Return the common event with `changes`."""
    return CODEC.encode("relay.events.v1", {**COMMON, **changes})


def outcome(read, value: bytes) -> object:
    """Return the event, or the reason it is refused for."""
    try:
        return read(value, FRAMING, SEED, ORIGIN)
    except Poison as poison:
        return poison.reason


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"source": None},
        {"id": None},
        {"id": None, "event_id": uuid.uuid4().bytes},
        {"occurred_at": None},
        {"accepted_by": "client:shop"},
        {"data": None},
        {"data": b""},
        {"data": b"x" * 8191},
        {"correlation_key": "k" * 63},
    ],
)
def test_common_event_is_read_in_one_pass(changes):
    value = encoded(**changes)
    assert read_common(value, FRAMING, SEED, ORIGIN) == parse(value, FRAMING, SEED, ORIGIN)


@pytest.mark.parametrize(
    "changes",
    [
        {"recipient": "agent:a"},
        {"correlation_key": "k" * 64},
        {"tenant": "ä"},
        {"source": "ä"},
        {"dataref_uri": "s3://a"},
        {"occurred_at": datetime(1970, 1, 1, tzinfo=UTC)},
        {"data": b"x" * 8192},
    ],
)
def test_less_common_event_is_left_to_the_full_reader(changes):
    value = encoded(**changes)
    with pytest.raises(UncommonError):
        read_common(value, FRAMING, SEED, ORIGIN)
    assert read_event(value, FRAMING, SEED, ORIGIN) == parse(value, FRAMING, SEED, ORIGIN)


@given(RECORDS)
def test_any_event_is_the_same_to_both_readers(record):
    value = CODEC.encode("relay.events.v1", record)
    assert outcome(read_event, value) == outcome(parse, value)


@given(st.data())
def test_any_damage_is_the_same_to_both_readers(data):
    value = bytearray(encoded())
    at = data.draw(st.integers(FRAMING, len(value) - 1))
    value[at] = data.draw(st.integers(0, 255))
    damaged = bytes(value[: data.draw(st.integers(at + 1, len(value)))])

    def full(*arguments):
        try:
            return parse(*arguments)
        except IndexError:
            raise Poison("truncated") from None
        except UnicodeDecodeError:
            raise Poison("invalid_utf8") from None

    assert outcome(read_event, damaged) == outcome(full, damaged)
