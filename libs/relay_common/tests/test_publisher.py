"""The outbox publisher on a real broker: order, refusals, missing topics, kills."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError
from relay_common import outbox
from relay_common.outbox import OutMessage, Twin
from relay_common.producer import Outgoing, Producer
from relay_common.publisher import PublisherLoop
from relay_common.testing import wait
from relay_common.testing.brokers import read_all
from relay_common.testing.mock_broker import MockBroker, mock_broker
from relay_common.testing.streams import ROLE, Stream

Producers = Callable[[str], Producer]
PROCESS = str(Path(__file__).with_name("loop_process.py"))

LEFT = """
select count(*), count(*) filter (where left_topics[1] like '%missing') from matcher.outbox
"""


def write(stream: Stream, *messages: OutMessage) -> None:
    """Put `messages` into the outbox, each call one transaction."""
    stream.database.connect(ROLE).execute(outbox.INSERT, outbox.pack(messages, 2))


def until_empty(stream: Stream, topic: str | None = None, timeout_s: float = 20) -> None:
    def left() -> int:
        statement = "select count(*) from matcher.outbox where topic = coalesce(%s, topic)"
        return stream.database.owner.execute(statement, (topic,)).fetchone()[0]

    wait.until(lambda: left() == 0, timeout_s, lambda: f"{left()} rows left")


def by_key(stream: Stream, topic: str) -> dict[bytes | None, list[int]]:
    found: dict[bytes | None, list[int]] = {}
    for record in stream.topics.records(topic):
        found.setdefault(record.key, []).append(int(record.value or b"-1"))
    return found


def test_messages_keep_their_order_by_key_across_transactions(
    stream: Stream, publishing: PublisherLoop
) -> None:
    for start in range(0, 3000, 300):
        numbers = range(start, start + 300)
        write(stream, *[OutMessage(stream.topic, b"%d" % (n % 7), b"%d" % n) for n in numbers])
        publishing.wake()
    until_empty(stream)
    assert by_key(stream, stream.topic) == {b"%d" % k: list(range(k, 3000, 7)) for k in range(7)}
    assert stream.rows("select * from matcher.outbox_dead") == []


def test_values_headers_nulls_and_shared_parts_arrive_as_they_were_meant(
    stream: Stream, publishing: PublisherLoop
) -> None:
    shared = b"{the event}" * 100
    write(
        stream,
        OutMessage(stream.topic, b"a", b"head:", (("ce_type", b"x"),), shared, b":tail"),
        OutMessage(stream.topic, b"a", b"other:", (), shared),
        OutMessage(stream.topic, b"a", b"", tombstone=True),
        OutMessage(stream.topic, b"a", b""),
        OutMessage(stream.topic, None, b"no key"),
    )
    until_empty(stream)
    found = [(r.key, r.value, r.headers) for r in stream.topics.records(stream.topic)]
    assert [f for f in found if f[0] == b"a"] == [
        (b"a", b"head:" + shared + b":tail", (("ce_type", b"x"),)),
        (b"a", b"other:" + shared, ()),
        (b"a", None, ()),
        (b"a", b"", ()),
    ]
    assert (None, b"no key", ()) in found


def test_refused_message_is_buried_and_its_neighbours_are_delivered(
    stream: Stream, publishing: PublisherLoop
) -> None:
    small = stream.topics.create("small", 1, {"max.message.bytes": "20000"})
    noise = os.urandom(30_000)
    write(
        stream,
        *[OutMessage(small, b"k", b"%d" % n) for n in range(5)],
        OutMessage(small, b"k", noise, (("ce_id", b"1"),)),
        *[OutMessage(small, b"k", b"%d" % n) for n in range(5, 10)],
    )
    write(stream, OutMessage(small, b"k", b"10"))
    until_empty(stream)
    assert sorted(by_key(stream, small)[b"k"]) == list(range(11))
    [(topic, payload, reason)] = stream.rows(
        "select topic, payload, reason from matcher.outbox_dead"
    )
    assert (topic, reason) == (small, "MSG_SIZE_TOO_LARGE")
    assert outbox.unpack(payload) == [(b"k", noise, (("ce_id", b"1"),))]


def test_refused_twin_is_buried_for_its_own_topic(
    stream: Stream, publishing: PublisherLoop
) -> None:
    small = stream.topics.create("small", 1, {"max.message.bytes": "20000"})
    noise = os.urandom(30_000)
    twin = Twin(small, b"owner", b"m:")
    write(stream, OutMessage(stream.topic, b"k", b"w:", own=noise, twins=(twin,)))
    until_empty(stream)
    assert [record.value for record in stream.topics.records(stream.topic)] == [b"w:" + noise]
    [(topic, payload)] = stream.rows("select topic, payload from matcher.outbox_dead")
    assert topic == small
    assert outbox.unpack(payload) == [(b"owner", b"m:" + noise, ())]


def test_missing_topic_waits_for_its_creation_and_holds_up_nobody(
    stream: Stream, publishing: PublisherLoop
) -> None:
    missing = f"{stream.topics.prefix}missing"
    for number in range(40):  # more rows than a round reads
        write(stream, OutMessage(missing, b"k", b"%d" % number))
    write(stream, OutMessage(stream.topic, b"k", b"3"))
    until_empty(stream, stream.topic)
    write(stream, OutMessage(stream.topic, b"k", b"4"))
    until_empty(stream, stream.topic)
    assert stream.topics.create("missing", 1) == missing
    until_empty(stream)
    assert by_key(stream, missing) == {b"k": list(range(40))}
    assert stream.rows("select * from matcher.outbox_dead") == []


def test_missing_topic_of_a_twin_holds_up_no_other_topic_and_nothing_is_sent_twice(
    stream: Stream, publishing: PublisherLoop
) -> None:
    missing = f"{stream.topics.prefix}missing"
    for number in range(40):
        value = b"%d" % number
        twin = Twin(missing, b"k", b"")
        write(stream, OutMessage(stream.topic, b"k", b"", own=value, twins=(twin,)))
    write(stream, OutMessage(missing, b"k", b"40", beside=(stream.topic, b"k")))
    wait.until(lambda: stream.rows(LEFT) == [(41, 41)], 30, lambda: stream.rows(LEFT))
    assert by_key(stream, stream.topic) == {b"k": list(range(40))}
    assert stream.topics.create("missing", 1) == missing
    until_empty(stream)
    assert by_key(stream, missing) == {b"k": list(range(41))}
    assert by_key(stream, stream.topic) == {b"k": list(range(40))}


@pytest.fixture
def broker() -> Iterator[MockBroker]:
    with mock_broker() as made:
        made.create("faulty")
        yield made


def values_of(broker: MockBroker) -> list[int]:
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader"})
    try:
        return [int(record.value or b"-1") for record in read_all(reader, "faulty", 1)]
    finally:
        reader.close()


def test_errors_of_the_broker_are_retried_in_order(
    stream: Stream, broker: MockBroker, producers: Producers
) -> None:
    broker.fail_next(3, KafkaError.NOT_ENOUGH_REPLICAS)
    producer = producers(broker.bootstrap)
    stream.start(PublisherLoop(stream.connect, producer, 2).run)
    for start in range(0, 60, 20):
        write(stream, *[OutMessage("faulty", b"k", b"%d" % n) for n in range(start, start + 20)])
    until_empty(stream)
    assert values_of(broker) == list(range(60))


def test_broker_that_is_down_is_waited_out_and_told(
    stream: Stream, broker: MockBroker, producers: Producers
) -> None:
    producer = producers(broker.bootstrap)
    publishing = PublisherLoop(stream.connect, producer, 2)
    stream.start(publishing.run)
    write(stream, OutMessage("faulty", b"k", b"0"))
    until_empty(stream)
    broker.down()
    write(stream, *[OutMessage("faulty", b"k", b"%d" % n) for n in range(1, 20)])
    wait.until(lambda: publishing.ready() == "kafka: no acknowledgement", 20, publishing.ready)
    assert publishing.age() == 0.0
    broker.up()
    until_empty(stream)
    assert values_of(broker) == list(range(20))
    wait.until(lambda: publishing.ready() is None, describe=publishing.ready)


def test_stop_while_the_broker_is_down_is_quick_and_keeps_the_rows(
    stream: Stream, broker: MockBroker, producers: Producers
) -> None:
    broker.down()
    write(stream, OutMessage("faulty", b"k", b"1"))
    producer = producers(broker.bootstrap)
    loop = PublisherLoop(stream.connect, producer, 2)
    thread = stream.start(loop.run)
    wait.until(lambda: loop.waiting_since is not None)
    stream.stop.set()
    thread.join(8)
    assert not thread.is_alive()
    assert stream.rows("select count(*) from matcher.outbox") == [(1,)]


def test_one_publisher_a_shard_and_the_next_takes_over(
    stream: Stream, producers: Producers
) -> None:
    producer = producers(stream.topics.bootstrap)
    first, second = (PublisherLoop(stream.connect, producer, 2) for _ in range(2))
    leave = threading.Event()
    thread = stream.start(first.run, leave)
    wait.until(lambda: sorted(first.held) == [0, 1])
    stream.start(second.run)
    wait.until(lambda: second.ready() is None)
    assert second.held == []
    leave.set()
    thread.join(5)
    wait.until(lambda: sorted(second.held) == [0, 1])
    write(stream, OutMessage(stream.topic, b"k", b"1"))
    until_empty(stream)


def test_connection_cut_is_healed(stream: Stream, publishing: PublisherLoop) -> None:
    wait.until(lambda: publishing.ready() is None)
    stream.database.owner.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where application_name = 'loop' and datname = current_database()"
    )
    write(stream, OutMessage(stream.topic, b"k", b"1"))
    until_empty(stream)


def test_kill_between_acknowledgement_and_delete_repeats_but_loses_nothing(stream: Stream) -> None:
    write(stream, *[OutMessage(stream.topic, b"%d" % (n % 3), b"%d" % n) for n in range(500)])
    arguments = [stream.database.conninfo(ROLE), stream.topics.bootstrap, stream.topic, "-"]
    command = [sys.executable, PROCESS, "publisher", *arguments]
    deadly = {**os.environ, "RELAY_FAILPOINTS": "publisher.after_ack_before_delete=kill"}
    first = subprocess.run(command, check=False, env=deadly, stdout=subprocess.DEVNULL, timeout=60)
    assert first.returncode == -9
    assert stream.rows("select count(*) > 0 from matcher.outbox") == [(True,)]
    second = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until_empty(stream, timeout_s=60)
    second.terminate()
    assert second.wait(10) == 0
    for key, numbers in by_key(stream, stream.topic).items():
        first_seen = list(dict.fromkeys(numbers))
        assert first_seen == list(range(int(key or b""), 500, 3))
        assert len(numbers) == 2 * len(first_seen)


async def test_send_awaits_the_acknowledgement_of_each(stream: Stream) -> None:
    producer = Producer(stream.topics.bootstrap, "test", message_timeout_ms=3_000)
    missing = f"{stream.topics.prefix}missing"
    outcomes = await producer.send(
        [Outgoing(stream.topic, b"k", b"1"), Outgoing(missing, b"k", b"2")]
    )
    assert [o.state for o in outcomes] == ["delivered", "retry"]
    assert await producer.send([]) == []
    assert [r.value for r in stream.topics.records(stream.topic)] == [b"1"]
    producer.close()
