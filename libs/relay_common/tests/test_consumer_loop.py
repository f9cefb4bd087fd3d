"""The consumer loop on a real broker and a real database: order, batches, failures, the end."""

import threading
import time
from collections.abc import Sequence

import pytest
from relay_common import db
from relay_common.errors import Busy, Poison
from relay_common.kafka import ConsumerLoop
from relay_common.outbox import OutMessage, Unpacked, unpack
from relay_common.records import DeadLetter, Leaving, Record
from relay_common.testing import wait
from relay_common.testing.streams import Stream, record_effects

BOTH = pytest.mark.parametrize("stream", ["classic", "consumer"], indirect=True)


@BOTH
def test_records_are_processed_once_in_order_and_the_position_follows(stream: Stream) -> None:
    values = [f"{n}".encode() for n in range(5000)]
    stream.produce(*values)
    stream.start(stream.loop().run)
    stream.until_effects(5000)
    assert stream.effects() == values
    assert stream.rows("select topic, partition, next_offset from matcher.position") == [
        (stream.topic, 0, 5000)
    ]


def test_next_loop_goes_on_from_postgres_not_from_kafka(stream: Stream) -> None:
    stream.produce(b"1", b"2", b"3")
    first = threading.Event()
    thread = stream.start(stream.loop().run, first)
    stream.until_effects(3)
    first.set()
    thread.join(10)
    stream.database.owner.execute("delete from matcher.effect where record_offset >= 1")
    stream.database.owner.execute("update matcher.position set next_offset = 1")
    stream.start(stream.loop().run)
    stream.until_effects(3)
    assert stream.effects() == [b"1", b"2", b"3"]


def test_first_loop_starts_at_the_low_end_of_the_log(stream: Stream) -> None:
    stream.produce(b"early")
    stream.start(stream.loop().run)
    stream.until_effects(1)


@BOTH
def test_a_member_without_partitions_is_ready_too(stream: Stream) -> None:
    """A deployment may have more processes than the topic has partitions."""
    loops = [stream.loop() for _ in range(2)]
    for loop in loops:
        stream.start(loop.run)
    wait.until(lambda: all(loop.ready() is None for loop in loops), 40)


def test_a_quiet_batch_does_not_wait(stream: Stream) -> None:
    stream.start(stream.loop().run)
    stream.produce(b"warm")
    stream.until_effects(1)
    started = time.monotonic()
    stream.produce(b"quick")
    stream.until_effects(2)
    assert time.monotonic() - started < 1.0


def test_batches_keep_to_their_limits(stream: Stream) -> None:
    seen: list[tuple[int, int]] = []

    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        seen.append((len(records), sum(r.size() for r in records)))
        return record_effects(conn, records)

    stream.produce(*[b"x" * 1000] * 500)
    stream.start(stream.loop(handle, max_records=100, max_bytes=50_000).run)
    stream.until_effects(500)
    assert max(count for count, _ in seen) <= 100
    assert max(size for _, size in seen) <= 50_000


def test_a_record_larger_than_the_byte_limit_goes_alone(stream: Stream) -> None:
    stream.produce(b"a", b"x" * 9000, b"b")
    stream.start(stream.loop(max_bytes=1000).run)
    stream.until_effects(3)


def test_busy_is_offered_again_and_nothing_is_skipped(stream: Stream) -> None:
    refusals = iter(range(5))

    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        record_effects(conn, records)
        for _ in refusals:
            raise Busy("later")
        return []

    stream.produce(b"1", b"2")
    stream.start(stream.loop(handle).run)
    stream.until_effects(2)
    assert stream.effects() == [b"1", b"2"]
    assert stream.rows("select * from matcher.outbox") == []


def test_record_that_always_fails_is_dead_lettered_and_the_others_are_not(stream: Stream) -> None:
    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        record_effects(conn, records)
        if any(r.value == b"bad" for r in records):
            raise ValueError("no content in logs: bad")
        return []

    values = [f"{n}".encode() for n in range(200)]
    stream.produce(*values[:120], b"bad", *values[120:])
    stream.start(stream.loop(handle).run)
    stream.until_effects(200)
    assert stream.effects() == values
    assert reasons(stream) == [("handler_failed", "ValueError", b"bad")]


def test_poison_raised_for_a_lone_record_keeps_its_reason(stream: Stream) -> None:
    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        raise Poison("bad_magic", "first bytes ffff")

    stream.produce(b"\xff\xff")
    stream.start(stream.loop(handle).run)
    wait.until(lambda: reasons(stream))
    assert reasons(stream) == [("bad_magic", "first bytes ffff", b"\xff\xff")]


def test_lone_failing_record_does_not_take_later_records_with_it(stream: Stream) -> None:
    tries: list[int] = []

    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        tries.append(len(records))
        if records[0].offset == 0:
            if len(tries) == 3:
                stream.produce(b"late 1", b"late 2")
                conn.execute("select pg_sleep(0.3)")  # by now the client has fetched them
            raise ValueError
        return record_effects(conn, records)

    stream.produce(b"bad")
    stream.start(stream.loop(handle).run)
    stream.until_effects(2)
    assert stream.effects() == [b"late 1", b"late 2"]
    assert [value for _, _, value in reasons(stream)] == [b"bad"]


