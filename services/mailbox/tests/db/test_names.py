"""Names in paths are percent-encoded: owners, senders, readers and topics may hold anything."""

from urllib.parse import quote

import pytest

ODD = ["agent:team/7", "agent:a%2Fb", "agent:äö", "client:a?b#c", "agent:..", "agent:%"]


def path_of(name: str) -> str:
    return quote(name, safe="")


@pytest.mark.parametrize("owner", ODD)
@pytest.mark.spec("MB-OWNER")
async def test_an_owner_of_any_name_is_addressed_by_it(streams, as_reader, operator, owner):
    streams.fill(2, owner)
    reader, path = as_reader(owner), path_of(owner)
    assert (await reader.get(path)).json()["owner"] == owner
    assert [r["stream"] for r in (await reader.get(f"{path}/records")).json()["records"]] == [
        owner,
        owner,
    ]
    lease = await reader.send("POST", f"{path}/leases", {"max_records": 1})
    assert lease.status_code == 201
    assert (await operator.get(path)).json()["counts"]["leased"] == 1
    answer = await operator.send("PUT", f"{path}/state", {"state": "suspended"})
    assert answer.json() == {"owner": owner, "state": "suspended"}


@pytest.mark.parametrize("sender", ODD)
async def test_a_sender_of_any_name_is_accepted_and_blocked_by_it(
    streams, reader, new_record, sender
):
    body = b'{"sender":"x"}'
    streams.append(new_record(sender=sender, relationship="unknown", body=body))
    path = path_of(sender)
    accepted = await reader.send("POST", f"me/requests/{path}/accept")
    assert accepted.status_code == 200, accepted.text
    assert (await reader.get("me")).json()["counts"]["available"] == 1
    assert (await reader.send("PUT", f"me/blocks/{path}")).status_code == 200
    streams.append(new_record(sender=sender, body=body))
    assert (await reader.get("me/records")).json()["records"][1]["trust"] == "blocked"


@pytest.mark.parametrize("name", ODD)
async def test_a_reader_and_a_topic_of_any_name(streams, reader, name):
    streams.fill(1)
    epoch = (await reader.get("me")).json()["epoch"]
    position = {"epoch": epoch, "seq": 1}
    assert (await reader.send("PUT", f"me/cursors/{path_of(name)}", position)).json() == position
    assert streams.one("select reader from mailbox.cursor") == name
    topic = f"/v1/topics/{path_of(name)}/subscriptions/me"
    assert (await reader.send("PUT", topic)).json() == {"topic": name, "subscribed": True}
    assert streams.one("select topic from mailbox.subscription") == name


async def test_an_owner_of_another_name_is_not_found(streams, reader):
    streams.fill(1, "agent:planner/child")
    assert (await reader.get("agent:planner/child")).status_code == 404
    assert (await reader.get("agent:planner%2Fchild")).status_code == 404
    assert (await reader.get("agent:planner%00")).status_code == 404


async def test_the_settings_of_the_mailbox_have_a_path_of_their_own(operator):
    chosen = {"lease_seconds": 60}
    assert (await operator.send("PUT", "/v1/settings/mailbox", chosen)).status_code == 200
    for path in ("/v1/settings/mailbox", "/v1/settings"):
        answer = await operator.client.get(path, headers=operator.headers)
        assert answer.json()["lease_seconds"] == 60
