"""The matcher as tests meet it: its HTTP in process, its consumer by hand, on a real Postgres."""

import itertools
import socket
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import orjson
import psycopg
import pytest
import uvicorn
from relay_common.avro import Codec
from relay_common.cursors import Cursors
from relay_common.db import installation, open_pool
from relay_common.errors import Busy
from relay_common.records import DeadLetter, Record
from relay_common.testing import wait
from relay_common.testing.databases import Database, Template
from relay_common.testing.issuer import Issuer
from relay_common.tokens import TokenVerifier
from relay_devstack.access import create_app
from relay_matcher.access import Access
from relay_matcher.announcement import Announcer
from relay_matcher.consumer import EventConsumer
from relay_matcher.expansion import expander
from relay_matcher.http import matcher_app
from relay_matcher.http.desk import Desk, create_desk
from relay_matcher.operations import sweeping
from relay_matcher.operations.plumbing import Plumbing

SHARDS = 2
SCOPES = "waitpoints:write waitpoints:read waitpoints:reply events:read"
REPLIER = "waitpoints:reply waitpoints:read"
TENANT, ENVIRONMENT = "acme", "test"
CONTENT = {"action": "refund", "amount": "19.99", "target": "order-1"}
ACTIONS = ["approve", "deny"]
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "by": {"type": "string", "format": "date-time"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@dataclass
class Message:
    """One announced message: its topic, the Avro record, and the JSON inside it."""

    topic: str
    key: bytes
    record: dict[str, Any]
    headers: dict[str, bytes]

    @property
    def body(self) -> dict[str, Any]:
        return orjson.loads(self.record["body"])


@dataclass
class Kit:
    """What a test holds in its hands."""

    database: Database
    issuer: Issuer
    plumbing: Plumbing
    consumer: EventConsumer
    stream: psycopg.Connection[Any]
    access: Access
    client: httpx.AsyncClient = field(init=False)
    desk: Desk = field(init=False)
    offsets: Iterator[int] = field(default_factory=itertools.count)

    # ---- HTTP

    async def call(
        self,
        method: str,
        path: str,
        json: Any = None,
        *,
        who: str = "agent:a",
        scope: str = SCOPES,
        key: str | None = None,
        tenant: str = TENANT,
        environment: str = ENVIRONMENT,
        params: Mapping[str, Any] | None = None,
    ) -> httpx.Response:
        """Call the API as `who`; a mutating call gets a key of its own unless one is named."""
        token = self.issuer.token(sub=who, tenant=tenant, environment=environment, scope=scope)
        headers = {"authorization": f"Bearer {token}"}
        if method != "GET" and key != "":
            headers["idempotency-key"] = key or uuid.uuid4().hex
        body: dict[str, Any] = {}
        if json is not None:
            headers["content-type"] = "application/json"
            body["content"] = orjson.dumps(json)
        return await self.client.request(method, path, headers=headers, params=params, **body)

    async def open(self, key: str = "k", **given: Any) -> httpx.Response:
        """Open an event waitpoint on `key`; fields of the body and of call() may be given."""
        aside = {"who", "scope", "tenant", "environment"}
        how = {n: given.pop(n) for n in list(given) if n in aside}
        idempotency = given.pop("idempotency", None)
        return await self.call(
            "POST", "/v1/waitpoints", event_waitpoint(key, **given), key=idempotency, **how
        )

    async def get(self, identifier: str, **how: Any) -> dict[str, Any]:
        """Return a waitpoint as its waiter sees it."""
        found = await self.call("GET", f"/v1/waitpoints/{identifier}", **how)
        assert found.status_code == 200, found.text
        return found.json()

    # ---- people

    async def ask(self, key: str = "q", **given: Any) -> httpx.Response:
        """Open a question of agent:a to two people, or a review with actions."""
        how = {n: given.pop(n) for n in ("who", "scope", "tenant") if n in given}
        kind = given.pop("kind", "question")
        closed = {"response_schema": SCHEMA} if kind == "question" else {"actions": ACTIONS}
        body = {
            "kind": kind,
            "match": {"event_type": "refund.decided", "correlation_key": key},
            "expires_at": (self.one("select relay.now()") + timedelta(hours=1)).isoformat(),
            "responders": ["subscriber:ann", "subscriber:bob"],
            "content": CONTENT,
            **closed,
            **given,
        }
        body = {name: value for name, value in body.items() if value is not None}
        return await self.call("POST", "/v1/waitpoints", body, **how)

    async def session(
        self, waitpoint: str, who: str = "subscriber:ann", **body: Any
    ) -> httpx.Response:
        """Open a reply session."""
        scope = body.pop("scope", REPLIER)
        path = f"/v1/waitpoints/{waitpoint}/reply-sessions"
        return await self.call("POST", path, body, who=who, scope=scope)

    async def reply(
        self, waitpoint: Mapping[str, Any], who: str = "subscriber:ann", **given: Any
    ) -> httpx.Response:
        """Open a session and reply in it; fields of the reply may be given."""
        scope = given.pop("scope", REPLIER)
        claim = {n: given[n] for n in ("responder", "channel") if n in given}
        if "reply_session" not in given:
            opened = await self.session(waitpoint["id"], who, **claim, scope=scope)
            given["reply_session"] = opened.json().get("reply_session", "rs_none")
        body = {"subject_digest": waitpoint["subject_digest"], **given}
        if "response" not in body and "decision" not in body:
            body["response"] = {"ok": True}
        path = f"/v1/waitpoints/{waitpoint['id']}/replies"
        return await self.call("POST", path, body, who=who, scope=scope)

    async def reply_by_key(
        self, subject: Mapping[str, Any], who: str = "subscriber:ann", **given: Any
    ) -> httpx.Response:
        """Reply by match key for the digest of `subject`; fields of the reply may be given."""
        scope = given.pop("scope", REPLIER)
        body = {
            "waiter": "agent:a",
            "event_type": "refund.decided",
            "correlation_key": "q",
            "subject_digest": subject["subject_digest"],
            "response": {"ok": True},
            **given,
        }
        return await self.call("POST", "/v1/replies", body, who=who, scope=scope)

    # ---- topic

    def record(self, value: bytes | None, **given: Any) -> Record:
        """Return one record of relay.events at the next offset."""
        return Record("relay.events", 0, next(self.offsets), 0, None, value, **given)

    def value(self, key: str = "k", **given: Any) -> bytes:
        """Return an event's Avro value; `data` may be any JSON."""
        return self.plumbing.codec.encode("relay.events.v1", fields_of_event(key, **given))

    def deliver(
        self, *values: bytes | None, conn: psycopg.Connection[Any] | None = None
    ) -> Sequence[DeadLetter]:
        """Run one batch of the consumer and commit it; busy, it is offered once more."""
        stream = conn or self.stream
        records = [self.record(value) for value in values]
        with suppress(Busy), stream.transaction():
            return self.consumer(stream, records)
        with stream.transaction():
            return self.consumer(stream, records)

    def event(self, key: str = "k", **given: Any) -> Sequence[DeadLetter]:
        """Deliver one event."""
        return self.deliver(self.value(key, **given))

    # ---- outcome

    def announced(self, topic: str | None = None) -> list[Message]:
        """Return what stands in the outbox, in the order of its rows; the rows go away."""
        rows = self.stream.execute(
            "with gone as (delete from outbox returning id, topic, payload)"
            " select topic, payload from gone order by id"
        ).fetchall()
        found = [message for row in rows for message in self.messages(*row)]
        return [message for message in found if topic is None or message.topic == topic]

    def messages(self, topic: str, payload: bytes) -> list[Message]:
        """Return the messages of one row."""
        found: list[Message] = []
        for goes_to, (key, value, headers) in expander(self.plumbing.announcer)(topic, payload):
            _, record = self.plumbing.codec.decode(value)
            found.append(Message(goes_to, key or b"", record, dict(headers)))
        return found

    def lifecycle(self) -> list[tuple[str, int]]:
        """Return type and revision of what relay.waitpoints would get."""
        return [
            (m.record["type"], m.record["revision"]) for m in self.announced("relay.waitpoints")
        ]

    def one(self, statement: Any, *parameters: Any) -> Any:
        """Return the one value of a statement, as the owner sees it."""
        row = self.database.owner.execute(statement, parameters).fetchone()
        assert row is not None
        return row[0]

    def expire_due(self) -> int:
        """Run the sweep of deadlines."""
        found = sweeping.expire_due(self.stream, self.plumbing.announcer, SHARDS)
        return found["expired"]


def event_waitpoint(key: str = "k", **given: Any) -> dict[str, Any]:
    """Return the body that opens an event waitpoint for an hour."""
    event_type = given.pop("event_type", "order.paid")
    given.setdefault("expires_at", in_seconds(3600))
    return {
        "kind": "event",
        "match": {"event_type": event_type, "correlation_key": key},
        **{name: value for name, value in given.items() if value is not None},
    }


def in_seconds(seconds: float) -> str:
    """Return the time in `seconds` as the API takes it."""
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()  # noqa: TID251 - a client


def fields_of_event(key: str, **given: Any) -> dict[str, Any]:
    """Return the fields of an event with its own id."""
    data = given.pop("data", {"amount": 10})
    fields = {
        "tenant": TENANT,
        "environment": ENVIRONMENT,
        "event_type": "order.paid",
        "correlation_key": key,
        "source": "shop",
        "id": uuid.uuid4().hex,
        "recipient": None,
        "event_id": None,
        "occurred_at": None,
        "accepted_by": None,
        "dataref_uri": None,
        "dataref_digest": None,
        "data": data if data is None or isinstance(data, bytes) else orjson.dumps(data),
    }
    return {**fields, **given}


@pytest.fixture
def event_fields() -> Callable[..., dict[str, Any]]:
    """The factory of events' fields."""
    return fields_of_event


def create_kit(database: Database, issuer: Issuer, access_url: str) -> Kit:
    """Return the matcher on `database`, without its HTTP client."""
    codec = Codec()
    announcer = Announcer(codec.prefix, lambda name: name)
    seed = installation(database.owner).hash_seed
    plumbing = Plumbing(codec, announcer, SHARDS, seed)
    consumer = EventConsumer(codec, seed, announcer, SHARDS)
    stream = database.connect("relay_matcher_stream")
    return Kit(database, issuer, plumbing, consumer, stream, Access(access_url))


@pytest.fixture(scope="session")
def access_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The stand-in for Access, on a port of its own."""
    state = tmp_path_factory.mktemp("access")
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(state), log_level="error"))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    wait.until(lambda: server.started, describe="the stand-in for Access to start")
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def database_once(database_template: Template) -> Iterator[Database]:
    """One database for a module whose tests leave nothing behind that others see."""
    with database_template.clone() as fresh:
        yield fresh


@pytest.fixture
async def matcher_once(
    database_once: Database, issuer: Issuer, access_url: str
) -> AsyncIterator[Kit]:
    """The matcher on the database that a module's tests share."""
    async with serving(create_kit(database_once, issuer, access_url)) as kit:
        yield kit


@pytest.fixture
async def matcher(database: Database, issuer: Issuer, access_url: str) -> AsyncIterator[Kit]:
    """The matcher of one test."""
    async with serving(create_kit(database, issuer, access_url)) as kit:
        yield kit


@asynccontextmanager
async def serving(kit: Kit) -> AsyncIterator[Kit]:
    """Serve the kit's HTTP in process."""
    pool = open_pool(kit.database.conninfo("relay_matcher_http"), "relay-test", 8)
    verifier = TokenVerifier(kit.issuer.url, kit.issuer.audience, kit.issuer.fetch_jwks)
    kit.desk = create_desk(pool, kit.plumbing, Cursors(b"a secret of tests"), kit.access)
    async with pool:
        app = matcher_app(kit.desk, verifier)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://matcher") as client:
            kit.client = client
            yield kit
            await kit.access.close()
