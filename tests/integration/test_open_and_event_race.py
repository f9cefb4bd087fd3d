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


class Race:
    """Rounds in which an opening and an event begin together behind a barrier.

    Whoever came first in a round is given a little less of a start in the next ones, so that the
    two meet inside the matcher's transactions on every machine.
    """

    def __init__(self, open_one: Callable[[int], str], publish_one: Callable[[int], None]) -> None:
        self._open_one, self._publish_one = open_one, publish_one
        self._start_seconds = 0.0  # of the opening before the event
        self._chance = random.Random(SEED)
        self._lock = threading.Lock()
        self.orders: Counter[str] = Counter()

    def run(self, rounds: int) -> None:
        """Run `rounds` rounds in lanes beside each other."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            lanes = [range(first, rounds, AT_ONCE) for first in range(AT_ONCE)]
            for lane in [pool.submit(self._lane, numbers) for numbers in lanes]:
                lane.result()

    def _lane(self, numbers: range) -> None:
        barrier = threading.Barrier(2)
        starts = {number: 0.0 for number in numbers}

        def opening() -> None:
            for number in numbers:
                with self._lock:
                    starts[number] = self._start_seconds + self._chance.gauss(0, 0.002)
                barrier.wait(30)
                time.sleep(max(0.0, -starts[number]))
                self._note(self._open_one(number))

        def publishing() -> None:
            for number in numbers:
                barrier.wait(30)
                time.sleep(max(0.0, starts[number]))
                self._publish_one(number)

        with ThreadPoolExecutor(2) as pool:
            for way in (pool.submit(opening), pool.submit(publishing)):
                way.result()

    def _note(self, state: str) -> None:
        with self._lock:
            self.orders[state] += 1
            self._start_seconds += 0.0003 if state == "resolved" else -0.0003


def until_none_waits(stack: Deployment, place: Place) -> None:
    """Wait until no waitpoint of the tenant is open."""
    with stack.database() as conn:

        def waiting() -> int:
            query = "select count(*) from matcher.waitpoint where tenant = %s and state = 'open'"
            return conn.execute(query, (place.tenant,)).fetchone()[0]

        until(lambda: waiting() == 0, 20, lambda: f"{waiting()} waitpoints still wait")


@pytest.mark.spec("WP-EARLY-OPEN", "WP-MATCH-EXACT")
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

    def open_one(number: int) -> str:
        return waiter.open("order.paid", place.key(number))["state"]

    def publish_one(number: int) -> None:
        sent = event("order.paid", place.key(number), source="race", id=str(number))
        if path == "http":
            shop.publish(sent)
        else:
            producer.send(event_value(place.tenant, place.environment, sent), b"k%d" % number)

    race = Race(open_one, publish_one)
    race.run(ROUNDS)
    producer.flush()
    until_none_waits(stack, place)

    # Both orders happened, so the meeting point was really crossed.
    assert min(race.orders["open"], race.orders["resolved"]) > ROUNDS // 10, race.orders
    with stack.database() as conn:
        resolutions = conn.execute(
            "select count(*), count(distinct event_id) from matcher.waitpoint"
            " where tenant = %s and state = 'resolved'",
            (place.tenant,),
        ).fetchone()
    assert resolutions == (ROUNDS, ROUNDS)
    verify()
    told = Counter(
        str(seen.record["waitpoint_id"])
        for seen in tap.of("relay.waitpoints")
        if (seen.record["tenant"], seen.record["type"]) == (place.tenant, "waitpoint.resolved")
    )
    assert set(told.values()) == {1}


@pytest.mark.spec("WP-FAN-OUT")
def test_fifty_waiters_on_one_key_all_get_the_one_event(
    stack: Deployment,
    program: Make,
    place: Place,
    verify: Callable[[], None],
) -> None:
    rounds, waiters = 8, 50
    shop = program("client:shop", base_url=stack.service_url("intake"))
    crowd = [program(f"agent:{n}", base_url=stack.service_url("matcher")) for n in range(waiters)]
    at_open: Counter[str] = Counter()
    for number in range(rounds):
        barrier = threading.Barrier(waiters + 1)

        def open_one(waiter: Program, number: int = number, barrier=barrier) -> str:
            barrier.wait(30)
            return waiter.open("order.paid", place.key(number))["state"]

        def publish_one(number: int = number, barrier=barrier) -> None:
            barrier.wait(30)
            time.sleep(0.004 * number)
            shop.publish(event("order.paid", place.key(number)))

        with ThreadPoolExecutor(waiters + 1) as pool:
            opening = [pool.submit(open_one, waiter) for waiter in crowd]
            pool.submit(publish_one).result()
            at_open.update(done.result() for done in opening)
    until_none_waits(stack, place)
    assert len(at_open) == 2, at_open
    with stack.database() as conn:
        takes = conn.execute(
            "select count(distinct event_id), count(event_id) from matcher.waitpoint"
            " where tenant = %s",
            (place.tenant,),
        ).fetchone()
    assert takes == (rounds, rounds * waiters)
    verify()