def test_dead_letter_keeps_key_bytes_headers_and_origin(stream: Stream) -> None:
    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        return [DeadLetter(r, "unknown_schema", "fingerprint 00") for r in records]

    stream.topics.produce(stream.topic, b"k", b"bytes", [("traceparent", b"00-1")])
    stream.topics.produce(stream.topic, None, None)
    stream.topics.flush()
    stream.start(stream.loop(handle).run)
    found = wait.until(lambda: len(letters(stream)) == 2 and letters(stream))
    key, value, headers = next(m for m in found if m[0] == b"k")
    assert (key, value) == (b"k", b"bytes")
    assert dict(headers) == {
        "relay_reason": b"unknown_schema",
        "relay_detail": b"fingerprint 00",
        "relay_source_topic": stream.topic.encode(),
        "relay_source_partition": b"0",
        "relay_source_offset": b"0",
        "traceparent": b"00-1",
    }
    assert next(m for m in found if m[0] is None)[1] is None
    assert stream.rows("select distinct topic from matcher.outbox") == [(f"{stream.topic}.dlq",)]


def test_what_a_handler_announces_leaves_with_its_commit_or_not_at_all(stream: Stream) -> None:
    tries = iter([Busy("later"), None])

    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[Leaving]:
        record_effects(conn, records)
        if (busy := next(tries)) is not None:
            raise busy
        letters = [DeadLetter(r, "odd") for r in records]
        return [OutMessage("told", b"k", b"news"), *letters]

    stream.produce(b"1")
    stream.start(stream.loop(handle).run)
    stream.until_effects(1)
    assert sorted(stream.rows("select topic from matcher.outbox")) == [
        (f"{stream.topic}.dlq",),
        ("told",),
    ]
    assert stream.rows("select next_offset from matcher.position") == [(1,)]


def test_dead_letter_larger_than_an_outbox_row_is_kept_whole(stream: Stream) -> None:
    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        record_effects(conn, [r for r in records if r.value == b"fine"])
        return [DeadLetter(r, "oversized") for r in records if r.value != b"fine"]

    big = stream.topics.create("big", 1, {"max.message.bytes": "3000000"})
    stream.topic = big
    stream.produce(b"\0" * 1_500_000, b"fine")
    stream.start(stream.loop(handle).run)
    stream.until_effects(1)
    [(payload,)] = stream.rows("select payload from matcher.outbox_dead")
    [(_, value, headers)] = unpack(payload)
    assert value == b"\0" * 1_500_000
    assert dict(headers)["relay_reason"] == b"oversized"


def test_database_connection_cut_in_a_batch_changes_nothing(stream: Stream) -> None:
    cuts = iter(range(3))

    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        record_effects(conn, records)
        for _ in cuts:
            stream.database.owner.execute(
                "select pg_terminate_backend(%s)", (conn.info.backend_pid,)
            )
            break
        return []

    values = [f"{n}".encode() for n in range(300)]
    stream.produce(*values)
    stream.start(stream.loop(handle, max_records=50).run)
    stream.until_effects(300)
    assert stream.effects() == values


def test_stop_is_quick_and_leaves_the_group(stream: Stream) -> None:
    stream.produce(*[b"x"] * 1000)
    loop = stream.loop()
    thread = stream.start(loop.run)
    stream.until_effects(1)
    wait.until(lambda: loop.ready() is None)
    started = time.monotonic()
    stream.stop.set()
    thread.join(10)
    assert time.monotonic() - started < 3
    assert loop.ready() == "database: stopped"


def test_loop_says_what_is_missing_until_it_runs(stream: Stream) -> None:
    loop = stream.loop()
    assert loop.ready() == "database: not connected yet"
    stream.start(loop.run)
    wait.until(lambda: loop.ready() is None, describe=loop.ready)
    assert loop.age() < 5


def letters(
    stream: Stream,
) -> list[Unpacked]:
    rows = stream.rows("select payload from matcher.outbox order by id")
    return [message for (payload,) in rows for message in unpack(payload)]


def reasons(stream: Stream) -> list[tuple[str, str, bytes | None]]:
    found = [(dict(headers), value) for _, value, headers in letters(stream)]
    return [(h["relay_reason"].decode(), h["relay_detail"].decode(), v) for h, v in found]


def test_later_records_are_read_while_the_database_works_on_the_first(stream: Stream) -> None:
    prepared: list[int] = []
    batches: list[tuple[int, list[object]]] = []

    def read_ahead(record: Record) -> None:
        prepared.append(record.offset)
        if record.offset % 10 == 9:
            raise ValueError("cannot be read")
        record.ahead = record.offset

    def handle(conn: db.Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        batches.append((records[0].offset, [r.ahead for r in records]))
        conn.execute("select pg_sleep(0.05)")
        return record_effects(conn, records)

    stream.produce(*[b"x"] * 500)
    settings = stream.settings(max_records=100)
    stream.start(ConsumerLoop(settings, stream.connect, handle, read_ahead=read_ahead).run)
    stream.until_effects(500)
    assert sorted(set(prepared)) == prepared  # each once, in order
    assert any(offset > batches[0][0] for offset in prepared)
    for first, ahead in batches:
        read = [None if n % 10 == 9 else n for n in range(first, first + len(ahead))]
        assert all(found in (None, wanted) for found, wanted in zip(ahead, read, strict=True))
    assert any(any(found is not None for found in ahead) for _, ahead in batches[1:])
