"""The four forms of an event, and everything that is none."""

import json
from datetime import UTC, datetime

import pytest
from relay_common.errors import (
    MalformedJson,
    MalformedRequest,
    PayloadTooLarge,
    RelayError,
    UnknownField,
    ValidationFailed,
)
from relay_intake.domain.event import Event
from relay_intake.forms import read_binary, read_own_form, read_structured, read_structured_batch

PAID = {"event_type": "order.paid", "correlation_key": "order-7"}
CLOUD = {
    "specversion": "1.0",
    "id": "e-1",
    "source": "/shop",
    "type": "order.paid",
    "correlationkey": "order-7",
}
DIGEST = "sha-256:" + "A" * 43


def body(value: object) -> bytes:
    return json.dumps(value).encode()


def pointers(error: RelayError) -> list[str]:
    return [fault.pointer for fault in error.errors]


def test_one_event_in_the_own_form():
    more = {"id": "e-1", "source": "shop", "recipient": "agent:a", "data": {"total": 5}}
    [event] = read_own_form(body({**PAID, **more, "occurred_at": "2030-01-01T01:00:00+01:00"}))
    assert event == Event(
        event_type="order.paid",
        correlation_key="order-7",
        recipient="agent:a",
        source="shop",
        id="e-1",
        occurred_at=datetime(2030, 1, 1, tzinfo=UTC),
        data=b'{"total": 5}',
    )


@pytest.mark.parametrize(
    "data", [b'{"a":12.10,"b":1E2}', b"[ ]", b'"\\u00e9"', b"0", b"12345678901234567.25", b"false"]
)
def test_data_travels_byte_for_byte(data: bytes):
    [event] = read_own_form(b'{"event_type":"t","correlation_key":"k","data": ' + data + b" }")
    assert event.data == data
    [event] = read_structured(body(CLOUD)[:-1] + b', "data":' + data + b"}")
    assert event.data == data
    assert read_binary({**ATTRIBUTES}, "application/json", data)[0].data == data


@pytest.mark.parametrize("missing", [{}, {"data": None}])
def test_no_data_is_no_data(missing: dict[str, None]):
    assert read_own_form(body({**PAID, **missing}))[0].data is None


def test_a_batch_keeps_its_order():
    given = [{**PAID, "correlation_key": f"order-{index}", "data": index} for index in range(1000)]
    events = read_own_form(body({"events": given}))
    assert [event.correlation_key for event in events] == [f"order-{i}" for i in range(1000)]
    assert [event.data for event in events] == [str(i).encode() for i in range(1000)]


def test_a_batch_is_refused_whole_with_every_fault_by_index():
    given = [PAID, {**PAID, "event_type": 5}, PAID, {**PAID, "wat": 1}, {}, "x", None]
    with pytest.raises(UnknownField) as caught:
        read_own_form(body({"events": given}))
    assert pointers(caught.value) == [
        "/events/1/event_type",
        "/events/3/wat",
        "/events/4/event_type",
        "/events/4/correlation_key",
        "/events/5",
        "/events/6",
    ]


@pytest.mark.parametrize("events", [[], {}, None, "x", 5], ids=repr)
def test_an_empty_or_other_batch_is_refused(events: object):
    with pytest.raises(ValidationFailed) as caught:
        read_own_form(body({"events": events}))
    assert pointers(caught.value) == ["/events"]


def test_a_batch_beside_other_fields_is_refused():
    with pytest.raises(UnknownField) as caught:
        read_own_form(body({"events": [PAID], **PAID}))
    assert pointers(caught.value) == ["/event_type", "/correlation_key"]


def test_more_than_a_thousand_events_are_refused_with_the_limit():
    with pytest.raises(PayloadTooLarge) as caught:
        read_own_form(body({"events": [PAID] * 1001}))
    limit = caught.value.limit
    assert limit
    assert (limit.name, limit.value, limit.got) == ("events_per_batch", 1000, 1001)


def test_data_over_the_limit_is_refused_by_index():
    most = "x" * (256 * 1024 - 2)
    assert len(read_own_form(body({**PAID, "data": most}))[0].data or b"") == 256 * 1024
    with pytest.raises(PayloadTooLarge) as caught:
        read_own_form(body({"events": [PAID, {**PAID, "data": most + "y"}]}))
    assert pointers(caught.value) == ["/events/1/data"]
    limit = caught.value.limit
    assert limit
    assert (limit.name, limit.value, limit.got) == ("event_data_bytes", 256 * 1024, 256 * 1024 + 1)


@pytest.mark.parametrize("name", ["event_type", "correlation_key"])
@pytest.mark.parametrize(
    "text", ["", "x" * 513, "é" * 257, 5, None, ["a"]], ids=lambda t: repr(t)[:9]
)
def test_keys_outside_the_contract(name: str, text: object):
    with pytest.raises(ValidationFailed) as caught:
        read_own_form(body({**PAID, name: text}))
    assert pointers(caught.value) == [f"/{name}"]


@pytest.mark.parametrize("text", ["x" * 512, "é" * 256, " ", "*", "a/b", "\U0001f600" * 128])
def test_keys_are_any_512_bytes(text: str):
    [event] = read_own_form(body({**PAID, "correlation_key": text}))
    assert event.correlation_key == text


