"""An invitation is a message: relationship and block decide what it may do (design D14)."""

from collections.abc import Callable

import httpx
import pytest
from relay_common.testing.wait import until

from tests.integration.clients import Json, Program
from tests.integration.conftest import Place
from tests.integration.deployment import Deployment

Make = Callable[..., Program]
WAITER, FRIEND, STRANGER, BLOCKER = (
    "agent:asker",
    "subscriber:ann",
    "subscriber:bob",
    "subscriber:eve",
)
QUESTION: Json = {
    "kind": "question",
    "responders": [FRIEND, STRANGER, BLOCKER],
    "content": {"action": "refund"},
    "response_schema": {"type": "boolean"},
}
INVITATION, SETTLED = "waitpoint.invitation", "waitpoint.no_reply_needed"


def relate(stack: Deployment, place: Place, recipient: str) -> None:
    """Record in Access that `recipient` knows the waiter."""
    fact = {"sender": WAITER, "recipient": recipient, "relationship": "contact"}
    where = {"tenant": place.tenant, "environment": place.environment}
    url = f"{stack.addresses['RELAY_ACCESS_URL']}/relationships"
    httpx.put(url, json=fact | where, trust_env=False).raise_for_status()


def records_of(program: Program, count: int) -> list[Json]:
    """Wait until the mailbox holds `count` records and return them."""

    def there() -> list[Json] | None:
        found = program.records() if program.mailbox() else []
        return found if len(found) >= count else None

    return until(there, 20, f"{count} records of {program.identity}")


def requests_of(program: Program) -> list[tuple[str, int]]:
    """Return who asks in the request box, with how many messages."""
    items = program.pages("/v1/mailboxes/me/requests")
    return [(item["sender"], item["records"]) for item in items]


@pytest.mark.spec("FC-UNKNOWN", "FC-BLOCK", "ES-CLOSE")
def test_an_invitation_goes_where_a_message_of_its_waiter_goes(
    stack: Deployment, program: Make, place: Place
) -> None:
    waiter, friend, stranger, blocker = map(program, (WAITER, FRIEND, STRANGER, BLOCKER))
    relate(stack, place, FRIEND)
    relate(stack, place, BLOCKER)
    assert blocker.request("PUT", f"/v1/mailboxes/me/blocks/{WAITER}").is_success

    opened = waiter.open("refund.decided", place.key(), **QUESTION)
    seen = {one.identity: records_of(one, 1)[0] for one in (friend, stranger, blocker)}
    assert {name: (r["type"], r.get("trust"), r["relationship"]) for name, r in seen.items()} == {
        FRIEND: (INVITATION, None, "contact"),
        STRANGER: (INVITATION, None, "unknown"),
        BLOCKER: (INVITATION, "blocked", "contact"),
    }
    assert [requests_of(one) for one in (friend, stranger, blocker)] == [[], [(WAITER, 1)], []]
    assert [r["type"] for r in friend.lease()["records"]] == [INVITATION]
    assert stranger.lease()["records"] == blocker.lease()["records"] == []

    # The end of the matter goes the same way and takes the invitation's place: nobody can lease a
    # request for a reply that is not needed any more.
    assert waiter.request("POST", f"/v1/waitpoints/{opened['id']}/cancel").is_success
    for one in (friend, stranger, blocker):
        assert records_of(one, 2)[1]["type"] == SETTLED
    assert [requests_of(one) for one in (friend, stranger, blocker)] == [[], [(WAITER, 1)], []]
    assert stranger.lease()["records"] == blocker.lease()["records"] == []
    assert stranger.request("POST", f"/v1/mailboxes/me/requests/{WAITER}/accept").is_success
    assert [r["type"] for r in stranger.lease()["records"]] == [SETTLED]
    assert [r["type"] for r in friend.lease()["records"]] == [SETTLED]
