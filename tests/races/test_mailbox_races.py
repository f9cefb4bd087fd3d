"""Mailbox under concurrency: slow writers, writers elsewhere, two leasers, append beside lease."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import msgspec.structs
import psycopg
import pytest
from relay_common import queries
from relay_common.db import Connection
from relay_common.testing.wait import until
from relay_mailbox.domain.record import NewRecord, Owner
from relay_mailbox.store.appends import append_records

READ = queries.load("relay_mailbox", "record")["read_page"]
LOCK = queries.load("relay_mailbox", "mailbox")["lock_mailboxes"]
LEASE = queries.load("relay_mailbox", "lease")["lease_records"]
ACK = queries.load("relay_mailbox", "lease")["acknowledge"]
REDRIVE = queries.load("relay_mailbox", "dead_letter")["redrive"]
AGENT = "agent:planner"
TENANT = {"tenant": "acme", "environment": "prod"}


def a_record(owner: str = AGENT) -> NewRecord:
    return NewRecord(
        Owner("acme", "prod", owner), uuid.uuid4().bytes, "message", "note", "available", b"{}"
    )


def superseding(owner: str, message_id: bytes) -> NewRecord:
    return msgspec.structs.replace(a_record(owner), supersedes=message_id)


def append(conn: Connection, *owners: str) -> list[int]:
    with conn.transaction():
        return [one.seq for one in append_records(conn, [a_record(o) for o in owners or (AGENT,)])]


def seen(conn: Connection, owner: str = AGENT) -> list[int]:
    given = {**TENANT, "owner": owner, "since": 0, "limit": 1000, "max_bytes": 1 << 20}
    return [row[5] for row in conn.execute(READ, given) if row[5] is not None]


@pytest.fixture
def conns(database) -> list[Connection]:
    return [database.connect("relay_mailbox_stream") for _ in range(4)]


@contextmanager
def in_background(work, *arguments):
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work, *arguments)


@pytest.mark.spec("MB-STREAM", "MB-ORDER")
def test_behind_a_slow_append_the_next_one_waits_and_the_reader_sees_neither(conns, database):
    """Cases M1 and M2; reference test 3."""
    slow, fast, reader, other = conns
    append(slow)
    with slow.transaction():
        append_records(slow, [a_record()])
        with in_background(append, fast) as second:
            until(lambda: database.waits_for_a_lock(fast), 10)
            assert seen(reader) == [1]
            assert append(other, "agent:other") == [1]
            assert seen(reader, "agent:other") == [1]
            slow.execute("commit; begin")
            assert second.result(10) == [3]
    assert seen(reader) == [1, 2, 3]


def test_an_append_that_gives_up_lets_the_next_one_take_its_number(conns, database):
    slow, fast, reader, _ = conns
    append(slow)
    with slow.transaction(force_rollback=True):
        append_records(slow, [a_record()])
        with in_background(append, fast) as second:
            until(lambda: database.waits_for_a_lock(fast), 10)
            slow.execute("rollback; begin")
            assert second.result(10) == [2]
    assert seen(reader) == [1, 2]


@pytest.mark.spec("MB-STREAM")
def test_nobody_else_can_hold_the_mark_back(conns, database, postgres_url):
    """Others' open transactions, here and in another database; sixty idle sessions (case M6)."""
    conn, writer, reader, _ = conns
    append(conn)
    elsewhere = psycopg.connect(postgres_url)
    idle = [database.connect("relay_mailbox_stream") for _ in range(60)]
    try:
        elsewhere.execute("create temporary table somebody_writes (n int)")
        for session in idle:
            session.execute("begin")
            session.execute("select pg_advisory_xact_lock_shared(1, 2)")
        with writer.transaction():
            append_records(writer, [a_record("agent:elsewhere")])
            assert append(conn) == [2]
            assert seen(reader) == [1, 2]
    finally:
        elsewhere.close()


