"""Reading an event's bytes: the same as the Avro library reads, and a reason for what is broken."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_common.avro import Codec
from relay_common.errors import Poison
from relay_common.ids import decode_id, derive_id
from relay_matcher.domain.event import Origin, external_id, read_event, stored_event, uuid_of

CODEC = Codec()
ORIGIN = Origin("topic-id", 3, 99)
SEED = 42
keys = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
short = keys.filter(lambda text: len(text.encode()) <= 200)
optional = st.none() | short


def encoded(**given: Any) -> bytes:
    """Return an event's value."""
    fields: dict[str, Any] = {
        "tenant": "acme",
        "environment": "test",
        "event_type": "order.paid",
        "correlation_key": "o-1",
        "recipient": None,
        "source": None,
        "id": None,
        "event_id": None,
        "occurred_at": None,
        "accepted_by": None,
        "dataref_uri": None,
        "dataref_digest": None,
        "data": b"{}",
    }
    return CODEC.encode("relay.events.v1", {**fields, **given})


def read(value: bytes) -> Any:
    """Read a value as the consumer does."""
    return read_event(value, CODEC.split(value)[1], SEED, ORIGIN)


@given(
    st.fixed_dictionaries(
        {
            "tenant": short,
            "environment": short,
            "event_type": short,
            "correlation_key": short,
            "recipient": optional,
            "source": optional,
            "id": optional,
            "event_id": st.none() | st.binary(min_size=16, max_size=16),
            "accepted_by": optional,
            "dataref_uri": optional,
            "dataref_digest": optional,
            "data": st.none() | st.binary(max_size=20_000),
        }
    )
)
def test_event_is_read_as_the_library_reads_it(fields: dict[str, Any]) -> None:
    event = read(encoded(**fields))
    key = event.key
    assert (key.tenant, key.environment) == (fields["tenant"], fields["environment"])
    assert (key.event_type, key.correlation_key) == (
        fields["event_type"],
        fields["correlation_key"],
    )
    assert (event.recipient, event.source, event.source_id) == (
        fields["recipient"],
        fields["source"],
        fields["id"],
    )
    assert event.data == fields["data"]
    assert event.direct == (fields["accepted_by"] is None)
    assert event.key_hash == key.hash(SEED)
    again = stored_event(
        event.value, CODEC.split(event.value)[1], event.key_hash, uuid_of(event.event_id)
    )
    assert again.key == event.key
    assert again.event_id == event.event_id


def test_id_comes_from_source_and_id_else_from_intake_else_from_the_place() -> None:
    named = read(encoded(source="shop", id="1", event_id=b"x" * 16)).event_id
    assert named == derive_id("event", "acme", "test", "shop", "1")
    assert read(encoded(id="1")).event_id == derive_id("event", "acme", "test", "", "1")
    assert read(encoded(event_id=b"x" * 16)).event_id == b"x" * 16
    assert read(encoded()).event_id == derive_id("event-kafka", "topic-id", "3", "99")


def test_id_outside_is_hash_and_id() -> None:
    event = read(encoded(id="1"))
    raw = decode_id("ev_", event.external_id, 24)
    assert raw == event.key_hash.to_bytes(8, "big", signed=True) + event.event_id
    assert event.external_id == external_id(event.key_hash, event.event_id)


@given(st.integers(11, 200), st.integers(0, 255))
def test_broken_bytes_have_a_reason(place: int, byte: int) -> None:
    value = encoded(recipient="agent:a", source="s", id="i", event_id=b"y" * 16, data=b"[1,2,3]")
    mutated = bytearray(value)
    mutated[place % (len(value) - 10) + 10] = byte
    try:
        outcome = read(bytes(mutated)).value
    except Poison as poison:
        outcome = poison.reason
    assert outcome == bytes(mutated) or isinstance(outcome, str)


@pytest.mark.parametrize("cut", range(11, len(encoded(source="s", id="i"))))
def test_truncated_event_is_poison_wherever_it_ends(cut: int) -> None:
    with pytest.raises(Poison) as caught:
        read(encoded(source="s", id="i")[:cut])
    assert caught.value.reason in ("truncated", "trailing_bytes", "invalid_key", "invalid_value")


@pytest.mark.parametrize(
    ("given_fields", "reason"),
    [
        ({"correlation_key": ""}, "invalid_key"),
        ({"correlation_key": "x" * 513}, "invalid_key"),
        ({"event_type": "a\0b"}, "invalid_key"),
        ({"tenant": ""}, "invalid_identity"),
        ({"recipient": "x" * 513}, "invalid_identity"),
        ({"data": b"x" * (256 * 1024 + 1)}, "oversized"),
    ],
)
def test_bounds(given_fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(Poison) as caught:
        read(encoded(**given_fields))
    assert caught.value.reason == reason


def test_trailing_bytes_and_bad_text_are_poison() -> None:
    with pytest.raises(Poison) as trailing:
        read(encoded() + b"x")
    assert trailing.value.reason == "trailing_bytes"
    with pytest.raises(Poison) as text:
        read(encoded().replace(b"o-1", b"o-\xff"))
    assert text.value.reason == "invalid_utf8"
