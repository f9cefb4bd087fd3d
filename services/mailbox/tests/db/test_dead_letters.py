"""Redelivery, dead letters, the one notice, redrive (spec, Record delivery states)."""

from datetime import timedelta

import pytest
from relay_mailbox import sweeper
from relay_mailbox.operations.settings import SETTINGS
from relay_mailbox.store.settings import Chosen

AGENT = "agent:planner"
NOTICE = "mailbox.record_dead_lettered"


def seqs(lease) -> list[int]:
    return [record["seq"] for record in lease["records"]]


@pytest.fixture
async def few(operator):
    """The tenant allows two redeliveries."""
    answer = await operator.send("PUT", "/v1/settings", {"redeliveries": 2})
    assert answer.status_code == 200, answer.text


async def crash(reader, clock, count: int = 10) -> list[int]:
    """Lease and die."""
    lease = await reader.lease(count, 30)
    clock.shift(timedelta(seconds=31))
    return seqs(lease)


async def dead(reader) -> list[dict]:
    return (await reader.get("me/dead-letters")).json()["items"]


@pytest.mark.spec("MB-DEAD")
async def test_a_record_dies_after_its_redeliveries_and_the_owner_is_told_once(
    streams, reader, clock, few
):
    streams.fill(1, body=b'{"secret":"canary"}')
    assert [await crash(reader, clock) for _ in range(3)] == [[1], [1], [1]]
    notice = await reader.lease(10)
    assert [(r["seq"], r["type"]) for r in notice["records"]] == [(2, NOTICE)]
    body = notice["records"][0]["body"]
    assert (body["seq"], body["deliveries"], body["record_type"]) == (1, 3, "note")
    assert "canary" not in str(body)
    [item] = await dead(reader)
    assert (item["seq"], item["state"], item["deliveries"]) == (1, "dead_lettered", 3)
    assert item["body"] == {"secret": "canary"}
    assert (await reader.counts())["dead_lettered"] == 1
    assert await reader.ack(notice) == ["acked"]
    assert (await reader.lease(10))["records"] == []


async def test_a_dead_record_keeps_its_place_in_the_stream(streams, reader, clock, few):
    streams.fill(2)
    for _ in range(3):
        await crash(reader, clock, 1)
    await reader.lease(10)
    page = (await reader.get("me/records")).json()
    assert [(r["seq"], r["state"]) for r in page["records"]] == [
        (1, "dead_lettered"),
        (2, "leased"),
        (3, "leased"),
    ]


@pytest.mark.spec("MB-DEAD")
async def test_a_notice_that_dies_leaves_no_further_notice(streams, reader, clock, few):
    streams.fill(1)
    for _ in range(3):
        await crash(reader, clock)
    for _ in range(3):
        assert await crash(reader, clock) == [2]
    assert (await reader.lease(10))["records"] == []
    assert [item["seq"] for item in await dead(reader)] == [1, 2]
    assert (await reader.get("me")).json()["head"] == 2


async def test_a_poison_record_does_not_burn_its_neighbours(streams, reader, clock):
    """A batch of ten whose reader dies at seq 4 each time: only 4 is dead-lettered (Case M29)."""
    streams.fill(10)
    done: set[int] = set()
    for _ in range(200):
        lease = await reader.lease(10, 30)
        got = seqs(lease)
        if not got:
            break
        if 4 in got:
            clock.shift(timedelta(seconds=31))
            continue
        await reader.ack(lease)
        done |= set(got)
    assert [item["seq"] for item in await dead(reader)] == [4]
    assert done == {1, 2, 3, 5, 6, 7, 8, 9, 10, 11}


async def test_with_one_redelivery_the_neighbours_live_too(streams, reader, clock, operator):
    await operator.send("PUT", "/v1/settings", {"redeliveries": 1})
    streams.fill(3)
    assert await crash(reader, clock) == [1, 2, 3]
    for expected in ([1], [2], [3]):
        lease = await reader.lease(10)
        assert seqs(lease) == expected
        await reader.ack(lease)
    assert await dead(reader) == []


async def test_after_a_first_redelivery_records_are_handed_out_one_by_one(streams, reader, clock):
    streams.fill(3)
    assert await crash(reader, clock) == [1, 2, 3]
    assert await crash(reader, clock) == [1, 2, 3]
    assert [seqs(await reader.lease(10)) for _ in range(3)] == [[1], [2], [3]]


async def test_records_behind_a_dead_one_lease_next(streams, reader, clock, few):
    """Case M27."""
    streams.fill(2)
    for _ in range(3):
        await crash(reader, clock, 1)
    streams.fill(1)
    assert 2 in seqs(await reader.lease(1))


