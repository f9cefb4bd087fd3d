"""Reading the stream: gap fill, resync, cursors; nothing changes by looking."""

import asyncio

import pytest

AGENT = "agent:planner"


async def epoch_of(reader) -> int:
    return (await reader.get("me")).json()["epoch"]


@pytest.mark.spec("MB-ORDER")
async def test_pages_follow_each_other_without_gap(streams, reader):
    """Cases M25 and M45."""
    streams.fill(25)
    epoch = await epoch_of(reader)
    found, since = [], 0
    while True:
        page = (await reader.get("me/records", since=since, epoch=epoch, limit=10)).json()
        if not page["records"]:
            break
        found += [record["seq"] for record in page["records"]]
        since = page["next_since"]
    assert found == list(range(1, 26))
    assert page == {"epoch": epoch, "head": 25, "oldest": 1, "records": [], "next_since": 25}


@pytest.mark.spec("MB-STREAM", "MB-AT-LEAST-ONCE")
async def test_a_record_says_where_and_what_it_is(streams, reader):
    streams.fill(1, trust="verified", relationship="contact", body=b'{"n":1.50,"t":"\xc3\xa9"}')
    page = (await reader.get("me/records")).json()
    record = page["records"][0]
    assert record.pop("appended_at").endswith("Z")
    assert record.pop("id").startswith("ms_")
    assert record == {
        "stream": AGENT,
        "epoch": page["epoch"],
        "seq": 1,
        "kind": "message",
        "type": "note",
        "state": "available",
        "deliveries": 0,
        "trust": "verified",
        "relationship": "contact",
        "body": {"n": 1.5, "t": "é"},
    }


async def test_looking_changes_nothing(streams, reader):
    """Case M38."""
    streams.fill(3)
    before = await reader.counts()
    for _ in range(3):
        page = (await reader.get("me/records")).json()
    assert [record["deliveries"] for record in page["records"]] == [0, 0, 0]
    assert await reader.counts() == before


@pytest.mark.spec("MB-RESYNC")
async def test_a_position_ahead_of_head_is_a_resync(streams, reader):
    """Cases M23 and M24."""
    streams.fill(3)
    epoch = await epoch_of(reader)
    answer = await reader.get("me/records", since=4, epoch=epoch)
    body = answer.json()
    assert answer.status_code == 409
    assert (body["code"], body["reason"]) == ("resync_required", "ahead_of_head")
    assert (body["epoch"], body["oldest"], body["head"]) == (epoch, 1, 3)
    assert "since=0" in body["detail"]


@pytest.mark.spec("MB-RESYNC")
async def test_a_position_below_oldest_is_a_resync(streams, reader, database):
    """Case M25."""
    streams.fill(10)
    database.owner.execute("update mailbox.mailbox set oldest = 5")
    epoch = await epoch_of(reader)
    below = await reader.get("me/records", since=3, epoch=epoch)
    assert (below.status_code, below.json()["reason"]) == (409, "below_oldest")
    page = (await reader.get("me/records", since=4, epoch=epoch)).json()
    assert [record["seq"] for record in page["records"]] == [5, 6, 7, 8, 9, 10]


@pytest.mark.spec("MB-RESYNC")
async def test_the_start_is_below_oldest_once_records_are_gone(streams, reader, database):
    streams.fill(10)
    database.owner.execute("update mailbox.mailbox set oldest = 5")
    answer = await reader.get("me/records", since=0)
    assert (answer.status_code, answer.json()["reason"]) == (409, "below_oldest")
    assert answer.json()["oldest"] == 5


@pytest.mark.spec("MB-RESYNC")
async def test_another_epoch_is_a_resync(streams, reader):
    streams.fill(1)
    answer = await reader.get("me/records", since=1, epoch=1)
    assert (answer.status_code, answer.json()["reason"]) == (409, "epoch_changed")


async def test_a_position_without_epoch_is_refused(streams, reader):
    """Case M35."""
    streams.fill(2)
    answer = await reader.get("me/records", since=1)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "?epoch"


@pytest.mark.parametrize(
    "query", [{"since": -1}, {"limit": 0}, {"limit": 1001}, {"since": "x"}, {"sinse": 1}]
)
async def test_a_position_that_is_none_is_refused(streams, reader, query):
    assert (await reader.get("me/records", **query)).status_code == 422


async def test_a_page_ends_before_it_is_too_large(streams, reader, new_record):
    large = b'"' + b"x" * 250_000 + b'"'
    streams.append(*(new_record(body=large) for _ in range(20)))
    page = (await reader.get("me/records", limit=1000)).json()
    assert 1 <= len(page["records"]) < 20
    epoch, since = page["epoch"], page["next_since"]
    rest = (await reader.get("me/records", since=since, epoch=epoch)).json()
    assert rest["records"][0]["seq"] == since + 1


@pytest.mark.spec("MB-OWNER")
async def test_the_owners_first_look_creates_the_mailbox(reader, operator):
    assert (await operator.get(AGENT)).status_code == 404
    body = (await reader.get("me")).json()
    assert (body["owner"], body["state"], body["head"], body["oldest"]) == (AGENT, "active", 0, 1)
    assert (await reader.get("me/records")).json()["records"] == []


