"""Which event it is: a retry is the same one, and nothing else is."""

from dataclasses import replace

import pytest
from relay_common.ids import decode_id, derive_id
from relay_intake.domain.event import Event, Request, event_id, given_id, match_key, outside_id

REQUEST = Request("acme", "prod", "client:shop", "key-1")
EVENT = Event("order.paid", "order-7")
NAMED = replace(EVENT, source="/shop", id="e-1")


def test_an_event_with_an_id_is_the_same_whatever_the_request():
    other = Request("acme", "prod", "client:other", "key-2")
    assert event_id(REQUEST, NAMED, 0) == event_id(other, NAMED, 9)
    assert event_id(REQUEST, NAMED, 0) == derive_id("event", "acme", "prod", "/shop", "e-1")
    assert given_id(REQUEST, NAMED, 0) is None


def test_an_id_without_a_source_is_an_id_of_the_empty_source():
    bare = replace(EVENT, id="e-1")
    assert event_id(REQUEST, bare, 0) == derive_id("event", "acme", "prod", "", "e-1")


@pytest.mark.parametrize("change", [{"tenant": "x"}, {"environment": "x"}])
def test_the_same_id_in_another_tenant_is_another_event(change: dict[str, str]):
    assert event_id(replace(REQUEST, **change), NAMED, 0) != event_id(REQUEST, NAMED, 0)


def test_without_an_id_a_retry_is_the_same_event():
    assert given_id(REQUEST, EVENT, 3) == event_id(REQUEST, EVENT, 3)
    assert event_id(REQUEST, EVENT, 3) == event_id(REQUEST, replace(EVENT, data=b"1"), 3)


@pytest.mark.parametrize(
    "change",
    [{"tenant": "x"}, {"environment": "x"}, {"client": "x"}, {"idempotency_key": "x"}],
    ids=repr,
)
def test_without_an_id_another_request_is_another_event(change: dict[str, str]):
    assert event_id(replace(REQUEST, **change), EVENT, 3) != event_id(REQUEST, EVENT, 3)
    assert event_id(REQUEST, EVENT, 4) != event_id(REQUEST, EVENT, 3)


@pytest.mark.parametrize("key_hash", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_the_outside_id_carries_the_hash_of_the_key(key_hash: int):
    raw = event_id(REQUEST, EVENT, 0)
    decoded = decode_id("ev_", outside_id(key_hash, raw), 24)
    assert decoded is not None
    assert int.from_bytes(decoded[:8], "big", signed=True) == key_hash
    assert decoded[8:] == raw


def test_the_match_key_is_tenant_environment_type_and_key():
    key = match_key(REQUEST, EVENT)
    assert (key.tenant, key.environment) == ("acme", "prod")
    assert (key.event_type, key.correlation_key) == ("order.paid", "order-7")
