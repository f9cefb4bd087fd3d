"""A reply that fails the schema is stored nowhere: no table, no topic, no log (invariant 5)."""

from collections.abc import Callable

import pytest
from psycopg import sql
from relay_common.testing.wait import until

from tests.integration.clients import Json, Program
from tests.integration.conftest import Place
from tests.integration.deployment import Deployment
from tests.integration.tap import Tap

Make = Callable[..., Program]
CANARY = "canary-5b1f0c7e"
QUESTION: Json = {
    "kind": "question",
    "responders": ["subscriber:ann"],
    "content": {"action": "refund", "amount": "12.50"},
    "response_schema": {
        "type": "object",
        "properties": {"approved": {"type": "boolean"}},
        "required": ["approved"],
        "additionalProperties": False,
    },
}


def tables_with(stack: Deployment, canary: str) -> list[str]:
    """Return every table of the database in which a row has `canary` in it, as text or bytes."""
    found: list[str] = []
    with stack.database() as conn:
        names = conn.execute(
            "select n.nspname, c.relname from pg_class c"
            " join pg_namespace n on n.oid = c.relnamespace where c.relkind = 'r' and n.nspname in"
            " ('relay', 'intake', 'matcher', 'escalation', 'mailbox', 'public')"
        ).fetchall()
        for schema, table in names:
            query = sql.SQL("select exists (select from {} t where t::text ~ %s)").format(
                sql.Identifier(str(schema), str(table))
            )
            pattern = f"{canary}|{canary.encode().hex()}"
            row = conn.execute(query, (pattern,)).fetchone()
            if row is not None and row[0]:
                found.append(f"{schema}.{table}")
    return found


@pytest.mark.spec("WP-INV-5")
def test_the_value_of_a_refused_reply_is_in_no_table_no_topic_and_no_log(
    stack: Deployment, tap: Tap, program: Make, place: Place
) -> None:
    waiter, ann = program("agent:buyer"), program("subscriber:ann")
    opened = waiter.open("refund.decided", place.key(), **QUESTION)
    path = f"/v1/waitpoints/{opened['id']}"
    session = ann.request("POST", f"{path}/reply-sessions", {}).json()
    reply: Json = {
        "reply_session": session["reply_session"],
        "subject_digest": session["subject_digest"],
    }
    refused = ann.request("POST", f"{path}/replies", reply | {"response": {"approved": CANARY}})
    assert (refused.status_code, refused.json()["code"]) == (422, "reply_schema_violation")
    assert [e["pointer"] for e in refused.json()["errors"]] == ["/response/approved"]
    assert CANARY not in refused.text

    # A valid reply and what it announces have gone all the way: nothing is on its way any more.
    assert ann.request(
        "POST", f"{path}/replies", reply | {"response": {"approved": True}}
    ).is_success
    until(lambda: kinds(tap, opened["id"]) >= {"waitpoint.resolved"}, 20, "it is announced")
    assert "waitpoint.response_rejected" in kinds(tap, opened["id"])

    assert tables_with(stack, CANARY) == []
    assert [seen for seen in list(tap.seen) if CANARY.encode() in (seen.value or b"")] == []
    assert [name for name, text in stack.logs().items() if CANARY in text] == []
    assert tables_with(stack, place.key()) != [], "the search finds what is there"


def kinds(tap: Tap, waitpoint_id: str) -> set[str]:
    """Return the types of the lifecycle events of one waitpoint that are on the topic."""
    seen = [one.record for one in tap.of("relay.waitpoints")]
    return {record["type"] for record in seen if record["waitpoint_id"] == waitpoint_id}
