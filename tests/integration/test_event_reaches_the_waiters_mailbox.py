"""The main job: wait, event, resolution, mailbox, lease, acknowledgement; in both orders."""

from collections.abc import Callable

import pytest
from relay_common.testing.wait import until

from tests.integration.clients import EVER, Program, event
from tests.integration.conftest import Place
from tests.integration.producer import PlainProducer

Make = Callable[..., Program]
Produce = Callable[..., PlainProducer]


def records_of(waiter: Program, count: int) -> list[dict]:
    """Wait until the mailbox holds `count` records and return them."""
    found: list[dict] = []

    def there() -> bool:
        found[:] = waiter.records() if waiter.mailbox() else []
        return len(found) >= count

    until(there, 20, lambda: f"records: {[(r['kind'], r['type'], r['state']) for r in found]}")
    return found


def resolved(waiter: Program, waitpoint: str) -> dict:
    """Wait until a waitpoint is resolved and return it."""
    seen: list[dict] = []

    def done() -> bool:
        seen[:] = [waiter.waitpoint(waitpoint)]
        return seen[0]["state"] == "resolved"

    until(done, 20, lambda: str(seen))
    return seen[0]


@pytest.mark.spec("WP-KIND-EVENT", "WP-STATE-RESOLVED", "WP-EVENT-RESOLVED", "MB-LEASE", "MB-ACK")
@pytest.mark.parametrize("path", ["http", "topic"])
def test_an_event_resolves_the_waitpoint_and_the_waiter_acknowledges_it(
    program: Make, produce: Produce, place: Place, path: str
) -> None:
    waiter, shop = program("client:checkout"), program("client:shop")
    opened = waiter.open("payment.captured", place.key(path))
    assert (opened["state"], opened["resolution"], opened["waiter"]) == (
        "open",
        None,
        "client:checkout",
    )

    sent = event("payment.captured", place.key(path), data=place.data, source="psp", id=path)
    if path == "http":
        shop.publish(sent)
    else:
        produce(sent)

    resolution = resolved(waiter, opened["id"])["resolution"]
    assert resolution["event"]["data"] == place.data
    assert (resolution["event"]["source"], resolution["event"]["correlation_key"]) == (
        "psp",
        place.key(path),
    )
    created, told = records_of(waiter, 2)
    assert (created["type"], told["type"]) == ("waitpoint.created", "waitpoint.resolved")
    assert told["body"]["waitpoint"]["resolution"] == resolution
    lease = waiter.lease()
    assert [r["id"] for r in lease["records"]] == [created["id"], told["id"]]
    assert [r["result"] for r in waiter.acknowledge(lease)] == ["acked", "acked"]
    assert [r["result"] for r in waiter.acknowledge(lease)] == ["already_acked", "already_acked"]
    assert waiter.lease() == {**waiter.lease(), "lease_id": None, "records": []}


@pytest.mark.spec("WP-EARLY-OPEN")
@pytest.mark.parametrize("path", ["http", "topic"])
def test_an_event_that_comes_first_resolves_the_waitpoint_when_it_opens(
    program: Make, produce: Produce, place: Place, path: str
) -> None:
    waiter, shop = program("client:checkout"), program("client:shop")
    sent = event("order.paid", place.key(path), data=place.data, source="shop", id=path)
    accepted = shop.publish(sent) if path == "http" else produce(sent) and None
    held = [recorded_event(shop, place.key(path))]
    assert (held[0]["disposition"], held[0]["rule_id"]) == ("held", "no_waitpoint")
    if accepted:
        assert held[0]["id"] == accepted[0]

    opened = waiter.open("order.paid", place.key(path))

    assert opened["state"] == "resolved"
    assert opened["resolution"]["event"]["id"] == held[0]["id"]
    records = records_of(waiter, 3)
    assert sorted((r["kind"], r["state"]) for r in records) == [
        ("early_event", "acked"),
        ("waitpoint_event", "available"),
        ("waitpoint_event", "available"),
    ]
    taken = shop.event(held[0]["id"])
    assert taken["disposition"] == "matched"
    assert [t["waitpoint_id"] for t in taken["taken_by"]] == [opened["id"]]


