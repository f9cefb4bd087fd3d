"""Lease, then acknowledge (spec, Mailbox)."""

import asyncio
from datetime import timedelta

import pytest

AGENT = "agent:planner"


def seqs(lease) -> list[int]:
    return [record["seq"] for record in lease["records"]]


@pytest.mark.spec("MB-LEASE", "MB-LEASED")
async def test_a_lease_takes_records_in_sequence_order(streams, reader):
    streams.fill(5)
    first = await reader.lease(2)
    second = await reader.lease(10)
    assert seqs(first) == [1, 2]
    assert seqs(second) == [3, 4, 5]
    assert first["lease_id"].startswith("ls_")
    assert {record["state"] for record in first["records"]} == {"leased"}
    assert {record["deliveries"] for record in first["records"]} == {1}


async def test_a_lease_of_nothing_is_no_lease(streams, reader):
    answer = await reader.send("POST", "me/leases", {"max_records": 10})
    assert answer.status_code == 200
    assert answer.json() == {"lease_id": None, "expires_at": None, "records": []}


async def test_a_lease_answers_201_with_its_end(streams, reader):
    streams.fill(1)
    answer = await reader.send("POST", "me/leases", {"max_records": 1, "lease_seconds": "PT5M"})
    assert answer.status_code == 201
    assert answer.json()["expires_at"].endswith("Z")


@pytest.mark.spec("MB-AVAILABLE", "MB-LEASE")
async def test_without_acknowledgement_a_record_becomes_available_again(streams, reader, clock):
    streams.fill(3)
    await reader.lease(2, 30)
    clock.shift(timedelta(seconds=29))
    assert seqs(await reader.lease(10, 300)) == [3]
    clock.shift(timedelta(seconds=2))
    assert (await reader.counts()) == {
        "available": 2,
        "leased": 1,
        "acked": 0,
        "dead_lettered": 0,
        "held": 0,
    }
    again = await reader.lease(10)
    assert seqs(again) == [1, 2]
    assert [record["deliveries"] for record in again["records"]] == [2, 2]


@pytest.mark.spec("MB-ACKED")
async def test_an_acknowledged_record_is_not_delivered_again(streams, reader, clock):
    streams.fill(2)
    lease = await reader.lease(2)
    assert await reader.ack(lease) == ["acked", "acked"]
    clock.shift(timedelta(hours=13))
    assert (await reader.lease(10))["records"] == []
    assert (await reader.counts())["acked"] == 2


@pytest.mark.spec("MB-HELD")
async def test_a_held_record_is_shown_but_not_leased(streams, reader):
    streams.fill(1, kind="early_event", state="held")
    streams.fill(1)
    assert seqs(await reader.lease(10)) == [2]
    page = (await reader.get("me/records", since=0)).json()
    assert [r["state"] for r in page["records"]] == ["held", "leased"]
    assert (await reader.counts())["held"] == 1


@pytest.mark.spec("MB-HELD", "MB-ACKED")
async def test_a_held_record_is_acked_in_the_step_that_appends_its_waitpoint_event(
    streams, reader, new_record
):
    held = streams.fill(1, kind="early_event", state="held")[0]
    streams.append(new_record(kind="waitpoint_event", supersedes=held.message_id))
    page = (await reader.get("me/records", since=0)).json()
    assert [(r["state"], r["deliveries"]) for r in page["records"]] == [
        ("acked", 0),
        ("available", 0),
    ]


async def test_a_held_record_and_its_successor_in_one_batch(streams, reader, new_record):
    held = new_record(kind="early_event", state="held")
    streams.append(held, new_record(kind="waitpoint_event", supersedes=held.message_id))
    assert (await reader.counts())["held"] == 0
    assert seqs(await reader.lease(10)) == [2]


@pytest.mark.spec("MB-ACKED", "ES-CLOSE")
async def test_what_supersedes_an_available_or_leased_record_acks_it(
    streams, reader, new_record, clock
):
    waiting, worked_on = streams.fill(2)
    lease = await reader.lease(1)
    assert seqs(lease) == [1]
    streams.append(
        new_record(supersedes=worked_on.message_id), new_record(supersedes=waiting.message_id)
    )
    assert await reader.ack(lease) == ["already_acked"]
    clock.shift(timedelta(hours=1))
    assert seqs(await reader.lease(10)) == [3, 4], "what is settled is not leased again"
    page = (await reader.get("me/records", since=0)).json()
    assert [(r["state"], r["deliveries"]) for r in page["records"][:2]] == [
        ("acked", 1),
        ("acked", 0),
    ]


