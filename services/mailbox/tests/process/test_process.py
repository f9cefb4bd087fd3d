"""The service as a process: end to end, killed at every named point, poisoned, stopped."""

from datetime import datetime, timedelta
from itertools import pairwise

import httpx
import pytest
from relay_common.avro import Codec
from relay_common.testing import wait

AGENT = "agent:planner"


def head(caller) -> int:
    return caller().get()["head"]


def test_from_the_topic_to_the_acknowledgement_whatever_else_is_on_the_topic(
    process, producing, caller, topics
):
    process.start()
    ids = producing.send(AGENT, 1)
    poisons = [None, b"", b"\x00", b"\xff" * 40, b"\xc3\x01" + b"\x00" * 20, b"\xc3\x01short"]
    for poison in poisons:
        producing.raw(b"key", poison)
    producing.send(AGENT, 1, body=b"{not json")
    ids += producing.send(AGENT, 2)
    wait.until(lambda: head(caller) == 3, 20)
    lease = caller().post("/leases", {"max_records": 10}, "lease").json()
    assert [r["seq"] for r in lease["records"]] == [1, 2, 3]
    body = {"lease_id": lease["lease_id"], "epoch": lease["records"][0]["epoch"], "seqs": [1, 2, 3]}
    results = caller().post("/acks", body, "ack").json()["results"]
    assert {one["result"] for one in results} == {"acked"}
    assert caller().get()["counts"]["acked"] == 3
    hints = wait.until(lambda: topics.records(topics.prefix + "relay.hints"), 20)
    assert len(hints) <= len(ids)

    dlq = topics.prefix + "relay.mailbox.dlq"
    dead = wait.until(
        lambda: (found := topics.records(dlq)) and len(found) == len(poisons) + 1 and found, 20
    )
    assert [record.value for record in dead][: len(poisons)] == poisons
    assert b"invalid_body" in {dict(record.headers)["relay_reason"] for record in dead}

    metrics = httpx.get(f"http://127.0.0.1:{process.internal}/metrics", trust_env=False).text
    assert "relay_mailbox_append_lag_seconds_count" in metrics
    assert 'relay_mailbox_records_total{kind="message"} 3.0' in metrics

    stranger = {"authorization": "Bearer nonsense"}
    answer = httpx.get(caller().base, headers=stranger, trust_env=False)
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_token")
    assert process.stop() == 0


@pytest.mark.spec("MB-HINT")
def test_every_record_is_followed_by_a_hint_on_the_topic_and_hints_are_a_second_apart(
    process, producing, caller, topics
):
    process.start()
    for number in range(1, 7):
        producing.send(AGENT, 1)
        wait.until(lambda number=number: head(caller) == number, 20)
    last = datetime.fromisoformat(caller().get("/records")["records"][-1]["appended_at"])

    def hinted() -> list[datetime]:
        found = topics.records(topics.prefix + "relay.hints")
        return [Codec().decode(record.value)[1]["occurred_at"] for record in found]

    hints = wait.until(lambda: (found := hinted()) and found[-1] >= last and found, 20, hinted)
    assert len(hints) <= 6
    assert all(b - a >= timedelta(seconds=1) for a, b in pairwise(hints))


POINTS = [
    "mailbox.before_commit=kill",
    "consumer.after_commit_before_kafka=kill",
    "publisher.after_ack_before_delete=kill",
]


def test_killed_around_the_commit_nothing_is_lost_and_nothing_doubled(
    process, producing, caller, streams
):
    for point in POINTS:
        producing.send(AGENT, 5)
        process.launch(point)
        assert process.wait_for_death() == -9
    producing.send(AGENT, 5)
    process.start()
    wait.until(lambda: head(caller) == 20, 20)
    page = caller().get("/records")
    assert [r["seq"] for r in page["records"]] == list(range(1, 21))
    assert len({r["id"] for r in page["records"]}) == 20
    wait.until(lambda: streams.one("select count(*) from outbox") == 0, 20)


def test_killed_between_lease_and_ack_the_same_requests_get_the_same_answers(
    process, producing, caller
):
    producing.send(AGENT, 3)
    process.start("mailbox.after_lease_commit=kill")
    wait.until(lambda: head(caller) == 3, 20)
    with pytest.raises(httpx.TransportError):
        caller().post("/leases", {"max_records": 2}, "the-lease")
    assert process.wait_for_death() == -9

    process.start("mailbox.after_ack_commit=kill")
    lease = caller().post("/leases", {"max_records": 2}, "the-lease").json()
    assert [(r["seq"], r["deliveries"]) for r in lease["records"]] == [(1, 1), (2, 1)]
    assert caller().get()["counts"]["leased"] == 2
    body = {"lease_id": lease["lease_id"], "epoch": lease["records"][0]["epoch"], "seqs": [1, 2]}
    with pytest.raises(httpx.TransportError):
        caller().post("/acks", body, "the-ack")
    assert process.wait_for_death() == -9

    process.start()
    results = caller().post("/acks", body, "the-ack").json()["results"]
    assert [one["result"] for one in results] == ["acked", "acked"]
    again = caller().post("/acks", body, "another-key").json()["results"]
    assert [one["result"] for one in again] == ["already_acked", "already_acked"]
