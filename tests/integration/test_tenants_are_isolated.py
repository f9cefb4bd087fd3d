"""What belongs to one tenant is seen by nobody else: answers, matches, metrics (I15, W9)."""

from collections.abc import Callable

import pytest
from relay_common.testing.wait import until

from tests.integration.clients import History, Program, event
from tests.integration.conftest import Place
from tests.integration.deployment import Deployment
from tests.integration.tap import Tap

Make = Callable[..., Program]
READS = (
    "/v1/waitpoints",
    "/v1/events?received_after=2020-01-01T00:00:00Z&received_before=2100-01-01T00:00:00Z",
    "/v1/mailboxes/me",
    "/v1/mailboxes/me/records?since=0",
    "/v1/limits",
)


@pytest.mark.spec("WP-MATCH-EXACT")
def test_the_same_key_in_another_tenant_or_environment_matches_nothing(
    stack: Deployment, tap: Tap, program: Make, place: Place, history: History
) -> None:
    places = [place, Place(place.tenant, "test"), Place(f"{place.tenant}-b")]
    same_key = place.key()
    waiters = [program("client:same", where=where) for where in places]
    opened = [waiter.open("order.paid", same_key)["id"] for waiter in waiters]
    canary = f"canary-{place.tenant}"

    waiters[0].publish(event("order.paid", same_key, data={"canary": canary}))
    until(
        lambda: waiters[0].waitpoint(opened[0])["state"] == "resolved", 20, "the own one resolves"
    )
    held = waiters[0].publish(event("order.paid", f"{same_key}-held", data={"canary": canary}))
    until(lambda: waiters[0].request("GET", f"/v1/events/{held[0]}").is_success, 20, "recorded")

    for waiter, number in zip(waiters[1:], opened[1:], strict=True):
        assert waiter.waitpoint(number)["state"] == "open"
        assert waiter.open("order.paid", f"{same_key}-held")["state"] == "open"
        for path in READS:
            assert canary not in waiter.request("GET", path).text
    for call in history.calls:
        if (call.tenant, call.path) != (place.tenant, "/v1/events") and canary in call.text:
            assert call.tenant == place.tenant
    for seen in tap.of("relay.waitpoints") + tap.of("relay.mailbox"):
        if canary.encode() in (seen.value or b""):
            assert (seen.record["tenant"], seen.record["environment"]) == (place.tenant, "prod")
    for name in stack.services():
        assert place.tenant not in stack.metrics(name)


@pytest.mark.spec("MB-OWNER")
def test_a_mailbox_is_its_owners_alone(program: Make, place: Place) -> None:
    owner, neighbour = program("client:owner"), program("client:neighbour")
    stranger = program("client:owner", where=Place(f"{place.tenant}-b"))
    owner.open("order.paid", place.key())
    until(lambda: owner.mailbox() is not None, 20, "a mailbox")
    for other in (neighbour, stranger):
        for method, rest, body in (
            ("GET", "", None),
            ("GET", "/records?since=0", None),
            ("POST", "/leases", {"max_records": 1}),
        ):
            answer = other.request(method, f"/v1/mailboxes/client:owner{rest}", body)
            unknown = other.request(method, f"/v1/mailboxes/client:nobody{rest}", body)
            assert answer.status_code in (404, 200), answer.text
            if other is neighbour:
                assert (answer.status_code, answer.content) == (404, unknown.content)
            else:
                assert place.key() not in answer.text


def test_every_tenant_table_is_behind_a_forced_policy(stack: Deployment) -> None:
    with stack.database() as conn:
        open_tables = conn.execute(
            """
            select c.oid::regclass::text from pg_class c
            join pg_namespace n on n.oid = c.relnamespace
            where n.nspname in ('intake', 'matcher', 'escalation', 'mailbox')
              and c.relkind in ('r', 'p') and not (c.relrowsecurity and c.relforcerowsecurity)
              and exists (
                select from pg_attribute a where a.attrelid = c.oid and a.attname = 'tenant')
              -- A slice can be reached through its parent only.
              and (has_table_privilege('relay_matcher_http', c.oid, 'select')
                or has_table_privilege('relay_mailbox_http', c.oid, 'select')
                or has_table_privilege('relay_intake_http', c.oid, 'select')
                or has_table_privilege('relay_escalation_http', c.oid, 'select'))
            """
        ).fetchall()
    assert open_tables == []
