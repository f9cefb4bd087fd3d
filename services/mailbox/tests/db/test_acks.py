"""The answers to an acknowledgement: the whole matrix (spec, acks; reference test 13)."""

import asyncio
import uuid
from datetime import timedelta

import pytest
from relay_mailbox.domain.lease import Lease

AGENT = "agent:planner"
pytestmark = pytest.mark.spec("MB-ACK")


async def leased(streams, reader, count: int = 1, seconds: int = 30):
    streams.fill(count)
    return await reader.lease(count, seconds)


async def test_own_lease_is_acked(streams, reader):
    assert await reader.ack(await leased(streams, reader)) == ["acked"]


async def test_a_repeated_acknowledgement_is_already_acked(streams, reader):
    lease = await leased(streams, reader)
    await reader.ack(lease)
    assert await reader.ack(lease) == ["already_acked"]


async def test_the_same_request_again_answers_what_it_answered(streams, reader):
    lease = await leased(streams, reader)
    assert await reader.ack(lease, key="k") == ["acked"]
    assert await reader.ack(lease, key="k") == ["acked"]


async def test_twice_in_one_request_is_acked_once(streams, reader):
    lease = await leased(streams, reader)
    assert await reader.ack(lease, [1, 1]) == ["acked", "already_acked"]


async def test_an_expired_lease_that_nobody_took_is_lost(streams, reader, clock):
    lease = await leased(streams, reader)
    clock.shift(timedelta(seconds=31))
    assert await reader.ack(lease) == ["lease_lost"]


async def test_a_lease_that_another_holds_is_lost_and_then_already_acked(streams, reader, clock):
    lease = await leased(streams, reader)
    clock.shift(timedelta(seconds=31))
    second = await reader.lease(1)
    assert await reader.ack(lease) == ["lease_lost"]
    assert await reader.ack(second) == ["acked"]
    assert await reader.ack(lease) == ["already_acked"]


async def test_an_unknown_seq_is_not_found(streams, reader):
    lease = await leased(streams, reader)
    assert await reader.ack(lease, [1, 2, 9_000_000]) == ["acked", "not_found", "not_found"]


async def test_a_held_or_available_record_is_not_ours_to_acknowledge(streams, reader):
    lease = await leased(streams, reader)
    streams.fill(1)
    streams.fill(1, state="held", kind="early_event")
    assert await reader.ack(lease, [2, 3]) == ["lease_lost", "lease_lost"]


async def test_another_mailboxs_lease_does_nothing(streams, reader, as_reader):
    lease = await leased(streams, reader)
    other = as_reader("agent:other")
    streams.fill(1, "agent:other")
    assert await other.ack(lease) == ["lease_lost"]
    assert await reader.ack(lease) == ["acked"]


async def test_another_epoch_is_a_resync(streams, reader):
    lease = await leased(streams, reader)
    epoch = lease["records"][0]["epoch"]
    body = {"lease_id": lease["lease_id"], "epoch": epoch - 1, "seqs": [1]}
    answer = await reader.send("POST", "me/acks", body)
    assert answer.status_code == 409
    assert answer.json() | {"detail": ""} == answer.json() | {
        "code": "resync_required",
        "reason": "epoch_changed",
        "epoch": epoch,
        "oldest": 1,
        "head": 1,
        "detail": "",
    }


@pytest.mark.parametrize("lease_id", ["ls_", "nonsense", "ls_AAAA", "wp_" + "A" * 43, "ls_é"])
async def test_a_malformed_lease_id_is_not_found(streams, reader, lease_id):
    lease = await leased(streams, reader)
    body = {"lease_id": lease_id, "epoch": lease["records"][0]["epoch"], "seqs": [1]}
    answer = await reader.send("POST", "me/acks", body)
    assert (answer.status_code, answer.json()["code"]) == (404, "lease_not_found")


async def test_two_acknowledge_the_same_at_once(streams, reader):
    lease = await leased(streams, reader, 50)
    results = await asyncio.gather(*(reader.ack(lease) for _ in range(6)))
    for seq in range(50):
        assert sorted(result[seq] for result in results) == ["acked"] + ["already_acked"] * 5


async def test_an_acknowledgement_racing_its_expiry_has_one_outcome(streams, reader, database):
    """The record is acked, or leased by the next reader: never both (Case M32)."""
    lease = await leased(streams, reader, 20, 1)
    leases_now = "update mailbox.delivery set lease_until = relay.now()"
    _, results, second = await asyncio.gather(
        asyncio.to_thread(database.owner.execute, leases_now), reader.ack(lease), reader.lease(20)
    )
    taken = {record["seq"] for record in second["records"]}
    for seq, result in zip(range(1, 21), results, strict=True):
        assert (result == "acked") == (seq not in taken) or result == "lease_lost"


async def test_a_batch_of_a_thousand_has_a_thousand_results(streams, reader):
    lease = await leased(streams, reader, 1000)
    assert set(await reader.ack(lease)) == {"acked"}


async def test_an_unknown_token_changes_nothing(streams, reader):
    lease = await leased(streams, reader)
    forged = {**lease, "lease_id": Lease(uuid.uuid4(), 1, 1).encoded()}
    assert await reader.ack(forged) == ["lease_lost"]
    assert await reader.ack(lease) == ["acked"]
