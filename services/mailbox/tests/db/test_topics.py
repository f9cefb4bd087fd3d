"""Topics: subscriptions and their fan-out (design §5)."""

import uuid

import orjson
import pytest
from relay_common.avro import Codec
from relay_common.outbox import unpack
from relay_common.records import DeadLetter, Record, write_leaving
from relay_mailbox import sweeper
from relay_mailbox.consumer import MailboxConsumer
from relay_mailbox.operations.fan_out import FanOut, body_of, length_prefixed
from relay_mailbox.store.fan_out import FanningOut, TopicMessage

AGENT = "agent:planner"


@pytest.fixture
def fan_out() -> FanOut:
    return FanOut(Codec(), "relay.mailbox", 2)


@pytest.fixture
def consume(streams, fan_out):
    """Consumes values as the loop does; returns the dead letters, the hints go to the outbox."""
    handle = MailboxConsumer(Codec(), streams.appending, fan_out)

    def take(values: list[bytes | None]):
        records = [Record("t", 0, at, 0, b"", value) for at, value in enumerate(values)]
        with streams.conn.transaction():
            leaving = handle(streams.conn, records)
            write_leaving(streams.conn, leaving, 2)
        return [one for one in leaving if isinstance(one, DeadLetter)]

    return take


def message(topic: str = "news", body: bytes = b'{"n":1}', tenant: str = "acme") -> bytes:
    fields = {
        "tenant": tenant,
        "environment": "test",
        "topic": topic,
        "publisher": "client:editor",
        "type": "news.published",
        "message_id": uuid.uuid4().bytes,
        "occurred_at": 0,
        "body": body,
    }
    return Codec().encode("relay.topics.v1", fields)


def outgoing(streams) -> list[bytes]:
    """Take what the outbox would send to `relay.mailbox`."""
    rows = streams.conn.execute(
        "delete from outbox where topic = 'relay.mailbox' returning payload"
    ).fetchall()
    return [value for row in rows for _, value, _ in unpack(row[0])]


async def test_every_subscriber_gets_the_message_once(streams, as_reader, consume, fan_out):
    for name in ("a", "b"):
        for _ in range(2):
            answer = await as_reader(f"agent:{name}").send(
                "PUT", "/v1/topics/news/subscriptions/me"
            )
            assert answer.json() == {"topic": "news", "subscribed": True}
    published = message(body=b'{"headline":"' + b"x" * 3000 + b'"}')
    assert consume([published, published]) == []
    assert sweeper.fan_out_due(fan_out, streams.conn) == {"copies_announced": 4}
    consume(outgoing(streams))
    for name in ("a", "b"):
        lease = await as_reader(f"agent:{name}").lease(10)
        [record] = lease["records"]
        assert (record["kind"], record["type"]) == ("message", "news.published")
        assert len(record["body"].pop("content")["headline"]) == 3000
        assert record["body"] == {"topic": "news", "sender": "client:editor"}


async def test_who_unsubscribed_or_never_subscribed_gets_nothing(
    streams, as_reader, consume, fan_out
):
    reader = as_reader("agent:a")
    await reader.send("PUT", "/v1/topics/news/subscriptions/me")
    await reader.send("PUT", "/v1/topics/weather/subscriptions/me")
    await reader.send("DELETE", "/v1/topics/news/subscriptions/me")
    other = as_reader("agent:a", tenant="other")
    await other.send("PUT", "/v1/topics/news/subscriptions/me")
    consume([message()])
    assert sweeper.fan_out_due(fan_out, streams.conn) == {"copies_announced": 0}
    assert streams.one("select count(*) from fan_out") == 0


async def test_ten_thousand_subscribers_get_it_page_by_page(streams, consume, fan_out):
    streams.conn.execute(
        "insert into subscription (tenant, environment, topic, owner)"
        " select 'acme', 'test', 'news', 'agent:' || n from generate_series(1, 10000) n"
    )
    assert consume([message()]) == []
    assert streams.one("select count(*) from outbox") == 0
    pages = []
    while (page := fan_out.run_page(streams.conn)) is not None:
        pages.append(page)
    assert sum(pages) == 10_000
    assert max(pages) <= 1000
    values = outgoing(streams)
    codec = Codec()
    assert len({codec.decode(value)[1]["owner"] for value in values}) == 10_000
    consume(values[:500])
    assert streams.one("select count(*) from mailbox where head = 1") == 500


