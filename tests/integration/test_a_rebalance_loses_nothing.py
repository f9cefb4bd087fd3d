"""Matchers come and go while events flow; one freezes past its session (R1, R2, R14, I6)."""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from relay_common.testing.wait import until

from tests.integration.clients import Program, event
from tests.integration.conftest import Place
from tests.integration.deployment import Deployment
from tests.integration.invariants import Expected
from tests.integration.producer import PlainProducer, event_value

CHANGES = 4
PACE = 100  # events recorded between two changes
IN_COPY = """
select count(*) from pg_stat_activity
where state = 'active' and wait_event = 'ClientRead' and query ilike '%copy event%'
  and clock_timestamp() - query_start > interval '30 seconds'
"""


class Flow:
    """A plain producer that never stops; half of the keys have a waiter."""

    def __init__(self, stack: Deployment, place: Place, expected: Expected) -> None:
        self._stack, self._place, self._expected = stack, place, expected
        self._conn = stack.database()
        self._stop = threading.Event()
        self.produced = 0

    def run(self) -> None:
        """Produce until stopped, at most a few hundred events a second."""
        producer = PlainProducer(self._stack.bootstrap)
        for number in itertools.count():
            if self._stop.wait(0.002):
                break
            sent = event("flow", self._place.key(number % 500), source="flow", id=str(number))
            producer.send(event_value(self._place.tenant, self._place.environment, sent))
            names = self._expected.named[self._place.tenant]
            names.append((self._place.environment, "flow", str(number)))
            self.produced += 1
        producer.flush()

    def recorded(self) -> int:
        """Return how many events of the tenant are recorded."""
        query = "select count(*) from matcher.event where tenant = %s"
        return self._conn.execute(query, (self._place.tenant,)).fetchone()[0]

    def frozen_in_copy(self) -> bool:
        """Tell whether a server process has waited long for the data of a COPY."""
        return self._conn.execute(IN_COPY).fetchone()[0] > 0

    def until_recorded(self, more: int, seconds: float = 60) -> None:
        """Wait until `more` further events are recorded."""
        goal = self.recorded() + more
        until(lambda: self.recorded() >= goal, seconds, lambda: f"{self.recorded()} of {goal}")

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Produce in a thread while the block runs."""
        thread = threading.Thread(target=self.run, name="flow")
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def until_all_recorded(self) -> None:
        """Wait until everything that was produced is recorded."""
        until(lambda: self.recorded() == self.produced, 40, lambda: f"{self.recorded()} recorded")
        self._conn.close()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_matchers_that_come_and_go_lose_no_event(
    stack: Deployment,
    program: Callable[..., Program],
    place: Place,
    expected: Expected,
    protocol: str,
    verify: Callable[[], None],
) -> None:
    chosen = {"RELAY_GROUP_PROTOCOL": protocol}
    waiter, flow = program("client:checkout"), Flow(stack, place, expected)
    for number in range(0, 500, 2):
        waiter.open("flow", place.key(number))
    stack.restart("matcher", **chosen)
    names = ("matcher-2", "matcher-3")
    with flow.flowing():
        for name in names:
            stack.start(name, **chosen)
        stack.until_ready(*names)
        for change in range(CHANGES):
            name = names[change % 2]
            if stack.alive(name):
                stack.stop(name)
            else:
                stack.start(name, **chosen)
                stack.until_ready(name)
            flow.until_recorded(PACE)
    flow.until_all_recorded()
    for name in names:
        if stack.alive(name):
            stack.stop(name)
    stack.restart("matcher")
    with stack.database() as conn:
        query = "select state::text, count(*) from matcher.waitpoint where tenant = %s group by 1"
        assert conn.execute(query, (place.tenant,)).fetchall() == [("resolved", 250)]
    verify()


def test_a_matcher_frozen_past_its_session_changes_nothing_when_it_wakes(
    stack: Deployment,
    place: Place,
    expected: Expected,
    verify: Callable[[], None],
) -> None:
    flow = Flow(stack, place, expected)
    stack.start("matcher-2")
    stack.until_ready("matcher-2")
    with flow.flowing():
        flow.until_recorded(PACE)
        stack.pause("matcher")
        try:
            # What it had taken comes to the other one, when the group and the database gave it up.
            handed_over = flow.produced
            goal = handed_over + PACE
            # Frozen inside a statement it keeps its locks for as long as a statement may take.
            until(lambda: flow.recorded() >= goal or flow.frozen_in_copy(), 100, flow.recorded)
            if flow.recorded() < goal:
                # No limit of PostgreSQL ends a COPY that waits for data; the liveness probe does.
                stack.kill("matcher")
                until(lambda: flow.recorded() >= goal, 60, flow.recorded)
                stack.start("matcher")
        finally:
            stack.resume("matcher")
        stack.until_ready("matcher")
        flow.until_recorded(PACE)
    flow.until_all_recorded()
    stack.stop("matcher-2")
    verify()