async def test_a_release_counts_as_a_delivery(streams, reader, few):
    streams.fill(1)
    for _ in range(3):
        lease = await reader.lease(1)
        assert seqs(lease) == [1]
        await reader.send("POST", f"me/leases/{lease['lease_id']}/release", {})
    assert [r["type"] for r in (await reader.lease(5))["records"]] == [NOTICE]


async def test_nothing_else_raises_the_count(streams, reader, clock):
    streams.fill(1)
    await crash(reader, clock)
    for _ in range(5):
        await reader.get("me/records")
        await reader.get("me")
        await dead(reader)
    assert (await reader.lease(1))["records"][0]["deliveries"] == 2


@pytest.mark.spec("MB-ACK")
async def test_acknowledging_a_dead_record_is_lease_lost(streams, reader, clock, few):
    streams.fill(1)
    lease = None
    for _ in range(3):
        lease = await reader.lease(1, 30)
        clock.shift(timedelta(seconds=31))
    await reader.lease(1)
    assert await reader.ack(lease) == ["lease_lost"]


async def kill(streams, reader, clock, count: int) -> None:
    """Leave `count` dead letters and no waiting notice."""
    streams.fill(count)
    for _ in range(2):
        await crash(reader, clock, count)
    for _ in range(count):
        await crash(reader, clock, 1)
    notices = await reader.lease(100)
    while notices["records"]:
        await reader.ack(notices)
        notices = await reader.lease(100)


@pytest.mark.spec("MB-DEAD")
async def test_redrive_brings_selected_records_back(streams, reader, clock, few):
    await kill(streams, reader, clock, 3)
    dry = await reader.send("POST", "me/dead-letters/redrive", {"all": True, "dry_run": True})
    assert dry.json() == {"redriven": 3}
    assert len(await dead(reader)) == 3
    some = await reader.send("POST", "me/dead-letters/redrive", {"seqs": [2, 77]})
    assert some.json() == {"redriven": 1}
    lease = await reader.lease(10)
    assert [(r["seq"], r["deliveries"]) for r in lease["records"]] == [(2, 1)]
    assert await reader.ack(lease) == ["acked"]
    rest = await reader.send("POST", "me/dead-letters/redrive", {"all": True})
    assert rest.json() == {"redriven": 2}
    assert [seqs(await reader.lease(1)) for _ in range(3)] == [[1], [3], []]
    assert await dead(reader) == []


async def test_a_redriven_record_that_dies_again_is_told_again(streams, reader, clock, few):
    await kill(streams, reader, clock, 1)
    await reader.send("POST", "me/dead-letters/redrive", {"all": True})
    for _ in range(3):
        assert await crash(reader, clock) == [1]
    assert [r["type"] for r in (await reader.lease(10))["records"]] == [NOTICE]


@pytest.mark.spec("MB-ACKED", "ES-CLOSE")
async def test_what_supersedes_a_dead_record_acks_it(streams, reader, clock, few, new_record):
    """An invitation whose matter is closed does not come back by a redrive."""
    asked = new_record(message_id=b"i" * 16)
    streams.append(asked)
    for _ in range(3):
        await crash(reader, clock)
    assert seqs(await reader.lease(10)) == [2], "the notice"
    streams.append(new_record(supersedes=asked.message_id))
    assert await dead(reader) == []
    redriven = await reader.send("POST", "me/dead-letters/redrive", {"all": True})
    assert redriven.json() == {"redriven": 0}
    assert seqs(await reader.lease(10)) == [3]
    shown = (await reader.get("me/records")).json()["records"][0]
    assert (shown["state"], shown["deliveries"]) == ("acked", 3)


@pytest.fixture
async def died_long_ago(streams, reader, operator, clock, few, new_record) -> bytes:
    """The id of a message that is in the dead-letter view and not in the stream any more."""
    asked = new_record(message_id=b"i" * 16)
    streams.append(asked)
    for _ in range(3):
        await crash(reader, clock)
    assert seqs(await reader.lease(10)) == [2], "the notice"
    await operator.send("PUT", "/v1/settings", {"retained_records": 2, "redeliveries": 2})
    streams.fill(1, state="acked")
    assert (await reader.get("me")).json()["oldest"] == 2
    return asked.message_id


@pytest.mark.spec("ES-CLOSE")
@pytest.mark.parametrize("redriven", [False, True])
async def test_what_supersedes_a_dead_record_past_the_retention_acks_it(
    streams, reader, new_record, died_long_ago, redriven
):
    """Its message is appended again by a redrive: that copy is settled, too."""
    if redriven:
        await reader.send("POST", "me/dead-letters/redrive", {"all": True})
        assert (await reader.counts())["available"] == 1
    streams.append(new_record(supersedes=died_long_ago, state="acked"))
    assert await dead(reader) == []
    await reader.send("POST", "me/dead-letters/redrive", {"all": True})
    assert (await reader.lease(10))["records"] == []