async def test_an_operator_may_look_and_a_stranger_may_not(streams, operator, as_reader):
    streams.fill(2)
    assert (await operator.get(AGENT)).json()["head"] == 2
    assert len((await operator.get(f"{AGENT}/records")).json()["records"]) == 2
    stranger = as_reader("agent:other")
    foreign, unknown = await stranger.get(AGENT), await stranger.get("agent:nobody")
    assert (foreign.status_code, foreign.json()) == (404, unknown.json())


async def test_an_operator_who_looks_or_redrives_creates_no_mailbox(streams, operator):
    for path in ("agent:nobody", *(f"agent:nobody/{p}" for p in ("records", "dead-letters"))):
        assert (await operator.get(path)).status_code == 404
    assert (await operator.get("agent:nobody/requests")).status_code == 404
    redrive = "agent:nobody/dead-letters/redrive"
    assert (await operator.send("POST", redrive, {"all": True})).status_code == 404
    assert streams.one("select count(*) from mailbox") == 0


async def test_a_token_without_the_scope_is_refused(streams, as_reader):
    assert (await as_reader(scope="mailbox:ack").get("me")).status_code == 403
    without = as_reader(scope="mailbox:read")
    assert (await without.send("POST", "me/leases", {"max_records": 1})).status_code == 403


async def cursor(reader, seq: int, epoch: int, name: str = "phone"):
    return await reader.send("PUT", f"me/cursors/{name}", {"epoch": epoch, "seq": seq})


@pytest.mark.spec("MB-CURSOR")
async def test_a_cursor_only_moves_forward(streams, reader):
    streams.fill(10)
    epoch = await epoch_of(reader)
    assert (await cursor(reader, 5, epoch)).json() == {"epoch": epoch, "seq": 5}
    assert (await cursor(reader, 3, epoch)).json() == {"epoch": epoch, "seq": 5}
    assert (await cursor(reader, 9, epoch)).json() == {"epoch": epoch, "seq": 9}
    assert (await cursor(reader, 1, epoch, "laptop")).json() == {"epoch": epoch, "seq": 1}


@pytest.mark.spec("MB-CURSOR")
async def test_positions_reported_at_once_keep_the_furthest(streams, reader):
    """Reference test 16."""
    streams.fill(10)
    epoch = await epoch_of(reader)
    await asyncio.gather(*(cursor(reader, seq, epoch) for seq in (10, 7, 3, 9)))
    assert (await cursor(reader, 0, epoch)).json()["seq"] == 10


@pytest.mark.spec("MB-CURSOR")
async def test_another_epoch_resets_the_cursor(streams, reader, database):
    streams.fill(10)
    epoch = await epoch_of(reader)
    await cursor(reader, 9, epoch)
    database.owner.execute("update mailbox.mailbox set epoch = epoch + 1")
    assert (await cursor(reader, 9, epoch)).json()["reason"] == "epoch_changed"
    assert (await cursor(reader, 2, epoch + 1)).json() == {"epoch": epoch + 1, "seq": 2}


@pytest.mark.spec("MB-CURSOR", "MB-RESYNC")
async def test_a_cursor_ahead_of_head_is_a_resync(streams, reader):
    streams.fill(2)
    answer = await cursor(reader, 3, await epoch_of(reader))
    assert (answer.status_code, answer.json()["reason"]) == (409, "ahead_of_head")


async def test_every_mutation_wants_an_idempotency_key(streams, reader):
    answer = await reader.client.post(
        "/v1/mailboxes/me/leases", json={"max_records": 1}, headers=reader.headers
    )
    assert (answer.status_code, answer.json()["code"]) == (400, "idempotency_key_required")


@pytest.mark.spec("MB-RESYNC", "MB-AT-LEAST-ONCE")
async def test_a_reader_follows_a_resync_in_one_step(streams, reader, database):
    """Cases M22 and M43."""
    streams.fill(10)
    seen = {r["id"] for r in (await reader.get("me/records")).json()["records"]}
    database.owner.execute("update mailbox.mailbox set epoch = epoch + 5, oldest = 4")
    told = (await reader.get("me/records", since=10, epoch=await epoch_of(reader) - 5)).json()
    again = await reader.get("me/records", since=told["oldest"] - 1, epoch=told["epoch"])
    assert again.status_code == 200
    assert [r["seq"] for r in again.json()["records"]] == list(range(4, 11))
    assert {r["id"] for r in again.json()["records"]} <= seen


@pytest.mark.spec("MB-AT-LEAST-ONCE", "MB-ORDER")
async def test_a_page_read_again_has_the_same_records_with_the_same_ids(streams, reader):
    """Cases M40 and M41."""
    streams.fill(5)
    epoch = await epoch_of(reader)
    first = (await reader.get("me/records", since=2, epoch=epoch)).json()
    assert [r["seq"] for r in first["records"]] == [3, 4, 5]
    streams.fill(1)
    again = (await reader.get("me/records", since=2, epoch=epoch, limit=3)).json()
    assert again["records"] == first["records"]


@pytest.mark.spec("MB-HANDLE", "MB-HINT")
async def test_every_lease_carries_a_handle_and_what_it_names_can_be_asked_for(streams, reader):
    streams.fill(1)
    lease = await reader.lease(1)
    assert lease["lease_id"]
    record = lease["records"][0]
    since, epoch = record["seq"] - 1, record["epoch"]
    page = (await reader.get(f"{record['stream']}/records", since=since, epoch=epoch)).json()
    assert page["records"][0]["id"] == record["id"]
