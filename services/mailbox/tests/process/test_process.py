"""The service as a process: end to end, killed at every named point, poisoned, stopped."""

import uuid

import httpx
import pytest
from relay_common.testing import wait

AGENT = "agent:planner"


def head(caller) -> int:
    return caller().get()["head"]


def test_a_record_goes_from_the_topic_to_the_reader_and_is_acknowledged(
    process, producing, caller, topics
):
    process.start()
    ids = producing.send(AGENT, 3)
    wait.until(lambda: head(caller) == 3, 20)
    lease = caller().post("/leases", {"max_records": 10}, "lease").json()
    assert [r["seq"] for r in lease["records"]] == [1, 2, 3]
    body = {"lease_id": lease["lease_id"], "epoch": lease["records"][0]["epoch"], "seqs": [1, 2, 3]}
    results = caller().post("/acks", body, "ack").json()["results"]
    assert {one["result"] for one in results} == {"acked"}
    assert caller().get()["counts"]["acked"] == 3
    hints = wait.until(lambda: topics.records(topics.prefix + "relay.hints"), 20)
    assert len(hints) <= len(ids)
    assert process.stop() == 0


@pytest.mark.parametrize(
    "point",
    [
        "mailbox.before_commit=kill",
        "consumer.after_commit_before_kafka=kill",
        "publisher.after_ack_before_delete=kill",
    ],
)
def test_killed_around_the_commit_nothing_is_lost_and_nothing_doubled(
    process, producing, caller, point, streams
):
    producing.send(AGENT, 5)
    process.launch(point)
    assert process.wait_for_death() == -9
    producing.send(AGENT, 5)
    process.start()
    wait.until(lambda: head(caller) == 10, 20)
    page = caller().get("/records")
    assert [r["seq"] for r in page["records"]] == list(range(1, 11))
    assert len({r["id"] for r in page["records"]}) == 10
    wait.until(lambda: streams.one("select count(*) from outbox") == 0, 20)


def test_killed_after_the_lease_the_same_request_gets_the_same_records(process, producing, caller):
    producing.send(AGENT, 3)
    process.start("mailbox.after_lease_commit=kill")
    wait.until(lambda: head(caller) == 3, 20)
    with pytest.raises(httpx.TransportError):
        caller().post("/leases", {"max_records": 2}, "the-key")
    assert process.wait_for_death() == -9
    process.start()
    lease = caller().post("/leases", {"max_records": 2}, "the-key")
    assert [(r["seq"], r["deliveries"]) for r in lease.json()["records"]] == [(1, 1), (2, 1)]
    assert caller().get()["counts"]["leased"] == 2


def test_killed_after_the_ack_the_same_request_is_answered_as_before(process, producing, caller):
    producing.send(AGENT, 2)
    process.start("mailbox.after_ack_commit=kill")
    wait.until(lambda: head(caller) == 2, 20)
    lease = caller().post("/leases", {"max_records": 2}, "lease").json()
    body = {"lease_id": lease["lease_id"], "epoch": lease["records"][0]["epoch"], "seqs": [1, 2]}
    with pytest.raises(httpx.TransportError):
        caller().post("/acks", body, "ack")
    assert process.wait_for_death() == -9
    process.start()
    results = caller().post("/acks", body, "ack").json()["results"]
    assert [one["result"] for one in results] == ["acked", "acked"]
    again = caller().post("/acks", body, "another-key").json()["results"]
    assert [one["result"] for one in again] == ["already_acked", "already_acked"]


def test_poison_goes_to_the_dlq_and_the_partition_goes_on(process, producing, caller, topics):
    process.start()
    poisons = [None, b"", b"\x00", b"\xff" * 40, b"\xc3\x01" + b"\x00" * 20, b"\xc3\x01short"]
    for poison in poisons:
        producing.raw(b"key", poison)
    producing.send(AGENT, 1, body=b"{not json")
    producing.send(AGENT, 1)
    wait.until(lambda: head(caller) == 1, 20)
    dlq = topics.prefix + "relay.mailbox.dlq"
    dead = wait.until(
        lambda: (found := topics.records(dlq)) and len(found) == len(poisons) + 1 and found, 20
    )
    assert [record.value for record in dead][: len(poisons)] == poisons
    reasons = {dict(record.headers)["relay_reason"] for record in dead}
    assert b"invalid_body" in reasons
    assert process.stop() == 0


def test_an_unknown_token_key_is_refused_by_the_process(process, issuer):
    process.start()
    answer = httpx.get(
        f"http://127.0.0.1:{process.port}/v1/mailboxes/me",
        headers={"authorization": f"Bearer {uuid.uuid4()}"},
        trust_env=False,
    )
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token")