def lease_all(conn: Connection, mailbox_id: int, released: threading.Barrier) -> list[list[int]]:
    """Lease one to three records at a time until nothing is left, each in its own transaction."""
    got: list[list[int]] = []
    released.wait()
    while True:
        wish = {
            **TENANT,
            "mailbox_ids": [mailbox_id],
            "wanted": [1 + len(got) % 3],
            "seconds": [600],
            "tokens": [uuid.uuid4()],
        }
        with conn.transaction():
            conn.execute(LOCK, {**TENANT, "owners": [AGENT]})
            rows = conn.execute(LEASE, wish).fetchall()
        if not rows:
            return got
        got.append([row[1] for row in rows])


@pytest.mark.spec("MB-LEASE")
@pytest.mark.timeout(240)
def test_two_leasers_ten_thousand_times_share_nothing_and_keep_the_order(conns):
    """Reference test 14."""
    first, second, *_ = conns
    for _ in range(20):
        append(first, *[AGENT] * 1000)
    mailbox_id = first.execute("select id from mailbox").fetchone()[0]
    released = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        leasers = [pool.submit(lease_all, c, mailbox_id, released) for c in (first, second)]
        leases = [leaser.result() for leaser in leasers]
    assert sum(map(len, leases)) >= 10_000
    for mine in leases:
        flat = [seq for lease in mine for seq in lease]
        assert flat == sorted(flat)
        assert len(mine) > 100
    everything = sorted(seq for mine in leases for lease in mine for seq in lease)
    assert everything == list(range(1, 20_001))


@pytest.mark.spec("MB-ACK")
def test_the_second_of_two_ackers_is_told_that_it_is_acked_already(conns, database):
    first, second, *_ = conns
    append(first)
    mailbox_id = first.execute("select id from mailbox").fetchone()[0]
    token = uuid.uuid4()
    wish = {**TENANT, "mailbox_ids": [mailbox_id], "wanted": [1], "seconds": [60]}
    first.execute(LEASE, {**wish, "tokens": [token]})
    done = {**TENANT, "mailbox_ids": [mailbox_id], "tokens": [token], "seqs": [1]}
    with first.transaction():
        assert first.execute(ACK, done).fetchall() == [("acked",)]
        with in_background(lambda: second.execute(ACK, done).fetchall()) as again:
            until(lambda: database.waits_for_a_lock(second), 10)
            first.execute("commit; begin")
            assert again.result(10) == [("already_acked",)]


def test_appends_leases_and_acks_of_one_mailbox_never_deadlock(conns, database):
    """All three at once for a while: nobody is refused, nothing is lost."""
    appender, leaser, acker, _ = conns
    append(appender)
    mailbox_id = appender.execute("select id from mailbox").fetchone()[0]
    leased: list[tuple[uuid.UUID, int]] = []
    finished = threading.Event()

    def work() -> None:
        for _ in range(150):
            append(appender, AGENT, "agent:other", AGENT)
        finished.set()

    def lease() -> int:
        count = 0
        while not (finished.is_set() and count >= 301):
            token = uuid.uuid4()
            wish = {**TENANT, "mailbox_ids": [mailbox_id], "wanted": [7], "seconds": [60]}
            with leaser.transaction():
                leaser.execute(LOCK, {**TENANT, "owners": [AGENT]})
                rows = leaser.execute(LEASE, {**wish, "tokens": [token]}).fetchall()
            leased.extend((token, row[1]) for row in rows)
            count += len(rows)
        return count

    def acknowledge(leasing) -> list[str]:
        results: list[str] = []
        while not (leasing.done() and len(results) == len(leased)):
            batch = leased[len(results) : len(results) + 50]
            if batch:
                tokens, seqs = [t for t, _ in batch], [s for _, s in batch]
                given = {**TENANT, "mailbox_ids": [mailbox_id] * len(batch)}
                rows = acker.execute(ACK, {**given, "tokens": tokens, "seqs": seqs})
                results += [row[0] for row in rows]
        return results

    with ThreadPoolExecutor(3) as pool:
        working = pool.submit(work)
        leasing = pool.submit(lease)
        acking = pool.submit(acknowledge, leasing)
        working.result(100)
        assert leasing.result(100) == 301
        assert acking.result(100) == ["acked"] * 301
    assert (
        database.owner.execute(
            "select count(*) from mailbox.delivery d where d.mailbox_id = %s", (mailbox_id,)
        ).fetchone()[0]
        == 0
    )


