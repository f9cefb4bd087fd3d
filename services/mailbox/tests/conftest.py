"""A mailbox with its database, its HTTP side and readers."""

import uuid
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest
import pytest_asyncio
from relay_common.avro import Codec
from relay_common.cursors import Cursors
from relay_common.db import Connection, installation, open_pool
from relay_common.testing.databases import Database
from relay_common.testing.issuer import Issuer
from relay_common.tokens import TokenVerifier
from relay_mailbox.domain.record import NewRecord, Owner
from relay_mailbox.http.app import AppParts, mailbox_app
from relay_mailbox.operations.abuse import AbuseDesk
from relay_mailbox.operations.append import Appending
from relay_mailbox.store.appends import announce

SCOPES = "mailbox:read mailbox:ack topics:subscribe"
AGENT = "agent:planner"


@pytest.fixture
def stream(database: Database) -> Connection:
    """A connection of the stream side."""
    return database.connect("relay_mailbox_stream")


def a_record(owner: str = AGENT, **given: object) -> NewRecord:
    """Return a record for `owner` of tenant acme, environment test."""
    usual: dict[str, object] = {
        "to": Owner("acme", "test", owner),
        "message_id": uuid.uuid4().bytes,
        "kind": "message",
        "type": "note",
        "state": "available",
        "body": b'{"text":"hello"}',
    }
    return NewRecord(**{**usual, **given})


class Streams:
    """Appends to mailboxes as the consumer does, one transaction a call."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.appending = Appending(Codec(), "relay.hints", 2)

    def append(self, *records: NewRecord):
        """Append `records` in one transaction and return the fresh ones."""
        with self.conn.transaction():
            fresh = self.appending.append(self.conn, records)
            announce(self.conn, self.appending.hints(fresh), 2)
        return fresh

    def fill(self, count: int, owner: str = AGENT, **given: object) -> list[NewRecord]:
        """Append `count` records for `owner`."""
        records = [a_record(owner, **given) for _ in range(count)]
        self.append(*records)
        return records

    def one(self, statement: str, *values: object):
        """Return the first column of the first row."""
        return self.conn.execute(statement, values).fetchone()[0]


@pytest.fixture
def streams(stream: Connection) -> Streams:
    """The stream side's appends."""
    return Streams(stream)


@pytest.fixture
def new_record():
    """The factory of records."""
    return a_record


class Reader:
    """One identity that calls the mailbox over HTTP."""

    def __init__(self, client: httpx.AsyncClient, token: str) -> None:
        self.client = client
        self.headers = {"authorization": f"Bearer {token}"}

    async def get(self, path: str, **query: object) -> httpx.Response:
        return await self.client.get(f"/v1/mailboxes/{path}", params=query, headers=self.headers)

    async def send(
        self, method: str, path: str, body: object = None, key: str | None = None
    ) -> httpx.Response:
        """Send a mutating request with an idempotency key of its own, or with `key`."""
        headers = {**self.headers, "idempotency-key": key or uuid.uuid4().hex}
        url = path if path.startswith("/v1/") else f"/v1/mailboxes/{path}"
        return await self.client.request(method, url, json=body, headers=headers)

    async def lease(self, count: int = 1, seconds: float | None = None, **more: object):
        """Lease and return the body."""
        body: dict[str, object] = {"max_records": count}
        if seconds is not None:
            body["lease_seconds"] = seconds
        answer = await self.send("POST", "me/leases", body, **more)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    async def ack(self, lease: dict, seqs: Sequence[int] | None = None, **more: object):
        """Acknowledge `seqs` of `lease` (all by default) and return the results in order."""
        epoch = lease["records"][0]["epoch"]
        chosen = [r["seq"] for r in lease["records"]] if seqs is None else list(seqs)
        body = {"lease_id": lease["lease_id"], "epoch": epoch, "seqs": chosen}
        answer = await self.send("POST", "me/acks", body, **more)
        assert answer.status_code == 200, answer.text
        return [one["result"] for one in answer.json()["results"]]

    async def counts(self) -> dict[str, int]:
        """Return the counts of the own mailbox."""
        return (await self.get("me")).json()["counts"]


@pytest_asyncio.fixture
async def client(database: Database, issuer: Issuer) -> AsyncIterator[httpx.AsyncClient]:
    """The HTTP side of the mailbox service on this test's database."""
    pool = open_pool(database.conninfo("relay_mailbox_http"), "mailbox test", 4)
    verifier = TokenVerifier(issuer.url, issuer.audience, issuer.fetch_jwks)
    desk = AbuseDesk(Codec(), "relay.topics", 2)
    seed = installation(database.owner).hash_seed
    app = mailbox_app(AppParts(verifier, pool, seed, Cursors(b"a secret of the test"), desk))
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://mailbox") as made,
    ):
        yield made


@pytest.fixture
def as_reader(client: httpx.AsyncClient, issuer: Issuer):
    """Returns a reader for a subject, by default of tenant acme with all mailbox scopes."""

    def reader(sub: str = AGENT, scope: str = SCOPES, **token: object) -> Reader:
        return Reader(client, issuer.token(sub, scope=scope, **token))

    return reader


@pytest.fixture
def reader(as_reader) -> Reader:
    """The owner of the mailbox most tests fill."""
    return as_reader()


@pytest.fixture
def operator(as_reader) -> Reader:
    """An operator of the tenant."""
    return as_reader("subscriber:sre", "operator")