@pytest.mark.spec("MB-LEASE")
async def test_two_leasers_at_once_get_disjoint_ascending_records(streams, reader, client):
    streams.fill(120)
    leases = await asyncio.gather(*(reader.lease(10) for _ in range(12)))
    got = [seqs(lease) for lease in leases]
    assert all(one == sorted(one) for one in got)
    assert sorted(seq for one in got for seq in one) == list(range(1, 121))


async def test_an_extended_lease_outlives_its_first_end(streams, reader, clock):
    """Case M19."""
    streams.fill(2)
    lease = await reader.lease(2, 30)
    path = f"me/leases/{lease['lease_id']}/extend"
    for _ in range(5):
        clock.shift(timedelta(seconds=20))
        answer = await reader.send("POST", path, {"lease_seconds": 30})
        assert answer.status_code == 200, answer.text
    assert (await reader.lease(10))["records"] == []
    assert await reader.ack(lease) == ["acked", "acked"]


async def test_an_expired_lease_is_not_extended(streams, reader, clock):
    streams.fill(1)
    lease = await reader.lease(1, 30)
    clock.shift(timedelta(seconds=31))
    answer = await reader.send(
        "POST", f"me/leases/{lease['lease_id']}/extend", {"lease_seconds": 30}
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "lease_lost")


async def test_a_released_record_can_be_leased_at_once(streams, reader):
    streams.fill(3)
    lease = await reader.lease(3)
    answer = await reader.send("POST", f"me/leases/{lease['lease_id']}/release", {"seqs": [2]})
    assert answer.json() == {"released": [2]}
    assert seqs(await reader.lease(10)) == [2]
    assert await reader.ack(lease, [1, 2, 3]) == ["acked", "lease_lost", "acked"]


async def test_a_release_with_delay_waits(streams, reader, clock):
    streams.fill(2)
    lease = await reader.lease(2)
    path = f"me/leases/{lease['lease_id']}/release"
    assert (await reader.send("POST", path, {"delay_seconds": 60})).json() == {"released": [1, 2]}
    assert (await reader.lease(10))["records"] == []
    clock.shift(timedelta(seconds=61))
    assert seqs(await reader.lease(10)) == [1, 2]


@pytest.mark.parametrize("delay", [43201, 1e12, "P999999999D"])
async def test_a_release_delayed_for_longer_than_twelve_hours_is_refused(streams, reader, delay):
    streams.fill(1)
    lease = await reader.lease(1)
    path = f"me/leases/{lease['lease_id']}/release"
    answer = await reader.send("POST", path, {"delay_seconds": delay})
    assert (answer.status_code, answer.json()["code"]) == (422, "validation_failed")
    assert answer.json()["limit"]["name"] == "release_delay_seconds"
    assert answer.json()["errors"][0]["pointer"] == "/delay_seconds"
    assert (await reader.send("POST", path, {"delay_seconds": "PT12H"})).status_code == 200


async def test_a_repeated_lease_request_answers_the_same_lease(streams, reader):
    streams.fill(4)
    first = await reader.lease(2, key="one")
    assert await reader.lease(2, key="one") == first
    assert seqs(await reader.lease(2)) == [3, 4]


async def test_a_lease_longer_than_twelve_hours_is_refused(streams, reader):
    answer = await reader.send("POST", "me/leases", {"max_records": 1, "lease_seconds": 43201})
    assert answer.status_code == 422
    assert answer.json()["code"] == "lease_too_long"
    assert answer.json()["limit"]["value"] == 43200


@pytest.mark.parametrize(
    "body",
    [
        {"max_records": 0},
        {"max_records": 1001},
        {"max_records": "2"},
        {"max_records": 1, "lease_seconds": 0},
        {"max_records": 1, "surprise": 1},
    ],
)
async def test_a_lease_request_that_says_nonsense_is_refused(streams, reader, body):
    answer = await reader.send("POST", "me/leases", body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"]


async def test_only_the_owner_leases(streams, as_reader, operator):
    streams.fill(1)
    other = as_reader("agent:other")
    for who in (other,):
        answer = await who.send("POST", f"{AGENT}/leases", {"max_records": 1})
        unknown = await who.send("POST", "agent:nobody/leases", {"max_records": 1})
        assert answer.status_code == 404
        assert answer.json() == unknown.json()
    assert (await operator.send("POST", f"{AGENT}/leases", {"max_records": 1})).status_code == 403


async def test_another_tenant_sees_nothing(streams, as_reader):
    streams.fill(2)
    stranger = as_reader(AGENT, tenant="other")
    assert (await stranger.lease(10))["records"] == []
    assert (await stranger.counts())["available"] == 0