@pytest.mark.spec("ES-CLOSE")
def test_what_is_superseded_while_it_is_acknowledged_is_acked_once_and_nobody_waits_in_a_circle(
    conns, database
):
    """Both go through the mailboxes in one order, whatever order the batch has."""
    appender, acker, *_ = conns
    released = threading.Barrier(2)
    results: list[str] = []
    for number in range(60):
        owners = [f"agent:{number}.{n % 2}" for n in range(40)]
        records = [a_record(owner) for owner in owners]
        with appender.transaction():
            fresh = append_records(appender, records)
        boxes = {one.record.to.owner: one.mailbox_id for one in fresh}
        token = uuid.uuid4()
        for owner, box in boxes.items():
            with acker.transaction():
                acker.execute(LOCK, {**TENANT, "owners": [owner]})
                wish = {"mailbox_ids": [box], "wanted": [20], "seconds": [60], "tokens": [token]}
                assert len(acker.execute(LEASE, {**TENANT, **wish}).fetchall()) == 20

        def supersede(records=records) -> None:
            settled = [superseding(r.to.owner, r.message_id) for r in reversed(records)]
            released.wait(30)
            with appender.transaction():
                append_records(appender, settled)

        done = {
            "mailbox_ids": [one.mailbox_id for one in fresh],
            "tokens": [token] * len(fresh),
            "seqs": [one.seq for one in fresh],
        }
        with in_background(supersede) as superseded:
            released.wait(30)
            results += [row[0] for row in acker.execute(ACK, {**TENANT, **done}).fetchall()]
            superseded.result(60)
    assert set(results) == {"acked", "already_acked"}, "each was first, sometimes"
    left = "select count(*) from mailbox.delivery where state = 'leased'"
    assert database.owner.execute(left).fetchone()[0] == 0


@pytest.mark.spec("ES-CLOSE")
def test_what_is_superseded_while_it_is_redriven_is_not_leasable(conns, database):
    """Whichever of the two has the head first."""
    appender, redriver, *_ = conns
    released = threading.Barrier(2)
    found: set[int] = set()
    for number in range(200):
        asked = a_record(f"agent:{number}")
        with appender.transaction():
            box = append_records(appender, [asked])[0].mailbox_id
            appender.execute("update delivery set deliveries = 9 where mailbox_id = %s", (box,))
            died = "select dead_letter_exhausted_v1('acme', 'prod', %s, 1, 1, relay.now())"
            assert appender.execute(died, (box,)).fetchone() == (1,)

        def supersede(asked=asked) -> None:
            settled = superseding(asked.to.owner, asked.message_id)
            released.wait(30)
            with appender.transaction():
                append_records(appender, [settled])

        with in_background(supersede) as superseded:
            released.wait(30)
            with redriver.transaction():
                redriver.execute(LOCK, {**TENANT, "owners": [asked.to.owner]})
                given = {**TENANT, "mailbox_id": box, "seqs": None, "wanted": 10}
                found.add(redriver.execute(REDRIVE, given).fetchone()[0])
            superseded.result(60)
    assert found == {0, 1}, "each was first, sometimes"
    left = "select count(*) from mailbox.delivery where seq = 1"
    assert database.owner.execute(left).fetchone()[0] == 0
    assert database.owner.execute("select count(*) from mailbox.dead_letter").fetchone()[0] == 0
