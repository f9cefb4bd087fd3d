"""POST /v1/events against a real broker: 202 means that the broker has it."""

import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import httpx
import pytest
from fastapi import FastAPI
from relay_common import limits
from relay_common.avro import Codec
from relay_common.http import add_routes, create_app
from relay_common.ids import decode_id
from relay_common.match_key import MatchKey
from relay_common.producer import Producer
from relay_common.records import Record
from relay_common.testing.brokers import Topics
from relay_common.testing.issuer import Issuer
from relay_common.tokens import TokenVerifier
from relay_intake.http import events_router
from relay_intake.operations import EventTopic

SEED = 4711
PAID = {"event_type": "order.paid", "correlation_key": "order-7"}
CLOUD = {
    "specversion": "1.0",
    "id": "e-1",
    "source": "/shop",
    "type": "order.paid",
    "correlationkey": "order-7",
}
CODEC = Codec()
Serve = Callable[[Producer, str], httpx.AsyncClient]


@pytest.fixture(scope="module")
def producer(kafka_bootstrap: str) -> Iterator[Producer]:
    made = Producer(kafka_bootstrap, "test-intake", 10_000)
    yield made
    made.close()


@pytest.fixture
def serve(issuer: Issuer) -> Serve:
    def made(producer: Producer, topic: str) -> httpx.AsyncClient:
        verifier = TokenVerifier(issuer.url, issuer.audience, issuer.fetch_jwks)
        app: FastAPI = create_app(
            "intake", "1", verifier, request_limit=limits.EVENTS_REQUEST_BYTES
        )
        add_routes(app, events_router(EventTopic(producer, CODEC, topic, SEED)))
        headers = {
            "authorization": f"Bearer {issuer.token(scope='events:write')}",
            "idempotency-key": "key-1",
        }
        transport = httpx.ASGITransport(app)
        return httpx.AsyncClient(transport=transport, base_url="http://relay", headers=headers)

    return made


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create("relay.events")


@pytest.fixture
async def client(serve: Serve, producer: Producer, topic: str) -> AsyncIterator[httpx.AsyncClient]:
    async with serve(producer, topic) as made:
        yield made


def code(found: httpx.Response, status: int) -> str:
    assert found.status_code == status, found.text
    assert found.headers["content-type"] == "application/problem+json"
    return found.json()["code"]


def events_on(topics: Topics, topic: str) -> list[dict[str, object]]:
    return [CODEC.decode(record.value)[1] for record in topics.records(topic)]


def headers_of(record: Record) -> dict[str, str]:
    return {name: value.decode() for name, value in record.headers}


async def test_an_event_is_on_the_topic_when_the_answer_comes(
    client: httpx.AsyncClient, topics: Topics, topic: str
):
    given = {**PAID, "recipient": "agent:a", "data": {"total": 5}}
    found = await client.post("/v1/events", json={**given, "occurred_at": "2030-01-01T00:00:00Z"})
    assert found.status_code == 202
    [accepted] = found.json()["accepted"]
    [record] = topics.records(topic)
    key = MatchKey("acme", "test", "order.paid", "order-7")
    assert record.key == key.encoded()
    schema, event = CODEC.decode(record.value)
    assert schema == "relay.events.v1"
    assert (event["tenant"], event["environment"]) == ("acme", "test")
    assert (event["accepted_by"], event["recipient"]) == ("client:test", "agent:a")
    assert event["data"] == b'{"total":5}'
    raw = decode_id("ev_", accepted, 24)
    assert raw == key.hash(SEED).to_bytes(8, "big", signed=True) + event["event_id"]
    assert headers_of(record) == {
        "ce_specversion": "1.0",
        "ce_id": accepted,
        "ce_source": "/tenants/acme/environments/test",
        "ce_type": "order.paid",
        "ce_correlationkey": "order-7",
        "ce_recipient": "agent:a",
        "ce_time": "2030-01-01T00:00:00.000000Z",
    }


async def test_a_batch_is_answered_in_its_order(
    client: httpx.AsyncClient, topics: Topics, topic: str
):
    given = [{**PAID, "correlation_key": f"order-{index}"} for index in range(1000)]
    found = await client.post("/v1/events", json={"events": given})
    accepted = found.json()["accepted"]
    assert len(set(accepted)) == 1000
    ids = {
        headers_of(r)["ce_correlationkey"]: headers_of(r)["ce_id"] for r in topics.records(topic)
    }
    assert [ids[f"order-{index}"] for index in range(1000)] == accepted


async def test_events_of_one_key_keep_their_order(
    client: httpx.AsyncClient, topics: Topics, topic: str
):
    await client.post("/v1/events", json={"events": [{**PAID, "data": i} for i in range(100)]})
    assert [event["data"] for event in events_on(topics, topic)] == [b"%d" % i for i in range(100)]


async def test_a_repeat_is_the_same_events(client: httpx.AsyncClient):
    given = {"events": [PAID, {**PAID, "id": "e-1", "source": "/shop"}]}
    first = await client.post("/v1/events", json=given)
    again = await client.post("/v1/events", json=given)
    other = await client.post("/v1/events", json=given, headers={"idempotency-key": "key-2"})
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    assert other.json()["accepted"][0] != first.json()["accepted"][0]
    assert other.json()["accepted"][1] == first.json()["accepted"][1]


async def test_an_event_with_an_id_leaves_its_id_to_the_matcher(
    client: httpx.AsyncClient, topics: Topics, topic: str
):
    await client.post("/v1/events", json={**PAID, "id": "e-1", "source": "/shop"})
    [event] = events_on(topics, topic)
    assert (event["id"], event["source"], event["event_id"]) == ("e-1", "/shop", None)


