"""States of a mailbox: what each allows; records are kept (spec, Mailbox: State; design §5)."""

import asyncio

import pytest

AGENT = "agent:planner"


async def put_state(operator, state: str, owner: str = AGENT):
    return await operator.send("PUT", f"{owner}/state", {"state": state})


def hints(streams) -> int:
    return streams.one("select count(*) from outbox where topic = 'relay.hints'")


@pytest.mark.spec("MB-STATE")
async def test_a_suspended_mailbox_is_appended_to_and_read_but_not_leased(
    streams, reader, operator
):
    """Reference test 17."""
    streams.fill(2)
    lease = await reader.lease(1)
    assert (await put_state(operator, "suspended")).json() == {"owner": AGENT, "state": "suspended"}
    streams.fill(1)
    page = (await reader.get("me/records")).json()
    assert len(page["records"]) == 3
    assert (await reader.get("me")).json()["state"] == "suspended"
    refused = await reader.send("POST", "me/leases", {"max_records": 1})
    assert (refused.status_code, refused.json()["code"]) == (409, "mailbox_suspended")
    body = {"lease_id": lease["lease_id"], "epoch": page["epoch"], "seqs": [1]}
    for path, sent in (
        ("me/acks", body),
        (f"me/leases/{lease['lease_id']}/extend", {"lease_seconds": 5}),
        (f"me/leases/{lease['lease_id']}/release", {}),
    ):
        answer = await reader.send("POST", path, sent)
        assert (answer.status_code, answer.json()["code"]) == (409, "mailbox_suspended"), path
    assert (await put_state(operator, "active")).status_code == 200
    assert await reader.ack(lease) == ["acked"]
    assert [r["seq"] for r in (await reader.lease(10))["records"]] == [2, 3]


@pytest.mark.spec("MB-STATE")
async def test_a_deleted_mailbox_keeps_its_records_and_tells_its_owner_it_is_gone(
    streams, reader, operator
):
    """Reference test 17."""
    streams.fill(2)
    lease = await reader.lease(1)
    epoch = lease["records"][0]["epoch"]
    await put_state(operator, "deleted")
    before = hints(streams)
    streams.fill(1)
    assert hints(streams) == before
    gone = [
        await reader.get("me"),
        await reader.get("me/records"),
        await reader.get("me/dead-letters"),
        await reader.get("me/requests"),
        await reader.send("POST", "me/leases", {"max_records": 1}),
        await reader.send(
            "POST", "me/acks", {"lease_id": lease["lease_id"], "epoch": epoch, "seqs": [1]}
        ),
        await reader.send("PUT", "me/cursors/phone", {"epoch": epoch, "seq": 1}),
        await reader.send("PUT", "me/blocks/agent:x"),
        await reader.send("DELETE", "me/blocks/agent:x"),
        await reader.send("POST", "me/requests/agent:x/accept"),
        await reader.send("PUT", "me/requests/subscription"),
        await reader.send("POST", "me/records/1/abuse-report", {}),
        await reader.send("POST", f"me/leases/{lease['lease_id']}/release", {}),
        await reader.send("POST", f"me/leases/{lease['lease_id']}/extend", {"lease_seconds": 5}),
        await reader.send("POST", "me/dead-letters/redrive", {"all": True}),
        await reader.send("PUT", "/v1/topics/news/subscriptions/me"),
    ]
    assert {(a.status_code, a.json()["code"]) for a in gone} == {(410, "mailbox_deleted")}
    assert len((await operator.get(f"{AGENT}/records")).json()["records"]) == 3
    await put_state(operator, "active")
    assert (await reader.get("me")).json()["head"] == 3


async def test_only_an_operator_changes_a_state(streams, reader, operator):
    streams.fill(1)
    assert (await put_state(reader, "suspended")).status_code == 403
    assert (await put_state(operator, "suspended", "agent:nobody")).status_code == 404
    assert (await put_state(operator, "paused")).status_code == 422


async def test_an_operator_of_another_tenant_finds_nothing(streams, as_reader):
    streams.fill(1)
    other = as_reader("subscriber:sre", "operator", tenant="other")
    assert (await put_state(other, "deleted")).status_code == 404
    assert (await other.get(AGENT)).status_code == 404


async def test_a_suspension_and_a_lease_at_once_have_one_order(streams, reader, operator):
    streams.fill(20)
    _, *answers = await asyncio.gather(
        put_state(operator, "suspended"),
        *(reader.send("POST", "me/leases", {"max_records": 1}) for _ in range(10)),
    )
    assert {a.status_code for a in answers} <= {201, 409}
    leased = sum(a.status_code == 201 for a in answers)
    assert (await operator.get(AGENT)).json()["counts"]["leased"] == leased
