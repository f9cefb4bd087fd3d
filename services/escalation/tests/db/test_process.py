"""The escalation process on a real broker and database: it follows the lifecycle and ends well."""

import os
from collections.abc import Iterator

import httpx
import pytest
from relay_common.avro import Codec
from relay_common.testing import wait
from relay_common.testing.brokers import Topics
from relay_common.testing.databases import Database
from relay_common.testing.processes import ServiceRun, environment_of

LIFECYCLE = {
    "tenant": "acme",
    "environment": "prod",
    "message_id": bytes(16),
    "type": "waitpoint.created",
    "waitpoint_id": "wp_1",
    "revision": 1,
    "activation": 1,
    "waiter": "agent:a",
    "kind": "event",
    "state": "open",
    "event_type": "order.paid",
    "correlation_key": "order-7",
    "occurred_at": 1_893_456_000_000_000,
    "expires_at": 1_893_456_060_000_000,
    "internal": False,
    "body": b"{}",
}


@pytest.fixture
def lifecycle(topics: Topics) -> str:
    topics.create("relay.waitpoints.dlq", 1)
    return topics.create("relay.waitpoints", 1)


@pytest.fixture
def escalation(database: Database, topics: Topics, lifecycle: str) -> Iterator[ServiceRun]:
    assert lifecycle in topics.created
    polite = {"RELAY_ESCALATION_NICE": "3"}
    run = ServiceRun("escalation", environment_of(database, topics) | polite)
    yield run
    run.kill()


def position(database: Database) -> list[tuple[int]]:
    return database.owner.execute("select next_offset from escalation.position").fetchall()


def test_it_follows_the_lifecycle_buries_poison_and_ends_when_told(
    escalation: ServiceRun, topics: Topics, lifecycle: str, database: Database
):
    escalation.until_ready()
    codec = Codec()
    topics.produce(lifecycle, b"k", codec.encode("relay.waitpoints.v1", LIFECYCLE))
    topics.produce(lifecycle, b"k", b"\x00garbage")
    topics.produce(lifecycle, b"k", None)
    topics.produce(lifecycle, b"k", codec.encode("relay.waitpoints.v1", LIFECYCLE))
    topics.flush()
    wait.until(lambda: position(database) == [(4,)], describe=lambda: position(database))
    dead = wait.until(lambda: (found := topics.records(f"{lifecycle}.dlq"))[1:] and found)
    assert [dict(record.headers)["relay_reason"] for record in dead] == [
        b"unknown_schema",
        b"null_value",
    ]
    assert [record.value for record in dead] == [b"\x00garbage", None]
    assert escalation.stop() == 0


def test_it_steps_back_for_others_as_far_as_it_is_told(escalation: ServiceRun):
    escalation.until_ready()
    ours, its = (os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, escalation.process.pid))
    assert its == min(19, ours + 3)


def test_its_surface_answers_in_problems(escalation: ServiceRun):
    escalation.until_ready()
    found = httpx.get(f"http://127.0.0.1:{escalation.http_port}/v1/surfaces", trust_env=False)
    assert (found.status_code, found.json()["code"]) == (404, "not_found")
    metrics = escalation.get("/metrics")
    assert metrics
    assert "relay_http_request_seconds" in metrics.text