async def test_redriving_what_is_no_longer_retained_appends_it_again(
    streams, reader, clock, few, database
):
    await kill(streams, reader, clock, 1)
    head = (await reader.get("me")).json()["head"]
    database.owner.execute("update mailbox.mailbox set oldest = head + 1, low_water = head + 1")
    await reader.send("POST", "me/dead-letters/redrive", {"all": True})
    lease = await reader.lease(10)
    assert [(r["seq"], r["body"]) for r in lease["records"]] == [(head + 1, {"text": "hello"})]


@pytest.mark.parametrize("body", [{}, {"seqs": [1], "all": True}, {"seqs": []}, {"seqs": [0]}])
async def test_redrive_wants_some_or_all(reader, body):
    answer = await reader.send("POST", "me/dead-letters/redrive", body)
    assert answer.status_code == 422


async def test_dead_letters_come_in_pages(streams, reader, clock, few, as_reader):
    await kill(streams, reader, clock, 5)
    found, cursor = [], None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await reader.get("me/dead-letters", **query)).json()
        found += [item["seq"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [1, 2, 3, 4, 5]
    first = (await reader.get("me/dead-letters", limit=2)).json()["next_cursor"]
    stolen = await as_reader("agent:other").get("me/dead-letters", cursor=first)
    assert (stolen.status_code, stolen.json()["code"]) == (400, "cursor_invalid")


@pytest.mark.spec("MB-DEAD", "MB-HINT")
async def test_a_mailbox_without_a_reader_is_told_by_the_sweeper(streams, reader, clock, few):
    streams.fill(1)
    for _ in range(3):
        await crash(reader, clock)
    streams.conn.execute("delete from outbox")
    assert sweeper.dead_letter_exhausted(streams.conn) == {"records_dead_lettered": 1}
    assert sweeper.announce_hints(streams.appending, streams.conn) == {"hints_announced": 1}
    assert streams.one("select count(*) from outbox where topic = 'relay.hints'") == 1
    assert sweeper.dead_letter_exhausted(streams.conn) == {"records_dead_lettered": 0}
    assert [r["type"] for r in (await reader.lease(10))["records"]] == [NOTICE]


async def test_every_lease_expires_and_dies_without_any_sweeper(streams, reader, clock, few):
    """Case M37; reference test 15."""
    streams.fill(50)
    for _ in range(2):
        assert len(await crash(reader, clock, 50)) == 50
    for _ in range(50):
        await crash(reader, clock, 1)
    counts = await reader.counts()
    assert counts["available"] == 50
    lease = await reader.lease(100)
    assert {r["type"] for r in lease["records"]} == {NOTICE}
    assert len(lease["records"]) == 50
    assert (await reader.counts())["dead_lettered"] == 50


@pytest.mark.spec("MB-SETTINGS", "MB-LIMIT-LEASE")
async def test_settings_stay_within_their_upper_limits(operator, reader):
    defaults = (await operator.get("../settings")).json()
    assert defaults == {
        "lease_seconds": 30,
        "redeliveries": 5,
        "retention_seconds": 604800,
        "retained_records": 1000000,
    }
    for wrong in ({"lease_seconds": 43201}, {"redeliveries": 101}, {"retention_seconds": 59}):
        answer = await operator.send("PUT", "/v1/settings", wrong)
        assert answer.status_code == 422
        assert answer.json()["limit"]["name"] in wrong
        assert answer.json()["errors"][0]["pointer"] == f"/{next(iter(wrong))}"
    assert (await reader.send("PUT", "/v1/settings", {"redeliveries": 1})).status_code == 403
    assert (await operator.send("PUT", "/v1/settings", {"surprise": 1})).status_code == 422


@pytest.mark.spec("MB-SETTINGS")
async def test_the_tenants_lease_duration_is_the_default_of_a_lease(
    streams, reader, operator, clock
):
    await operator.send("PUT", "/v1/settings", {"lease_seconds": 600})
    streams.fill(1)
    await reader.lease(1)
    clock.shift(timedelta(seconds=599))
    assert (await reader.lease(1))["records"] == []
    clock.shift(timedelta(seconds=2))
    assert seqs(await reader.lease(1)) == [1]


def test_the_defaults_in_sql_are_those_of_the_published_limits(streams):
    row = streams.conn.execute("select * from settings_v1('nobody', 'prod')").fetchone()
    assert row == tuple(limit.default for _, limit in SETTINGS.values())
    assert list(Chosen.__dataclass_fields__) == list(SETTINGS)