def test_data_by_reference():
    [event] = read_own_form(body({**PAID, "dataref": {"uri": "s3://b/k", "digest": DIGEST}}))
    assert (event.dataref_uri, event.dataref_digest, event.data) == ("s3://b/k", DIGEST, None)


@pytest.mark.parametrize(
    ("dataref", "pointer"),
    [
        ({"uri": "s3://b/k"}, "/dataref/digest"),
        ({"uri": "no-scheme", "digest": DIGEST}, "/dataref/uri"),
        ({"uri": "s3://b/k d", "digest": DIGEST}, "/dataref/uri"),
        ({"uri": "s3://b/k", "digest": "md5:abc"}, "/dataref/digest"),
        ({"uri": "s3://b/k", "digest": DIGEST, "x": 1}, "/dataref/x"),
        ("s3://b/k", "/dataref"),
    ],
)
def test_other_references_are_refused(dataref: object, pointer: str):
    with pytest.raises((ValidationFailed, UnknownField)) as caught:
        read_own_form(body({**PAID, "dataref": dataref}))
    assert pointers(caught.value) == [pointer]


def test_data_comes_inline_or_by_reference_not_both():
    with pytest.raises(ValidationFailed, match="Expected"):
        read_own_form(body({**PAID, "data": 1, "dataref": {"uri": "s3://b/k", "digest": DIGEST}}))


@pytest.mark.parametrize("value", [[], [PAID], "x", 5, None, {}])
def test_other_documents_are_no_event(value: object):
    with pytest.raises(ValidationFailed):
        read_own_form(body(value))


def test_a_cloud_event():
    more = {"recipient": "agent:a", "time": "2030-01-01T00:00:00Z", "data": [1], "subject": "s"}
    [event] = read_structured(body({**CLOUD, **more, "tries": 3, "final": True}))
    assert event == Event(
        event_type="order.paid",
        correlation_key="order-7",
        recipient="agent:a",
        source="/shop",
        id="e-1",
        occurred_at=datetime(2030, 1, 1, tzinfo=UTC),
        data=b"[1]",
        attributes=(("subject", "s"), ("tries", "3"), ("final", "true")),
    )


def test_a_cloud_event_carries_its_reference_as_attributes():
    [event] = read_structured(body({**CLOUD, "dataref": "s3://b/k", "datarefdigest": DIGEST}))
    assert (event.dataref_uri, event.dataref_digest) == ("s3://b/k", DIGEST)


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"specversion": "0.3"}, "/specversion"),
        ({"specversion": None}, "/specversion"),
        ({"id": ""}, "/id"),
        ({"source": ""}, "/source"),
        ({"type": ""}, "/type"),
        ({"correlationkey": 7}, "/correlationkey"),
        ({"time": "yesterday"}, "/time"),
        ({"data_base64": "AAAA"}, ""),
        ({"Upper": "x"}, ""),
        ({"with_line": "x"}, ""),
        ({"nested": {"a": 1}}, ""),
        ({"long": "x" * 2000}, ""),
        ({f"e{i}": "x" for i in range(33)}, ""),
        ({"dataref": "s3://b/k"}, ""),
        ({"dataref": "s3://b/k", "datarefdigest": DIGEST, "data": 1}, ""),
    ],
    ids=lambda value: str(value)[:30],
)
def test_cloud_events_outside_the_contract(changes: dict[str, object], pointer: str):
    with pytest.raises(ValidationFailed) as caught:
        read_structured(body({**CLOUD, **changes}))
    assert pointers(caught.value) == [pointer]


def test_a_batch_of_cloud_events():
    events = read_structured_batch(body([CLOUD, {**CLOUD, "id": "e-2", "data": 2}]))
    assert [(event.id, event.data) for event in events] == [("e-1", None), ("e-2", b"2")]
    with pytest.raises(ValidationFailed) as caught:
        read_structured_batch(body([CLOUD, {**CLOUD, "id": 5}]))
    assert pointers(caught.value) == ["/1/id"]


ATTRIBUTES = {
    "specversion": "1.0",
    "id": "e-1",
    "source": "/shop",
    "type": "order.paid",
    "correlationkey": "order%207",
}


def test_a_cloud_event_in_headers():
    [event] = read_binary({**ATTRIBUTES, "place": "Caf%C3%A9"}, "application/json", b"[1]")
    assert (event.correlation_key, event.data) == ("order 7", b"[1]")
    assert event.attributes == (("place", "Café"), ("datacontenttype", "application/json"))
    assert read_binary(ATTRIBUTES, "", b"")[0].data is None


def test_headers_that_are_not_utf_8_are_refused():
    with pytest.raises(MalformedRequest):
        read_binary({**ATTRIBUTES, "place": "%ff"}, "", b"")


@pytest.mark.parametrize("read", [read_own_form, read_structured, read_structured_batch])
@pytest.mark.parametrize(
    "given", [b"", b"{", b'{"a":1,"a":2}', b"[NaN]", b'["\\ud800"]', b"[" * 9999]
)
def test_no_form_takes_broken_json(read: object, given: bytes):
    assert callable(read)
    with pytest.raises(MalformedJson):
        read(given)
