"""Appends: commit order, dense numbers, duplicates, first use."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from relay_common.avro import Codec
from relay_common.outbox import unpack
from relay_mailbox.domain.record import Owner

AGENT = "agent:planner"


def numbers(streams, owner: str = AGENT) -> list[int]:
    rows = streams.conn.execute(
        "select r.seq from record r join mailbox m on m.id = r.mailbox_id"
        " where m.owner = %s order by 1",
        (owner,),
    )
    return [row[0] for row in rows]


@pytest.mark.spec("MB-STREAM", "MB-OWNER", "MB-KINDS")
def test_records_of_all_kinds_are_numbered_from_one_on_first_use(streams, new_record):
    kinds = ["message", "waitpoint_event", "early_event"]
    fresh = streams.append(*(new_record(kind=kind) for kind in kinds))
    assert [one.seq for one in fresh] == [1, 2, 3]
    assert [one.record.kind for one in fresh] == kinds


def test_one_batch_for_many_mailboxes_keeps_each_dense_and_in_order(streams, new_record):
    records = [new_record(f"agent:{n % 7}") for n in range(100)]
    fresh = streams.append(*records)
    for number in range(7):
        mine = [one for one in fresh if one.record.to.owner == f"agent:{number}"]
        assert [one.seq for one in mine] == list(range(1, len(mine) + 1))
        assert [one.record for one in mine] == [
            r for r in records if r.to.owner == f"agent:{number}"
        ]


def test_a_replayed_batch_appends_nothing(streams, new_record):
    records = [new_record() for _ in range(5)]
    streams.append(*records)
    assert streams.append(*records, new_record()) != []
    assert numbers(streams) == [1, 2, 3, 4, 5, 6]


def test_the_same_message_twice_in_a_batch_is_one_record(streams, new_record):
    record = new_record()
    assert [one.seq for one in streams.append(record, record, new_record())] == [1, 2]


@pytest.mark.spec("MB-AT-LEAST-ONCE")
def test_a_repeat_is_recognised_as_long_as_its_record_is_retained(streams, new_record, clock):
    record = new_record()
    streams.append(record)
    for days in (1, 2, 3):
        clock.shift(timedelta(days=days))
        assert len(streams.append(record, new_record())) == 1


def test_repeats_to_an_old_and_a_young_mailbox_in_one_batch_are_recognised(
    streams, new_record, clock
):
    """Each is looked for from its own mailbox's oldest record on (ADR 15)."""
    old = [new_record("agent:old") for _ in range(2)]
    streams.append(*old)
    clock.shift(timedelta(days=4))
    young = [new_record("agent:young") for _ in range(2)]
    streams.append(*young)
    clock.shift(timedelta(days=1, hours=12))
    batch = [young[0], old[0], new_record("agent:new"), young[1], old[1]]
    assert [one.record.to.owner for one in streams.append(*batch)] == ["agent:new"]


def test_a_repeat_is_recognised_for_a_day_whatever_the_count_took_away(
    streams, new_record, database
):
    database.owner.execute(
        "insert into mailbox.tenant_setting (tenant, environment, max_records)"
        " values ('acme', 'test', 1)"
    )
    records = [new_record() for _ in range(5)]
    streams.append(*records)
    assert streams.one("select oldest from mailbox") == 5
    assert streams.append(*records) == []


def test_the_same_message_for_two_owners_is_two_records(streams, new_record):
    message = uuid.uuid4().bytes
    fresh = streams.append(
        new_record("agent:a", message_id=message), new_record("agent:b", message_id=message)
    )
    assert [one.seq for one in fresh] == [1, 1]


def test_the_same_owner_in_two_tenants_has_two_mailboxes(streams, new_record):
    """Case M31."""
    streams.append(
        new_record(to=Owner("acme", "test", AGENT)), new_record(to=Owner("other", "test", AGENT))
    )
    assert streams.one("select count(*) from mailbox") == 2


@pytest.mark.spec("MB-STREAM")
def test_a_hundred_rolled_back_appends_leave_no_hole(streams, new_record):
    """Case M3."""
    for _ in range(100):
        with streams.conn.transaction(force_rollback=True):
            streams.appending.append(streams.conn, [new_record()])
    assert [one.seq for one in streams.append(new_record())] == [1]


