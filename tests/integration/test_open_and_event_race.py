"""Opening and arriving commute, released together 2,000 times on both paths (W1, W3, M30)."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from relay_common.testing.wait import until

from tests.integration.clients import Program, event
from tests.integration.conftest import Place
from tests.integration.deployment import Deployment
from tests.integration.producer import PlainProducer, event_value
from tests.integration.tap import Tap

Make = Callable[..., Program]
ROUNDS = 1_000  # over each path
AT_ONCE = 12
SEED = 20261130


def race(ways: list[Callable[[int], None]], rounds: int) -> None:
    """Run `rounds` rounds; in each, all `ways` begin together behind a barrier.

    A seeded wait of at most 12 ms before one of them moves the meeting point through the
    transactions of the matcher: half of the time none waits.
    """
    chance = random.Random(SEED)
    delays = [[max(0.0, chance.uniform(-0.012, 0.012)) for _ in ways] for _ in range(rounds)]

    def run_lane(numbers: range) -> None:
        barrier = threading.Barrier(len(ways))

        def run(way: int) -> None:
            for number in numbers:
                barrier.wait(30)
                time.sleep(delays[number][way])
                ways[way](number)

        with ThreadPoolExecutor(len(ways)) as pool:
            for done in [pool.submit(run, way) for way in range(len(ways))]:
                done.result()

    with ThreadPoolExecutor(AT_ONCE) as lanes:
        for lane in [lanes.submit(run_lane, range(n, rounds, AT_ONCE)) for n in range(AT_ONCE)]:
            lane.result()


def until_none_waits(stack: Deployment, place: Place) -> None:
    """Wait until no waitpoint of the tenant is open."""
    with stack.database() as conn:

        def waiting() -> int:
            query = "select count(*) from matcher.waitpoint where tenant = %s and state = 'open'"
            return conn.execute(query, (place.tenant,)).fetchone()[0]

        until(lambda: waiting() == 0, 20, lambda: f"{waiting()} waitpoints still wait")


@pytest.mark.parametrize("path", ["http", "topic"])
def test_each_of_a_thousand_waits_meets_its_event(
    stack: Deployment,
    tap: Tap,
    program: Make,
    place: Place,
    path: str,
    verify: Callable[[], None],
) -> None:
    waiter = program("client:checkout", base_url=stack.service_url("matcher"))
    shop = program("client:shop", base_url=stack.service_url("intake"))
    producer = PlainProducer(stack.bootstrap, **{"linger.ms": 0})
    at_open: dict[int, str] = {}

    def open_one(number: int) -> None:
        at_open[number] = waiter.open("order.paid", place.key(number))["state"]

    def publish_one(number: int) -> None:
        sent = event("order.paid", place.key(number), source="race", id=str(number))
        if path == "http":
            shop.publish(sent)
        else:
            producer.send(event_value(place.tenant, place.environment, sent), b"k%d" % number)

    race([open_one, publish_one], ROUNDS)
    producer.flush()
    until_none_waits(stack, place)

    # Both orders happened, so the meeting point was really crossed.
    orders = Counter(at_open.values())
    assert min(orders["open"], orders["resolved"]) > ROUNDS // 20, orders
    with stack.database() as conn:
        resolutions = conn.execute(
            "select count(*), count(distinct event_id) from matcher.waitpoint"
            " where tenant = %s and state = 'resolved'",
            (place.tenant,),
        ).fetchone()
        takes = conn.execute(
            "select count(*) from matcher.take where tenant = %s", (place.tenant,)
        ).fetchone()
    assert (*resolutions, *takes) == (ROUNDS, ROUNDS, ROUNDS)
    told = Counter(
        str(seen.record["waitpoint_id"])
        for seen in tap.of("relay.waitpoints")
        if (seen.record["tenant"], seen.record["type"]) == (place.tenant, "waitpoint.resolved")
    )
    assert set(told.values()) <= {1}
    verify()


def test_fifty_waiters_on_one_key_all_get_the_one_event(
    stack: Deployment,
    program: Make,
    place: Place,
    verify: Callable[[], None],
) -> None:
    rounds, waiters = 8, 50
    shop = program("client:shop", base_url=stack.service_url("intake"))
    crowd = [program(f"agent:{n}", base_url=stack.service_url("matcher")) for n in range(waiters)]
    for number in range(rounds):
        barrier = threading.Barrier(waiters + 1)

        def open_one(waiter: Program, number: int = number, barrier=barrier) -> None:
            barrier.wait(30)
            waiter.open("order.paid", place.key(number))

        def publish_one(number: int = number, barrier=barrier) -> None:
            barrier.wait(30)
            shop.publish(event("order.paid", place.key(number)))

        with ThreadPoolExecutor(waiters + 1) as pool:
            opening = [pool.submit(open_one, waiter) for waiter in crowd]
            for done in [*opening, pool.submit(publish_one)]:
                done.result()
    until_none_waits(stack, place)
    with stack.database() as conn:
        takes = conn.execute(
            "select count(distinct event_id), count(*) from matcher.take where tenant = %s",
            (place.tenant,),
        ).fetchone()
    assert takes == (rounds, rounds * waiters)
    verify()
