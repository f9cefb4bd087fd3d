"""The consumer loop under the faults of `reference/reliability.md`: zombies, kills, rebalances."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from relay_common import db
from relay_common.avro import Codec
from relay_common.errors import Poison
from relay_common.kafka import ConsumerLoop
from relay_common.outbox import unpack
from relay_common.overlap import OverlappingConnection
from relay_common.records import DeadLetter, Record
from relay_common.testing import wait
from relay_common.testing.streams import ROLE, Stream, record_effects

BOTH = pytest.mark.parametrize("stream", ["classic", "consumer"], indirect=True)
PROCESS = str(Path(__file__).with_name("loop_process.py"))


def loop_process(stream: Stream, kind: str, failpoints: str = "") -> subprocess.Popen[bytes]:
    """Start a process of `kind` on the stream; it may be told to die."""
    arguments = [kind, stream.database.conninfo(ROLE), stream.topics.bootstrap, stream.topic]
    return subprocess.Popen(
        [sys.executable, PROCESS, *arguments, f"{stream.topics.prefix}group"],
        env={**os.environ, "RELAY_FAILPOINTS": failpoints},
        stdout=subprocess.DEVNULL,
    )


def test_zombie_is_fenced_and_its_work_is_rolled_back(stream: Stream) -> None:
    stream.database.owner.execute("create table matcher.trace (who text, record_offset bigint)")
    entered, released = threading.Event(), threading.Event()

    def trace(who: str, conn: db.Connection, records: Sequence[Record]) -> list[DeadLetter]:
        for record in records:
            conn.execute("insert into trace values (%s, %s)", (who, record.offset))
        return []

    def zombie(conn: db.Connection, records: Sequence[Record]) -> list[DeadLetter]:
        letters = trace("zombie", conn, records)
        entered.set()
        released.wait(20)
        return letters

    def owner(conn: db.Connection, records: Sequence[Record]) -> list[DeadLetter]:
        return trace("owner", conn, records)

    stream.produce(*[b"x"] * 10)
    stream.start(stream.loop(zombie).run)
    assert entered.wait(20)
    # Another group on the same position: Kafka keeps neither from reading, only the fence does.
    stream.start(stream.loop(owner, group=f"{stream.topics.prefix}other").run)
    wait.until(lambda: stream.rows("select next_offset from matcher.position") == [(10,)])
    released.set()
    stream.produce(b"after")
    wait.until(lambda: stream.rows("select next_offset from matcher.position") == [(11,)])
    stream.finish()
    found = stream.rows("select record_offset, count(*) from matcher.trace group by 1 order by 1")
    assert found == [(offset, 1) for offset in range(11)]
    assert (0, "owner") in stream.rows("select record_offset, who from matcher.trace")


def test_kill_between_commit_and_kafka_loses_and_doubles_nothing(stream: Stream) -> None:
    values = [f"{n}".encode() for n in range(1000)]
    stream.produce(*values)
    first = loop_process(stream, "consumer", "consumer.after_commit_before_kafka=kill@3")
    assert first.wait(60) == -9
    assert 0 < len(stream.effects()) < 1000
    second = loop_process(stream, "consumer")
    stream.until_effects(1000, 60)
    second.terminate()
    assert second.wait(10) == 0
    assert stream.effects() == values


def test_recreated_topic_stops_the_partition_and_is_never_reset(stream: Stream) -> None:
    loop = stream.loop()
    stream.start(loop.run)
    stream.produce(b"1", b"2")
    stream.until_effects(2)
    stream.topics.delete(stream.topic)
    stream.topics.create("relay.events", partitions=1)
    stream.produce(b"other 1", b"other 2", b"other 3")
    wait.until(lambda: "belongs to topic id" in str(loop.ready()), 30, loop.ready)
    assert stream.effects() == [b"1", b"2"]
    assert stream.rows("select next_offset from matcher.position") == [(2,)]


def test_position_outside_the_log_stops_until_somebody_mends_it(stream: Stream) -> None:
    stream.produce(b"1")
    first = threading.Event()
    thread = stream.start(stream.loop().run, first)
    stream.until_effects(1)
    first.set()
    thread.join(10)
    stream.database.owner.execute("update matcher.position set next_offset = 500")
    loop = stream.loop()
    stream.start(loop.run)
    wait.until(lambda: "outside the log, 0 to 1" in str(loop.ready()), describe=loop.ready)
    stream.database.owner.execute("update matcher.position set next_offset = 1")
    stream.produce(b"2")
    stream.until_effects(2)
    wait.until(lambda: loop.ready() is None, describe=loop.ready)


def test_database_that_is_away_is_waited_out(stream: Stream) -> None:
    refusals = iter(range(7))

    def connect() -> db.Connection:
        for _ in refusals:
            raise psycopg.OperationalError("away")
        return stream.connect()

    stream.produce(b"1")
    loop = ConsumerLoop(stream.settings(), connect, record_effects)
    stream.start(loop.run)
    wait.until(lambda: loop.ready() == "database: OperationalError")
    stream.until_effects(1, 30)
    wait.until(lambda: loop.ready() is None, describe=loop.ready)


class Unlucky(OverlappingConnection):
    """A connection that is lost right after the server has committed its second batch."""

    transactions = 0

    @contextmanager
    def committed(self) -> Generator[None]:
        with super().committed():
            yield
        self.transactions += 1
        if self.transactions == 2:
            self.close()
            raise psycopg.OperationalError("the answer to the commit is lost")


def test_commit_whose_answer_is_lost_is_not_done_twice(stream: Stream) -> None:
    def connect() -> OverlappingConnection:
        return Unlucky.connect(stream.database.conninfo(ROLE), autocommit=True)

    values = [f"{n}".encode() for n in range(100)]
    stream.produce(*values)
    stream.start(ConsumerLoop(stream.settings(max_records=10), connect, record_effects).run)
    stream.until_effects(100)
    assert stream.effects() == values
    assert stream.rows("select * from matcher.outbox") == []


def test_refused_transactions_are_retried_not_dead_lettered(stream: Stream) -> None:
    refusals = iter(range(6))

    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        for _ in refusals:
            conn.execute("set local statement_timeout = 1")
            conn.execute("select pg_sleep(5)")
        return record_effects(conn, records)

    stream.produce(b"1")
    stream.start(stream.loop(handle).run)
    stream.until_effects(1)
    assert stream.rows("select * from matcher.outbox") == []


@BOTH
def test_members_come_and_go_and_every_record_counts_once(stream: Stream) -> None:
    stream.topic = stream.topics.create("many", partitions=6)
    stream.start(stream.loop().run)
    stream.start(stream.loop().run)
    total = 0
    for _ in range(3):
        leave = threading.Event()
        guest = stream.start(stream.loop().run, leave)
        for _ in range(10):
            for number in range(200):
                stream.topics.produce(stream.topic, b"%d" % number, b"%d" % total)
                total += 1
            stream.topics.flush()
            stream.until_effects(total - 1000)
        leave.set()
        guest.join(10)
        assert not guest.is_alive()
    stream.until_effects(total, 30)
    assert sorted(stream.effects(), key=int) == [b"%d" % n for n in range(total)]


def test_member_that_was_too_slow_comes_back(stream: Stream) -> None:
    slow = iter([True])

    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        for _ in slow:
            conn.execute("select pg_sleep(9)")
        return record_effects(conn, records)

    stream.produce(b"1")
    stream.start(stream.loop(handle, max_poll_interval_ms=7_000).run)
    stream.until_effects(1)
    stream.produce(b"2")
    stream.until_effects(2)
    assert stream.effects() == [b"1", b"2"]


def poison() -> dict[str, bytes | None]:
    """Return values that can never be read, by the reason they should give."""
    good = Codec().encode("relay.events.v1", event("good"))
    return {
        "null_value": None,
        "bad_magic": b"\xff\xffgarbage",
        "unknown_schema": b"\xc3\x01" + b"\0" * 8 + b"x",
        "truncated": good[:-3],
        "trailing_bytes": good + b"x",
        "invalid_utf8": good.replace(b"acme", b"ac\xff\xfe"),
        "truncated ": good[:10] + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01rest",
        "truncated  ": b"",
        "unknown_schema ": b"\0\0\0\0\x09" + b"\x02" * 200_000,
    }


def event(key: str) -> dict[str, object]:
    return {
        "tenant": "acme",
        "environment": "test",
        "event_type": "t",
        "correlation_key": key,
        "data": b"{}",
    }


def test_every_kind_of_poison_goes_to_the_dlq_and_the_partition_goes_on(stream: Stream) -> None:
    codec = Codec()

    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        letters: list[DeadLetter] = []
        for record in records:
            try:
                codec.decode(record.value)
                record_effects(conn, [record])
            except Poison as error:
                letters.append(DeadLetter(record, error.reason, error.detail))
        return letters

    values = poison()
    for value in values.values():
        stream.produce(value, codec.encode("relay.events.v1", event("fine")))
    headers = [(f"h{n}", b"v") for n in range(1000)]
    stream.topics.produce(stream.topic, None, b"bad", headers)
    stream.topics.flush()
    stream.produce(codec.encode("relay.events.v1", event("last")))
    stream.start(stream.loop(handle).run)
    stream.until_effects(len(values) + 1)
    rows = stream.rows("select payload from matcher.outbox order by id")
    found = [message for (payload,) in rows for message in unpack(payload)]
    by_offset = {int(dict(h)["relay_source_offset"]): (v, h) for _, v, h in found}
    for place, (reason, value) in enumerate(values.items()):
        dead, told = by_offset[2 * place]
        assert dead == value
        assert dict(told)["relay_reason"].decode() == reason.strip()
    assert len(by_offset[2 * len(values)][1]) == 1005


def test_stop_during_a_rebalance_is_quick(stream: Stream) -> None:
    stream.start(stream.loop().run)
    leave = threading.Event()
    joining = stream.start(stream.loop().run, leave)
    leave.set()
    started = time.monotonic()
    stream.stop.set()
    joining.join(10)
    for thread in stream.threads:
        thread.join(10)
    assert time.monotonic() - started < 10