def test_a_savepoint_that_is_rolled_back_leaves_no_hole(streams, new_record):
    """Case M17."""
    with streams.conn.transaction():
        streams.appending.append(streams.conn, [new_record()])
        with streams.conn.transaction(force_rollback=True):
            streams.appending.append(streams.conn, [new_record()])
        streams.appending.append(streams.conn, [new_record()])
    assert numbers(streams) == [1, 2]


def test_a_stream_far_along_appends_like_any_other(streams, new_record, database):
    """Case M12."""
    streams.append(new_record())
    database.owner.execute("update mailbox.mailbox set head = 30000000, oldest = 30000001")
    assert [one.seq for one in streams.append(new_record())] == [30_000_001]


def in_parallel(database, count: int, work) -> list[object]:
    """Run `work(connection, number)` in `count` threads released together."""
    barrier = threading.Barrier(count)

    def one(number: int) -> object:
        with database.connect("relay_mailbox_stream") as conn:
            barrier.wait()
            return work(conn, number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


@pytest.mark.spec("MB-OWNER", "MB-STREAM")
def test_twenty_parallel_first_appends_make_one_mailbox_with_twenty_records(
    streams, new_record, database
):
    """Case M9."""

    def append(conn, _number):
        with conn.transaction():
            return streams.appending.append(conn, [new_record()])[0].seq

    assert sorted(in_parallel(database, 20, append)) == list(range(1, 21))
    assert streams.one("select count(*) from mailbox") == 1


@pytest.mark.spec("MB-AT-LEAST-ONCE")
def test_the_same_message_racing_is_one_record_and_no_hole(streams, new_record, database):
    """Reference test 8."""
    shared = [new_record() for _ in range(20)]

    def append(conn, number):
        order = shared if number % 2 else list(reversed(shared))
        for record in order:
            with conn.transaction():
                streams.appending.append(conn, [record, new_record()])

    in_parallel(database, 6, append)
    found = numbers(streams)
    assert found == list(range(1, 20 + 6 * 20 + 1))
    twice = streams.one(
        "select count(*) from (select message_id from record group by 1 having count(*) > 1) x"
    )
    assert twice == 0


def test_batches_that_cross_lock_in_one_order(streams, new_record, database):
    """Reference test 9."""
    owners = [f"agent:{n}" for n in range(30)]

    def append(conn, number):
        for turn in range(15):
            mixed = sorted(owners, key=lambda owner: hash((owner, number, turn)))[:12]
            with conn.transaction():
                streams.appending.append(conn, [new_record(owner) for owner in mixed])
        return 15

    assert in_parallel(database, 6, append) == [15] * 6
    for owner in owners:
        found = numbers(streams, owner)
        assert found == list(range(1, len(found) + 1))


@pytest.mark.spec("MB-HINT")
def test_a_batch_wakes_each_owner_once_and_says_nothing_else(streams, new_record):
    secret = b'{"text":"canary-7261"}'
    streams.append(*(new_record(f"agent:{n % 2}", body=secret, sender=None) for n in range(10)))
    rows = streams.conn.execute("select topic, payload from outbox order by id").fetchall()
    assert {topic for topic, _ in rows} == {"relay.hints"}
    values = [value for _, payload in rows for _, value, _ in unpack(payload)]
    hints = [Codec().decode(value)[1] for value in values]
    assert sorted(hint["owner"] for hint in hints) == ["agent:0", "agent:1"]
    assert all(set(hint) == {"tenant", "environment", "owner", "occurred_at"} for hint in hints)
    assert b"canary" not in b"".join(values)


@pytest.mark.parametrize("given", [{"wakes": False}, {"state": "held"}, {"state": "acked"}])
def test_what_nobody_can_lease_wakes_nobody(streams, new_record, given):
    streams.append(new_record(**given))
    assert streams.one("select count(*) from outbox") == 0


def test_appended_at_never_goes_back_when_the_clock_does(streams, new_record, clock):
    """Reference test 7."""
    first = streams.append(new_record())[0]
    clock.shift(timedelta(hours=-1))
    second = streams.append(new_record())[0]
    assert second.appended_at >= first.appended_at


def test_an_append_beyond_all_slices_is_kept(streams, new_record, clock):
    clock.shift(timedelta(days=400))
    assert [one.seq for one in streams.append(new_record())] == [1]
