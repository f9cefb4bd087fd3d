"""At-least-once delivery, exactly-once state: repeats, other partitioners, replays (W10, M34)."""

from collections.abc import Callable

from relay_common.testing.wait import until

from tests.integration.clients import Program, event
from tests.integration.conftest import Place
from tests.integration.deployment import Deployment
from tests.integration.drained import until_drained
from tests.integration.invariants import Expected
from tests.integration.producer import PlainProducer, event_value
from tests.integration.tap import Tap

TABLES = {
    "matcher": ("waitpoint", "event"),
    "mailbox": ("record", "mailbox"),
}


def test_a_record_delivered_three_times_to_any_partition_resolves_once(
    stack: Deployment,
    program: Callable[..., Program],
    place: Place,
    tap: Tap,
    expected: Expected,
    verify: Callable[[], None],
) -> None:
    waiter = program("client:checkout")
    opened = waiter.open("order.paid", place.key())
    sent = event("order.paid", place.key(), source="shop", id="1", data=place.data)
    value = event_value(place.tenant, place.environment, sent)
    producer = PlainProducer(stack.bootstrap, partitioner="random")
    for partition, key in ((0, None), (1, b"another partitioner"), (0, b""), (3, None)):
        producer.send(value, key, partition=partition)
    producer.flush()
    expected.named[place.tenant].append((place.environment, "shop", "1"))

    until(lambda: waiter.waitpoint(opened["id"])["state"] == "resolved", 20, "resolved")
    until_drained(stack, tap)
    assert (
        len(
            program("client:shop").pages(
                "/v1/events", event_type="order.paid", correlation_key=place.key()
            )
        )
        == 1
    )
    # The waiter has taken it: opening again waits for a new event, in spite of the repeats.
    assert waiter.open("order.paid", place.key())["state"] == "open"
    types = [r["type"] for r in waiter.records() if r["kind"] == "waitpoint_event"]
    until_drained(stack, tap)
    assert types.count("waitpoint.resolved") == 1
    verify()


def test_reading_every_log_again_from_its_beginning_changes_no_state(
    stack: Deployment,
    program: Callable[..., Program],
    place: Place,
    tap: Tap,
    verify: Callable[[], None],
) -> None:
    waiter, shop = program("client:checkout"), program("client:shop")
    for number in range(20):
        waiter.open("order.paid", place.key(number))
        shop.publish(event("order.paid", place.key(number + 10)))
    until_drained(stack, tap)
    before = contents(stack)
    for service in ("matcher", "mailbox", "escalation"):
        stack.stop(service)
        with stack.database() as conn:
            conn.execute(f"update {service}.position set next_offset = 0")
        stack.start(service)
    stack.until_ready()
    until_drained(stack, tap)
    assert contents(stack) == before
    verify()


def contents(stack: Deployment) -> dict[str, object]:
    """Return a digest of the rows of every table that a repeat could change."""
    with stack.database() as conn:
        return {
            f"{schema}.{table}": conn.execute(
                f"select count(*), sum(hashtextextended(t::text, 0)) from {schema}.{table} t"
            ).fetchone()
            for schema, tables in TABLES.items()
            for table in tables
        }
