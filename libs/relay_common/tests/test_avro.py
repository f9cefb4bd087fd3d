"""The codec: both framings, versions, and everything that must be refused without harm."""

import json
import shutil
import struct
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_common.avro import SCHEMA_DIR, SINGLE_OBJECT, Codec, fingerprint_of
from relay_common.errors import Busy, Poison

CODEC = Codec()
EVENT = {
    "tenant": "acme",
    "environment": "prod",
    "event_type": "payment.settled",
    "correlation_key": "order-4711",
    "data": b"{}",
}


def reason_of(codec: Codec, value: bytes | None) -> str:
    with pytest.raises(Poison) as caught:
        codec.decode(value)
    return caught.value.reason


def test_record_comes_back_with_defaults() -> None:
    name, record = CODEC.decode(CODEC.encode("relay.events.v1", EVENT))
    assert name == "relay.events.v1"
    assert {k: v for k, v in record.items() if v is not None} == EVENT


def test_framing_is_single_object_with_the_specified_fingerprint() -> None:
    value = CODEC.encode("relay.events.v1", EVENT)
    assert value[:2] == SINGLE_OBJECT
    assert CODEC.prefix("relay.events.v1") == value[:10]
    assert CODEC.split(value) == ("relay.events.v1", 10)
    # The Avro specification's own vector, little-endian as it travels.
    assert fingerprint_of("null") == struct.pack("<Q", 0x63DD24E7CC258F8A)


def test_unknown_field_missing_field_and_naive_time_are_refused() -> None:
    with pytest.raises(ValueError, match="more fields than the schema"):
        CODEC.encode("relay.events.v1", {**EVENT, "surprise": 1})
    with pytest.raises(ValueError, match="missing from the record"):
        CODEC.encode("relay.events.v1", {"tenant": "acme"})
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 -- the point of the test
    with pytest.raises(ValueError, match="expected a time with an offset"):
        CODEC.encode("relay.events.v1", {**EVENT, "occurred_at": naive})


def test_confluent_framing_is_written_and_read_with_a_registry() -> None:
    codec = Codec(registry_url="mock://here")
    assert codec.registry is not None
    number = codec.registry.register("relay.events-value", codec.known["relay.events.v1"].text)
    value = codec.encode("relay.events.v1", EVENT)
    assert value[:5] == struct.pack(">bI", 0, number)
    assert codec.decode(value)[1]["tenant"] == "acme"
    assert codec.decode(CODEC.encode("relay.events.v1", EVENT))[1]["tenant"] == "acme"
    assert reason_of(codec, struct.pack(">bI", 0, 999) + b"x") == "unknown_schema"
    assert reason_of(CODEC, value) == "unknown_schema"


def event_schema(*kinds: object, name: str = "relay.Event") -> dict[str, object]:
    fields = [{"name": f"field_{place}", "type": kind} for place, kind in enumerate(kinds)]
    return {"type": "record", "name": name, "fields": fields}


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (event_schema(["null", "relay.Event"]), "too_deep"),
        (event_schema({"type": "array", "items": "null"}), "unknown_schema"),
        (event_schema(name="other.Event"), "unknown_schema"),
        ("string", "unknown_schema"),
    ],
    ids=["recursive", "array of null", "another record", "no record"],
)
def test_unsafe_schemas_of_a_registry_are_refused(schema: object, reason: str) -> None:
    codec = Codec(registry_url="mock://here")
    assert codec.registry is not None
    number = codec.registry.register("relay.events-value", json.dumps(schema))
    assert reason_of(codec, struct.pack(">bI", 0, number) + b"\x02" * 200_000) == reason


def test_unreachable_registry_is_no_fault_of_the_record() -> None:
    codec = Codec(registry_url="http://127.0.0.1:9")
    with pytest.raises(Busy):
        codec.decode(struct.pack(">bI", 0, 7) + b"x")


def test_older_and_newer_versions_are_read_as_the_newest(tmp_path: Path) -> None:
    for path in SCHEMA_DIR.glob("*.avsc"):
        shutil.copy(path, tmp_path)
    newer = json.loads((SCHEMA_DIR / "relay.events.v1.avsc").read_text())
    newer["fields"].append({"name": "priority", "type": ["null", "int"], "default": None})
    (tmp_path / "relay.events.v2.avsc").write_text(json.dumps(newer))
    codec = Codec(tmp_path)
    name, record = codec.decode(CODEC.encode("relay.events.v1", EVENT))
    assert (name, record["priority"]) == ("relay.events.v1", None)
    written = codec.encode("relay.events.v2", {**EVENT, "priority": 3})
    assert codec.decode(written)[1]["priority"] == 3


def test_folder_without_schemas_or_with_a_strange_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="found none"):
        Codec(tmp_path)
    (tmp_path / "events.avsc").write_text('"string"')
    with pytest.raises(ValueError, match=r"<topic>.v<N>.avsc"):
        Codec(tmp_path)


GOOD = CODEC.encode("relay.events.v1", {**EVENT, "occurred_at": datetime(2026, 1, 1, tzinfo=UTC)})
BODY = GOOD[10:]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "null_value"),
        (b"", "truncated"),
        (b"\xc3", "truncated"),
        (b"\0\0", "truncated"),
        (b"{}", "bad_magic"),
        (SINGLE_OBJECT + b"\1" * 9, "unknown_schema"),
        (GOOD[:-1], "truncated"),
        (GOOD + b"\0", "trailing_bytes"),
        (GOOD.replace(b"acme", b"\xff\xfe\xff\xfe"), "invalid_utf8"),
        (GOOD[:10] + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "truncated"),
        (GOOD[:10] + b"\x01" + BODY, "truncated"),
        (b"\xc3\x01" + b"\0" * (17 << 20), "oversized"),
        (GOOD[:-3] + b"\x0a" + GOOD[-2:], "truncated"),
    ],
)
def test_poison_has_its_reason(value: bytes | None, reason: str) -> None:
    assert reason_of(CODEC, value) == reason


def test_time_outside_the_calendar_is_poison_not_a_crash() -> None:
    body = (
        b"\2a\2b\2c\2d"
        + b"\0\0\0\0"
        + b"\2"
        + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
        + b"\0" * 4
    )
    assert reason_of(CODEC, GOOD[:10] + body) == "invalid_value"


@given(st.binary(max_size=200))
def test_random_bytes_give_a_record_or_poison_and_nothing_else(tail: bytes) -> None:
    for schema in CODEC.known:
        try:
            CODEC.decode(CODEC.prefix(schema) + tail)
        except Poison:
            continue


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
def test_any_flipped_byte_gives_a_record_or_poison(place: int, byte: int) -> None:
    broken = GOOD[:place] + bytes([byte]) + GOOD[place + 1 :]
    try:
        CODEC.decode(broken)
    except Poison:
        return
