"""The matcher process on a real broker: the state is the waitpoint's, not that of its topics."""

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from relay_common.avro import Codec
from relay_common.testing import wait
from relay_common.testing.brokers import Topics
from relay_common.testing.databases import Database
from relay_common.testing.issuer import Issuer
from relay_common.testing.processes import ServiceRun, environment_of

ANNOUNCED = ("relay.waitpoints", "relay.mailbox", "relay.topics")
SCOPE = "waitpoints:write waitpoints:read waitpoints:reply"


class Matcher:
    """The process, and how to call it."""

    def __init__(self, run: ServiceRun, issuer: Issuer) -> None:
        self.run, self.issuer = run, issuer

    def call(self, method: str, path: str, body: Any = None, who: str = "agent:a") -> Any:
        """Call the API as `who`; return the body of what must be a success."""
        headers = {
            "authorization": f"Bearer {self.issuer.token(sub=who, scope=SCOPE)}",
            "idempotency-key": uuid.uuid4().hex,
        }
        url = f"http://127.0.0.1:{self.run.http_port}/v1/waitpoints{path}"
        with httpx.Client(trust_env=False, timeout=30, headers=headers) as client:
            answer = client.request(method, url, json=body)
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture
def matcher(
    database: Database, topics: Topics, issuer: Issuer, jwks_url: str, access_url: str
) -> Iterator[Matcher]:
    """The process, ready; the topics it reads and writes are there."""
    for name in ("relay.events", "relay.events.dlq", *ANNOUNCED):
        topics.create(name, 1)
    environment = environment_of(database, topics, jwks_url) | {"RELAY_ACCESS_URL": access_url}
    run = ServiceRun("matcher", environment)
    try:
        run.until_ready()
        yield Matcher(run, issuer)
        assert run.stop() == 0
    finally:
        run.kill()


def waiting(database: Database) -> int:
    """Return how many rows of the outbox are not acknowledged yet."""
    row = database.owner.execute("select count(*) from matcher.outbox").fetchone()
    assert row is not None
    return row[0]


@pytest.mark.spec("WP-INV-7")
def test_dropping_every_topic_changes_no_state(
    matcher: Matcher, database: Database, topics: Topics, event_fields: Callable[..., Any]
) -> None:
    later = database.owner.execute("select to_json(relay.now() + interval '1 hour')").fetchone()
    assert later is not None
    event = {"kind": "event", "expires_at": later[0]}
    question = {
        "kind": "question",
        "expires_at": later[0],
        "responders": ["subscriber:ann"],
        "content": {"n": 1},
        "response_schema": {"type": "integer"},
    }
    opened = {
        key: matcher.call(
            "POST", "", {**body, "match": {"event_type": name, "correlation_key": key}}
        )
        for key, name, body in (
            ("paid", "order.paid", event),
            ("open", "order.paid", event),
            ("asked", "asked", question),
        )
    }
    full = topics.prefix + "relay.events"
    topics.produce(full, b"k", Codec().encode("relay.events.v1", event_fields("paid")))
    topics.flush()

    def states() -> dict[str, Any]:
        return {key: matcher.call("GET", f"/{one['id']}") for key, one in opened.items()}

    wait.until(lambda: states()["paid"]["state"] == "resolved", describe=states)
    wait.until(lambda: waiting(database) == 0, describe="everything is announced")
    before = states()

    for name in (*ANNOUNCED, "relay.events"):
        topics.delete(topics.prefix + name)

    assert states() == before
    path = f"/{opened['asked']['id']}"
    session = matcher.call("POST", f"{path}/reply-sessions", {}, who="subscriber:ann")
    reply = {
        "reply_session": session["reply_session"],
        "subject_digest": session["subject_digest"],
        "response": 1,
    }
    assert (
        matcher.call("POST", f"{path}/replies", reply, who="subscriber:ann")["state"] == "resolved"
    )
    cancelled = matcher.call("POST", f"/{opened['open']['id']}/cancel")
    assert cancelled["state"] == "cancelled"
    # What could not be announced waits for its topics, and is announced when they are back.
    assert waiting(database) > 0
    for name in ANNOUNCED:
        topics.create(name, 1)
    wait.until(lambda: waiting(database) == 0, 60, describe="the rest is announced")
    told = topics.records(topics.prefix + "relay.waitpoints")
    types = {dict(record.headers)["ce_type"] for record in told}
    assert types == {b"waitpoint.resolved", b"waitpoint.cancelled"}