def recorded_event(reader: Program, key: str) -> dict:
    """Wait until the event of a key is recorded and return it."""
    found: list[dict] = []

    def there() -> bool:
        found[:] = reader.pages("/v1/events", correlation_key=key, event_type="order.paid")
        return bool(found)

    until(there, 20, lambda: f"no event of {key}")
    assert len(found) == 1
    return found[0]


@pytest.mark.spec("WP-EARLY-HELD", "MB-HELD")
def test_an_addressed_event_is_shown_held_and_then_superseded(program: Make, place: Place) -> None:
    warehouse, other, shop = (program(f"agent:{n}") for n in ("warehouse", "other", "shop"))
    shop.publish(event("order.paid", place.key(), recipient="agent:warehouse", data=place.data))
    (held,) = records_of(warehouse, 1)
    assert (held["kind"], held["state"]) == ("early_event", "held")
    assert warehouse.lease()["lease_id"] is None

    assert other.open("order.paid", place.key())["state"] == "open"
    opened = warehouse.open("order.paid", place.key())

    assert opened["state"] == "resolved"
    records = records_of(warehouse, 3)
    assert records[0]["id"] == held["id"]
    until(
        lambda: warehouse.records()[0]["state"] == "acked",
        10,
        lambda: str(warehouse.records()[0]),
    )
    assert {r["type"] for r in records[1:]} == {"waitpoint.created", "waitpoint.resolved"}
    assert other.waitpoint(other.get("/v1/waitpoints")["items"][0]["id"])["state"] == "open"


@pytest.mark.spec("WP-MATCH-UNMATCHED", "WP-MATCH-CONDITION")
def test_an_unmatched_event_is_visible_with_the_rule_that_left_it(
    program: Make, place: Place
) -> None:
    waiter, shop = program("client:checkout"), program("client:shop")
    waiter.open("order.paid", place.key("c"), condition="event.data.amount > 100.0")
    waiter.open("order.paid", place.key("e"), condition="event.data.missing > 100.0")
    sent = {
        "no_waitpoint": event("order.paid", place.key("n")),
        "condition_false": event("order.paid", place.key("c"), data=place.data),
        "condition_error": event("order.paid", place.key("e"), data=place.data),
    }
    for rule, body in sent.items():
        shop.publish(body)
        found = recorded_event(shop, body["correlation_key"])
        assert (found["rule_id"], found["disposition"]) == (rule, "held")
        assert found["reason"] or rule != "condition_error"
    listed = shop.pages("/v1/events", disposition="unmatched", **EVER)
    assert {e["rule_id"] for e in listed} == set(sent)


@pytest.mark.spec(
    "WP-STATE-EXPIRED", "WP-STATE-CANCELLED", "WP-EVENT-EXPIRED", "WP-EVENT-CANCELLED"
)
def test_a_waitpoint_expires_and_a_cancelled_one_stays_cancelled(
    program: Make, place: Place
) -> None:
    waiter, shop = program("client:checkout"), program("client:shop")
    late = waiter.open("order.paid", place.key("late"), seconds=1.5, default_response={"a": 1})
    given_up = waiter.open("order.paid", place.key("given-up"))
    path = f"/v1/waitpoints/{given_up['id']}/cancel"
    assert waiter.post(path, {"reason": "changed my mind"})["state"] == "cancelled"
    assert waiter.post(path, {})["state"] == "cancelled"
    until(
        lambda: waiter.waitpoint(late["id"])["state"] == "expired",
        15,
        lambda: str(waiter.waitpoint(late["id"])),
    )
    for name in ("late", "given-up"):
        shop.publish(event("order.paid", place.key(name)))
        assert recorded_event(shop, place.key(name))["disposition"] == "held"
    assert waiter.waitpoint(late["id"])["resolution"] is None
    refused = waiter.request("POST", f"/v1/waitpoints/{late['id']}/cancel", {})
    assert (refused.status_code, refused.json()["code"]) == (409, "waitpoint_closed")
    types = [r["type"] for r in records_of(waiter, 4)]
    assert sorted(types) == ["waitpoint.cancelled", *["waitpoint.created"] * 2, "waitpoint.expired"]
