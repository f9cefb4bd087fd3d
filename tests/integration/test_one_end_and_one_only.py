"""An event, a deadline and a cancellation at the same moment: one of them wins, all agree (W21)."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from relay_common.testing.wait import until

from tests.integration.clients import Program, event
from tests.integration.conftest import Place
from tests.integration.deployment import Deployment
from tests.integration.producer import PlainProducer, event_value

Make = Callable[..., Program]
ROUNDS = 300


def states(stack: Deployment, place: Place) -> Counter[str]:
    """Return how many waitpoints of the tenant are in each state."""
    with stack.database() as conn:
        query = "select state::text, count(*) from matcher.waitpoint where tenant = %s group by 1"
        return Counter(dict(conn.execute(query, (place.tenant,)).fetchall()))


@pytest.mark.spec("WP-TIMEOUT-TOTAL", "WP-EDGE-OPEN")
def test_an_event_at_the_deadline_resolves_before_it_or_never(
    stack: Deployment, program: Make, place: Place, verify: Callable[[], None]
) -> None:
    waiter = program("client:checkout", base_url=stack.service_url("matcher"))
    with ThreadPoolExecutor(8) as pool:
        opened = list(pool.map(lambda n: waiter.open("a", place.key(n), 4.0), range(ROUNDS)))
    deadlines = [datetime.fromisoformat(w["expires_at"]).timestamp() for w in opened]
    order = sorted(range(ROUNDS), key=deadlines.__getitem__)
    producer = PlainProducer(stack.bootstrap, **{"linger.ms": 0})
    # From 150 ms before its deadline to 100 ms after it: each event meets it a little later.
    for place_in_line, number in enumerate(order):
        due = deadlines[number] - 0.15 + 0.25 * place_in_line / ROUNDS
        time.sleep(max(0.0, due - time.time_ns() / 1e9))
        value = event_value(place.tenant, place.environment, event("a", place.key(number)))
        producer.send(value)
    producer.flush()

    until(lambda: states(stack, place)["open"] == 0, 20, lambda: str(states(stack, place)))

    found = states(stack, place)
    assert found["resolved"] + found["expired"] == ROUNDS
    assert min(found["resolved"], found["expired"]) > ROUNDS // 20, found
    verify()


@pytest.mark.spec("WP-EDGE-OPEN", "WP-INV-4")
def test_a_cancellation_and_an_event_agree_on_who_was_first(
    stack: Deployment, program: Make, place: Place, verify: Callable[[], None]
) -> None:
    waiter = program("client:checkout", base_url=stack.service_url("matcher"))
    shop = program("client:shop", base_url=stack.service_url("intake"))
    answers: dict[str, int] = {}

    def race(number: int) -> None:
        opened, barrier = waiter.open("a", place.key(number)), threading.Barrier(2)

        def cancel() -> None:
            barrier.wait(10)
            time.sleep(0.0005 * (number % 40))
            path = f"/v1/waitpoints/{opened['id']}/cancel"
            answers[opened["id"]] = waiter.request("POST", path, {}).status_code

        def publish() -> None:
            barrier.wait(10)
            shop.publish(event("a", place.key(number)))

        with ThreadPoolExecutor(2) as pool:
            for done in (pool.submit(cancel), pool.submit(publish)):
                done.result()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(race, range(ROUNDS)))
    until(lambda: states(stack, place)["open"] == 0, 20, lambda: str(states(stack, place)))
    ends = {w["id"]: w["state"] for w in waiter.pages("/v1/waitpoints", limit=200)}
    assert len(ends) == ROUNDS
    for waitpoint, status in answers.items():
        assert (status, ends[waitpoint]) in ((200, "cancelled"), (409, "resolved"))
    assert len(set(ends.values())) == 2, Counter(ends.values())
    verify()


pytestmark = pytest.mark.timeout(120)
