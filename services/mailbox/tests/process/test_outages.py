"""Postgres away, and what others leave open in it: everybody goes on alone (cases M4, M6, M39)."""

import time
import uuid

import psycopg
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from prometheus_client import REGISTRY
from relay_common.db import connect, role_conninfo
from relay_common.testing import wait
from relay_mailbox import sweeper
from relay_mailbox.domain.record import NewRecord, Owner
from relay_mailbox.store.appends import append_records

AGENT = "agent:planner"


def told_offset(process, bootstrap: str) -> int:
    """Return the offset that Kafka was told is done."""
    topic = process.environment["RELAY_TOPIC_PREFIX"] + "relay.mailbox"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    asked = ConsumerGroupTopicPartitions(f"{process.group}.mailbox", [TopicPartition(topic, 0)])
    [future] = admin.list_consumer_group_offsets([asked]).values()
    return future.result(10).topic_partitions[0].offset


@pytest.mark.spec("MB-AT-LEAST-ONCE")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seconds", [4, pytest.param(90, marks=pytest.mark.slow)])
def test_without_postgres_the_process_waits_and_goes_on_alone(
    server, process_on, producing, as_caller, kafka_bootstrap, seconds
):
    """Cases M4 and M39: under load, readers and the consumer resume alone and nothing is lost."""
    process = process_on(server)
    process.start()
    caller = as_caller(process)
    ids = producing.send(AGENT, 20)
    wait.until(lambda: caller.get()["head"] == 20, 20)
    wait.until(lambda: told_offset(process, kafka_bootstrap) == 20, 20)

    server.stop("immediate")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        ids += producing.send(AGENT, 1)
        answer = caller.post("/leases", {"max_records": 1}, "during")
        assert (answer.status_code, answer.json()["code"]) == (503, "store_unavailable")
        assert process.alive()
    assert not process.ready()
    assert told_offset(process, kafka_bootstrap) == 20

    server.start()
    ids += producing.send(AGENT, 1)
    wait.until(lambda: process.ready() and caller.get().get("head") == len(ids), 60)
    records = caller.get("/records?limit=1000&since=0")["records"]
    assert [record["seq"] for record in records] == list(range(1, len(ids) + 1))
    wait.until(lambda: told_offset(process, kafka_bootstrap) == len(ids), 20)
    assert caller.post("/leases", {"max_records": 1}, "during").status_code == 201


def append(conn, owner: str = AGENT) -> list[int]:
    record = NewRecord(
        Owner("acme", "test", owner), uuid.uuid4().bytes, "message", "note", "available", b"{}"
    )
    return [one.seq for one in append_records(conn, [record])]


@pytest.mark.spec("MB-STREAM")
def test_open_and_prepared_transactions_hold_no_other_stream_back(server):
    """Reference test 4: one open in another database, one prepared on another mailbox's head."""
    url = server.database_url("relay")
    password = str(psycopg.conninfo.conninfo_to_dict(url)["password"])
    role = role_conninfo(url, "relay_mailbox_stream", password)
    elsewhere = psycopg.connect(server.database_url("postgres"))
    elsewhere.execute("create temporary table somebody_writes (n int)")
    elsewhere.execute("insert into somebody_writes values (1)")
    with connect(role, "test") as conn, psycopg.connect(role) as preparing:
        append(preparing, "agent:prepared")
        preparing.execute("prepare transaction 'left behind'")
        sweeper.measure(30, conn)
        assert REGISTRY.get_sample_value("relay_mailbox_prepared_transactions") == 1
        assert [append(conn) for _ in range(3)] == [[1], [2], [3]]
        head = "select head from mailbox where owner = %s"
        assert conn.execute(head, (AGENT,)).fetchone() == (3,)
        conn.execute("set lock_timeout = '300ms'")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            append(conn, "agent:prepared")
        conn.execute("rollback prepared 'left behind'")
        assert append(conn, "agent:prepared") == [1]
    elsewhere.close()
