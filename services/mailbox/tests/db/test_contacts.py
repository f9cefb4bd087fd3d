"""First contact as a mailbox sees it: request box, blocks, abuse reports (spec, First contact)."""

import pytest
from relay_common.avro import Codec
from relay_common.outbox import unpack
from relay_mailbox import sweeper

AGENT = "agent:planner"
STRANGER = "agent:stranger"


def seqs(lease) -> list[int]:
    return [record["seq"] for record in lease["records"]]


def hints(streams) -> int:
    return streams.one("select count(*) from outbox where topic = 'relay.hints'")


@pytest.fixture
def request_record(new_record):
    """A message of a sender whose relationship is unknown."""

    def make(sender: str = STRANGER):
        return new_record(sender=sender, relationship="unknown")

    return make


@pytest.mark.spec("FC-UNKNOWN")
async def test_an_unknown_sender_lands_in_the_request_box(streams, reader, request_record):
    streams.append(request_record(), request_record("agent:other"), request_record())
    assert (await reader.lease(10))["records"] == []
    assert hints(streams) == 0
    box = (await reader.get("me/requests")).json()
    assert [(i["sender"], i["records"], i["relationship"]) for i in box["items"]] == [
        ("agent:other", 1, "unknown"),
        (STRANGER, 2, "unknown"),
    ]
    assert (box["items"][1]["first_seq"], box["items"][1]["last_seq"]) == (1, 3)
    page = (await reader.get("me/records")).json()
    assert {r["relationship"] for r in page["records"]} == {"unknown"}
    assert (await reader.counts())["available"] == 0


@pytest.mark.spec("FC-UNKNOWN")
async def test_a_subscribed_request_box_wakes_its_owner_and_can_be_leased(
    streams, reader, request_record
):
    streams.append(request_record())
    assert (await reader.send("PUT", "me/requests/subscription")).json() == {"subscribed": True}
    streams.append(request_record())
    assert hints(streams) == 1
    assert seqs(await reader.lease(1)) == [1]
    assert (await reader.send("DELETE", "me/requests/subscription")).json() == {"subscribed": False}
    assert (await reader.lease(10))["records"] == []
    streams.append(request_record())
    assert hints(streams) == 1


async def test_an_accepted_sender_is_let_in(streams, reader, request_record):
    streams.append(request_record(), request_record("agent:other"))
    streams.fill(1)
    assert seqs(await reader.lease(10)) == [3]
    answer = await reader.send("POST", f"me/requests/{STRANGER}/accept")
    assert answer.json() == {"sender": STRANGER, "accepted": 1}
    assert seqs(await reader.lease(10)) == [1]
    streams.append(request_record())
    sweeper.announce_hints(streams.appending, streams.conn)
    assert hints(streams) == 2
    assert seqs(await reader.lease(10)) == [4]
    assert [i["sender"] for i in (await reader.get("me/requests")).json()["items"]] == [
        "agent:other"
    ]


async def test_what_is_settled_leaves_the_request_box(streams, reader, new_record, request_record):
    asked = request_record()
    settled = new_record(sender=STRANGER, relationship="unknown", supersedes=asked.message_id)
    streams.append(asked)
    streams.append(settled)
    box = (await reader.get("me/requests")).json()["items"]
    assert [(one["sender"], one["records"], one["first_seq"]) for one in box] == [(STRANGER, 1, 2)]
    assert (await reader.send("POST", f"me/requests/{STRANGER}/accept")).json()["accepted"] == 1
    assert seqs(await reader.lease(10)) == [2]


async def test_known_relationships_do_not_ask(streams, reader, new_record):
    streams.append(new_record(sender=STRANGER, relationship="contact"))
    assert seqs(await reader.lease(10)) == [1]


@pytest.mark.spec("FC-BLOCK")
async def test_a_blocked_sender_is_recorded_and_reaches_nobody(
    streams, reader, new_record, request_record
):
    await reader.send("PUT", f"me/blocks/{STRANGER}")
    streams.append(
        request_record(), new_record(sender=STRANGER, relationship="contact", trust="verified")
    )
    assert hints(streams) == 0
    assert (await reader.lease(10))["records"] == []
    assert (await reader.get("me/requests")).json()["items"] == []
    page = (await reader.get("me/records")).json()
    assert [r["trust"] for r in page["records"]] == ["blocked", "blocked"]
    assert [r["seq"] for r in page["records"]] == [1, 2]


