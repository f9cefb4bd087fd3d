"""Broker killed, Postgres restarted: everything drains; readiness told the truth meanwhile."""

import json
from collections.abc import Callable, Iterable

import pytest
from relay_common.testing.wait import until

from tests.integration.clients import Call, History, Program, event, opening
from tests.integration.conftest import Place
from tests.integration.deployment import SERVICES, Deployment
from tests.integration.load import Load

Make = Callable[..., Program]


def until_all_say_not_ready(stack: Deployment, names: Iterable[str]) -> None:
    """Wait until each of `names` says that it is not ready."""
    for name in names:
        until(
            lambda name=name: stack.not_ready(name) is not None,
            30,
            f"{name} not ready while a server is down",
        )


def refusals(calls: Iterable[Call]) -> set[tuple[int | None, str]]:
    """Return status and code of every answer that is not a good one; each must be a problem."""
    found = set()
    for call in calls:
        if call.status is None or call.status < 400:
            continue
        body = json.loads(call.text)
        assert body["status"] == call.status
        found.add((call.status, body["code"]))
    return found


def test_a_killed_broker_comes_back_and_everything_drains(
    stack: Deployment,
    program: Make,
    place: Place,
    history: History,
    verify: Callable[[], None],
) -> None:
    with Load(stack, program, place) as load:
        load.until_rounds(10)
        stack.kafka.kill()
        until_all_say_not_ready(stack, SERVICES)
        refused = program("client:other").request(
            "POST", "/v1/events", event("order.paid", place.key("while-down"))
        )
        assert (refused.status_code, refused.json()["code"]) == (503, "broker_unavailable")
        assert refused.headers["content-type"] == "application/problem+json"
        assert int(refused.headers["retry-after"]) >= 1
        stack.kafka.start_broker()
        stack.until_ready()
        load.until_rounds(10)
    load.until_all_acknowledged()
    assert {status for status, _ in refusals(history.of(place.tenant))} == {503}
    verify()


def test_an_immediate_restart_of_postgres_loses_no_acknowledged_work(
    stack: Deployment,
    program: Make,
    place: Place,
    history: History,
    verify: Callable[[], None],
) -> None:
    with Load(stack, program, place) as load:
        load.until_rounds(10)
        stack.postgres.stop("immediate")
        until_all_say_not_ready(stack, ("matcher", "mailbox", "escalation"))
        other = program("client:other")
        # Events go to the broker alone (design D17): intake is ready and right to be.
        assert stack.not_ready("intake") is None
        kept = other.publish(event("order.paid", place.key("meanwhile")))[0]
        for path, body in (
            ("/v1/waitpoints", opening("order.paid", place.key("while-down"))),
            ("/v1/mailboxes/me/leases", {"max_records": 1}),
        ):
            refused = other.request("POST", path, body)
            assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
            assert refused.headers["content-type"] == "application/problem+json"
            assert int(refused.headers["retry-after"]) >= 1
        stack.postgres.start()
        stack.until_ready()
        load.until_rounds(10)
    load.until_all_acknowledged()
    assert other.event(kept)["disposition"] == "held"
    assert {status for status, _ in refusals(history.of(place.tenant))} == {503}
    verify()


@pytest.mark.spec("WP-INV-7", "MB-AT-LEAST-ONCE")
def test_a_power_cut_of_everything_loses_no_acknowledged_work(
    stack: Deployment,
    program: Make,
    place: Place,
    verify: Callable[[], None],
) -> None:
    with Load(stack, program, place) as load:
        load.until_rounds(10)
        for name in SERVICES:
            stack.kill(name)
        stack.kafka.kill()
        stack.postgres.kill()
        stack.heal()
        load.until_rounds(10)
    load.until_all_acknowledged()
    verify()