async def test_a_topic_of_thousands_holds_up_no_other_and_keeps_its_order(
    streams, as_reader, consume, fan_out
):
    streams.conn.execute(
        "insert into subscription (tenant, environment, topic, owner)"
        " select 'acme', 'test', 'news', 'agent:' || n from generate_series(1, 2500) n"
    )
    await as_reader("agent:a", tenant="other").send("PUT", "/v1/topics/news/subscriptions/me")
    consume([message(body=b"1"), message(body=b"2"), message(tenant="other")])
    pages = [fan_out.run_page(streams.conn) for _ in range(3)]
    assert pages == [1000, 1000, 1]
    assert sweeper.fan_out_due(fan_out, streams.conn) == {"copies_announced": 3000}
    seen: dict[str, list[int]] = {}
    rows = streams.conn.execute(
        "select payload from outbox where topic = 'relay.mailbox' order by id"
    )
    for value in [value for row in rows for _, value, _ in unpack(row[0])]:
        fields = Codec().decode(value)[1]
        if fields["tenant"] == "acme":
            seen.setdefault(fields["owner"], []).append(orjson.loads(fields["body"])["content"])
    assert len(seen) == 2500
    assert all(found == [1, 2] for found in seen.values())


async def test_a_fan_out_that_is_interrupted_goes_on_where_it_was(streams, consume, fan_out):
    streams.conn.execute(
        "insert into subscription (tenant, environment, topic, owner)"
        " select 'acme', 'test', 'news', 'agent:' || n from generate_series(1, 2500) n"
    )
    consume([message()])
    fan_out.run_page(streams.conn)
    with streams.conn.transaction(force_rollback=True):
        fan_out.run_page(streams.conn)
    assert sweeper.fan_out_due(fan_out, streams.conn) == {"copies_announced": 1500}
    assert len(outgoing(streams)) == 2500


@pytest.mark.spec("FC-BLOCK")
async def test_a_blocked_publisher_is_a_blocked_sender_whatever_the_content_claims(
    streams, as_reader, consume, fan_out
):
    reader = as_reader("agent:a")
    await reader.send("PUT", "/v1/topics/news/subscriptions/me")
    await reader.send("PUT", "me/blocks/client:editor")
    consume([message(body=b'{"sender":"client:friend"}')])
    sweeper.fan_out_due(fan_out, streams.conn)
    consume(outgoing(streams))
    assert (await reader.lease(10))["records"] == []
    [record] = (await reader.get("me/records")).json()["records"]
    assert (record["trust"], record["body"]["sender"]) == ("blocked", "client:editor")


@pytest.mark.spec("MB-ABUSE")
async def test_a_reported_topic_message_names_its_publisher(streams, as_reader, consume, fan_out):
    reader = as_reader("agent:a")
    await reader.send("PUT", "/v1/topics/news/subscriptions/me")
    consume([message(body=b'{"sender":"client:innocent"}')])
    sweeper.fan_out_due(fan_out, streams.conn)
    consume(outgoing(streams))
    assert (await reader.send("POST", "me/records/1/abuse-report", {})).status_code == 201
    assert streams.one("select sender from abuse_report") == "client:editor"


@pytest.mark.parametrize("body", [b'"text"', b"1.50", b"null", b'[{"sender":1}]', b'{"sender":1}'])
async def test_a_content_may_be_any_json(streams, as_reader, consume, fan_out, body):
    reader = as_reader("agent:a")
    await reader.send("PUT", "/v1/topics/news/subscriptions/me")
    assert consume([message(body=body)]) == []
    sweeper.fan_out_due(fan_out, streams.conn)
    assert consume(outgoing(streams)) == []
    assert len((await reader.lease(10))["records"]) == 1


@pytest.mark.parametrize("body", [b"", b"{", b"{} {}", b'"\xff"', b"NaN"])
def test_a_message_that_is_none_is_a_dead_letter(consume, body):
    assert [letter.reason for letter in consume([message(body=body)])] == ["invalid_body"]


def test_a_foreign_schema_is_a_dead_letter(consume):
    hint = {"tenant": "a", "environment": "b", "owner": "c", "occurred_at": 0}
    value = Codec().encode("relay.hints.v1", hint)
    assert [letter.reason for letter in consume([value])] == ["unexpected_schema"]


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 300_000])
def test_a_body_is_packed_as_avro_packs_it(fan_out, size):
    told = TopicMessage("a", "b", "news", uuid.uuid4(), "p", "t", b'"' + b"x" * size + b'"')
    [copy] = fan_out.copies(FanningOut(1, told, ""), ["agent:é"])
    fields = Codec().decode(copy.head + copy.shared)[1]
    assert (fields["owner"], fields["body"]) == ("agent:é", body_of(told))
    assert copy.shared == length_prefixed(body_of(told))


async def test_subscribing_needs_its_scope(as_reader):
    reader = as_reader(scope="mailbox:read")
    assert (await reader.send("PUT", "/v1/topics/news/subscriptions/me")).status_code == 403