async def test_cloud_events_in_all_three_modes(
    client: httpx.AsyncClient, topics: Topics, topic: str
):
    async def send(content: bytes, **headers: str) -> list[str]:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        found = await client.post("/v1/events", content=content, headers=names)
        assert found.status_code == 202, found.text
        return found.json()["accepted"]

    structured = {**CLOUD, "data": {"a": 1}, "subject": "s"}
    one = await send(
        json.dumps(structured).encode(), content_type="application/cloudevents+json; charset=utf-8"
    )
    batch = await send(
        json.dumps([CLOUD, {**CLOUD, "id": "e-2"}]).encode(),
        content_type="application/cloudevents-batch+json",
    )
    binary = {f"ce_{name}": value for name, value in CLOUD.items()}
    in_headers = await send(b'{"a":1}', content_type="application/json", **binary)
    bare = await send(b"", **binary)
    assert one == in_headers == bare == batch[:1]
    assert batch[0] != batch[1]
    records = topics.records(topic)
    assert [headers_of(record)["ce_id"] for record in records] == [
        "e-1",
        "e-1",
        "e-2",
        "e-1",
        "e-1",
    ]
    assert headers_of(records[0])["ce_subject"] == "s"
    assert [CODEC.decode(record.value)[1]["data"] for record in records] == [
        b'{"a": 1}',
        None,
        None,
        b'{"a":1}',
        None,
    ]


async def test_a_trace_goes_on_through_the_topic(
    client: httpx.AsyncClient, topics: Topics, topic: str
):
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    await client.post("/v1/events", json=PAID, headers={"traceparent": trace})
    [record] = topics.records(topic)
    assert headers_of(record)["traceparent"].split("-")[1] == trace.split("-")[1]


async def test_a_refused_batch_leaves_nothing_on_the_topic(
    client: httpx.AsyncClient, topics: Topics, topic: str
):
    found = await client.post("/v1/events", json={"events": [PAID, {**PAID, "event_type": ""}]})
    assert code(found, 422) == "validation_failed"
    assert [fault["pointer"] for fault in found.json()["errors"]] == ["/events/1/event_type"]
    assert topics.records(topic) == []


@pytest.mark.parametrize("name", ["tenant", "environment", "accepted_by", "event_id"])
async def test_nothing_in_the_body_says_whose_event_it_is(client: httpx.AsyncClient, name: str):
    found = await client.post("/v1/events", json={**PAID, name: "zeta"})
    assert code(found, 422) == "unknown_field"


@pytest.mark.parametrize(
    ("headers", "status", "expected"),
    [
        ({"authorization": ""}, 401, "invalid_token"),
        ({"idempotency-key": ""}, 400, "idempotency_key_invalid"),
        ({"content-type": "text/plain"}, 415, "unsupported_media_type"),
        ({"content-type": ""}, 415, "unsupported_media_type"),
        ({"content-type": "text/xml", "ce-specversion": "1.0"}, 415, "unsupported_media_type"),
        ({"content-encoding": "gzip"}, 415, "unsupported_media_type"),
        ({"ce-specversion": "1.0"}, 422, "validation_failed"),
    ],
    ids=repr,
)
async def test_requests_outside_the_contract(
    client: httpx.AsyncClient, headers: dict[str, str], status: int, expected: str
):
    given = {"content-type": "application/json", **headers}
    found = await client.post("/v1/events", content=json.dumps(PAID), headers=given)
    assert code(found, status) == expected


async def test_the_scope_is_needed(client: httpx.AsyncClient, issuer: Issuer):
    headers = {"authorization": f"Bearer {issuer.token(scope='events:read')}"}
    found = await client.post("/v1/events", json=PAID, headers=headers)
    assert code(found, 403) == "insufficient_scope"


async def test_the_largest_events_and_batches_get_through(
    client: httpx.AsyncClient, topics: Topics, topic: str
):
    largest = {**PAID, "correlation_key": "é" * 256, "data": "x" * (256 * 1024 - 2)}
    found = await client.post("/v1/events", json={"events": [largest] * 60})
    assert found.status_code == 202
    assert len(topics.records(topic)) == 60
    found = await client.post("/v1/events", json={"events": [largest] * 65})
    assert code(found, 413) == "payload_too_large"
    assert found.json()["limit"]["name"] == "events_request_bytes"


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{kept.getsockname()[1]}"


async def test_without_a_broker_nothing_is_pretended(serve: Serve, nobody: str):
    producer = Producer(nobody, "test-intake", 300)
    async with serve(producer, "relay.events") as client:
        found = await client.post("/v1/events", json={"events": [PAID] * 3})
    assert code(found, 503) == "broker_unavailable"
    assert found.headers["retry-after"] == "1"
    producer.close(1)


async def test_a_missing_topic_is_no_success(serve: Serve, kafka_bootstrap: str, topics: Topics):
    producer = Producer(kafka_bootstrap, "test-intake", 2_500)
    async with serve(producer, f"{topics.prefix}never-made") as client:
        found = await client.post("/v1/events", json=PAID)
    assert code(found, 503) == "broker_unavailable"
    producer.close(1)


async def test_a_broker_that_refuses_the_event_is_our_fault(
    serve: Serve, producer: Producer, topics: Topics
):
    small = topics.create("small", 1, {"max.message.bytes": "2000"})
    async with serve(producer, small) as client:
        noise = "".join(f"{index * 7919 % 1000003:x}" for index in range(20_000))
        found = await client.post("/v1/events", json={**PAID, "data": noise})
    assert code(found, 500) == "internal_error"