async def test_behind_five_hundred_that_reach_nobody_the_next_one_is_leased_and_read(
    streams, reader, new_record
):
    """Reference test 5, as a mailbox has it: what is passed over is passed over once."""
    await reader.send("PUT", f"me/blocks/{STRANGER}")
    streams.append(*(new_record(sender=STRANGER) for _ in range(500)), new_record())
    assert seqs(await reader.lease(1)) == [501]
    first = (await reader.get("me/records", limit=500)).json()
    assert {r["trust"] for r in first["records"]} == {"blocked"}
    assert (first["next_since"], first["head"]) == (500, 501)
    rest = (await reader.get("me/records", since=500, epoch=first["epoch"])).json()
    assert [r["seq"] for r in rest["records"]] == [501]


@pytest.mark.spec("FC-BLOCK")
async def test_blocking_empties_the_request_box_of_that_sender(streams, reader, request_record):
    streams.append(request_record(), request_record("agent:other"))
    await reader.send("PUT", f"me/blocks/{STRANGER}")
    items = (await reader.get("me/requests")).json()["items"]
    assert [i["sender"] for i in items] == ["agent:other"]


async def test_an_unblocked_sender_is_like_any_other_from_then_on(streams, reader, new_record):
    await reader.send("PUT", f"me/blocks/{STRANGER}")
    streams.append(new_record(sender=STRANGER, relationship="contact"))
    assert (await reader.send("DELETE", f"me/blocks/{STRANGER}")).json()["blocked"] is False
    streams.append(new_record(sender=STRANGER, relationship="contact"))
    assert seqs(await reader.lease(10)) == [2]


async def test_a_block_holds_for_this_owner_and_tenant_only(streams, reader, new_record, as_reader):
    await reader.send("PUT", f"me/blocks/{STRANGER}")
    await as_reader(AGENT, tenant="other").send("PUT", "me/blocks/agent:friend")
    streams.append(new_record("agent:other", sender=STRANGER), new_record(sender="agent:friend"))
    assert seqs(await as_reader("agent:other").lease(10)) == [1]
    assert seqs(await reader.lease(10)) == [1]


async def test_waitpoint_events_are_never_blocked_or_requested(streams, reader, new_record):
    await reader.send("PUT", f"me/blocks/{STRANGER}")
    streams.append(new_record(kind="waitpoint_event", sender=STRANGER, relationship="unknown"))
    assert seqs(await reader.lease(10)) == [1]


@pytest.mark.spec("MB-ABUSE")
async def test_an_abuse_report_is_kept_once_and_announced_without_content(
    streams, reader, new_record
):
    streams.append(new_record(sender=STRANGER, body=b'{"text":"canary-81"}'))
    path = "me/records/1/abuse-report"
    first = await reader.send("POST", path, {"reason": "spam"})
    assert first.status_code == 201, first.text
    again = await reader.send("POST", path, {"reason": "spam again"})
    assert (again.status_code, again.json()) == (200, first.json())
    rows = streams.conn.execute(
        "select payload from outbox where topic = 'relay.topics'"
    ).fetchall()
    [(_, value, _)] = [message for row in rows for message in unpack(row[0])]
    schema, fields = Codec().decode(value)
    assert (schema, fields["topic"], fields["type"]) == (
        "relay.topics.v1",
        "mailbox.abuse_reported",
        "mailbox.abuse_reported",
    )
    assert STRANGER.encode() in fields["body"]
    assert b"canary" not in value


@pytest.mark.parametrize("seq", [2, 99, 2**62])
async def test_only_a_message_that_is_there_can_be_reported(streams, reader, new_record, seq):
    streams.append(new_record(sender=STRANGER), new_record(kind="waitpoint_event"))
    answer = await reader.send("POST", f"me/records/{seq}/abuse-report", {})
    assert answer.status_code == 404


async def test_the_request_box_comes_in_pages(streams, reader, request_record):
    streams.append(*(request_record(f"agent:{n}") for n in range(5)))
    found, cursor = [], None
    while True:
        query = {"limit": 2} | ({"cursor": cursor} if cursor else {})
        page = (await reader.get("me/requests", **query)).json()
        found += [item["sender"] for item in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == [f"agent:{n}" for n in range(5)]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", f"{AGENT}/blocks/x"),
        ("POST", f"{AGENT}/requests/x/accept"),
        ("PUT", f"{AGENT}/requests/subscription"),
    ],
)
async def test_contacts_are_the_owners_alone(streams, as_reader, method, path):
    streams.fill(1)
    foreign = await as_reader("agent:other").send(method, path)
    unknown = await as_reader("agent:other").send(method, path.replace(AGENT, "agent:nobody"))
    assert (foreign.status_code, foreign.json()) == (404, unknown.json())
