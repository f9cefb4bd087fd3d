"""Postgres goes back in time: every way ends in a new epoch, and readers converge (design D12)."""

import itertools
import shutil
import subprocess
import threading
import uuid
from functools import partial
from pathlib import Path

import psycopg
import pytest
from relay_common.db import connect, role_conninfo
from relay_common.testing import wait
from relay_common.testing.databases import allow_logins
from relay_devstack.postgres import PostgresServer
from relay_devstack.secrets import kept_secret, write_private
from relay_mailbox.domain.cursor import Stream, resync_reason
from relay_mailbox.domain.record import NewRecord, Owner
from relay_mailbox.store.appends import append_records, recognise_incarnation

AGENT = "agent:planner"
HOLES = """
select m.owner, m.head, count(r.seq) from mailbox m left join record r on r.mailbox_id = m.id
group by 1, 2 having m.head <> count(r.seq) or min(r.seq) <> 1 or max(r.seq) <> m.head
"""


def stream_side(server: PostgresServer, database: str = "relay"):
    """Return a connection as the consumer makes one: it looks whether time went back."""
    url = server.database_url(database)
    password = psycopg.conninfo.conninfo_to_dict(url)["password"]
    conn = connect(role_conninfo(url, "relay_mailbox_stream", str(password)), "test")
    recognise_incarnation(conn)
    return conn


def fill(conn, count: int) -> list[uuid.UUID]:
    """Append `count` records and return their ids."""
    ids = [uuid.uuid4() for _ in range(count)]
    to = Owner("acme", "test", AGENT)
    records = [NewRecord(to, one.bytes, "message", "note", "available", b"{}") for one in ids]
    with conn.transaction():
        append_records(conn, records)
    return ids


def standing(conn) -> Stream:
    return Stream(*conn.execute("select epoch, oldest, head from mailbox").fetchone())


def is_later_than(conn, epoch: int) -> bool:
    """Say whether the clock has passed the second that `epoch` was named for."""
    seconds = "select extract(epoch from relay.now() - '2020-01-01T00:00:00Z')::bigint"
    return conn.execute(seconds).fetchone()[0] > epoch


def tool(server: PostgresServer, name: str, *arguments: str) -> None:
    subprocess.run([str(server.binaries() / name), *arguments], check=True, capture_output=True)


@pytest.mark.spec("MB-RESYNC", "MB-STREAM")
@pytest.mark.timeout(300)
def test_a_dump_restored_into_another_cluster_starts_a_new_epoch(server, small, tmp_path):
    """Cases M16 and M24; reference test 10."""
    dump = str(tmp_path / "dump")
    with stream_side(server) as conn:
        fill(conn, 40)
        tool(server, "pg_dump", "-Fc", "-f", dump, server.database_url("relay"))
        fill(conn, 5)
        before = standing(conn)
    other = PostgresServer(tmp_path / "two", small)
    other.start()
    try:
        with psycopg.connect(other.url, autocommit=True) as conn:
            allow_logins(conn, other.url)
        epochs = {before.epoch}
        for database in ("first", "second"):
            tool(other, "createdb", f"--maintenance-db={other.url}", database)
            tool(other, "pg_restore", "-d", other.database_url(database), dump)
            paths = (
                "alter role relay_mailbox_stream in database {} set search_path = mailbox, relay"
            )
            with psycopg.connect(other.database_url(database), autocommit=True) as owner:
                owner.execute(paths.format(database))
            with stream_side(other, database) as conn:
                assert resync_reason(standing(conn), 45, before.epoch) == "ahead_of_head"
                fill(conn, 6)
                after = standing(conn)
                assert after.head == 46
                assert resync_reason(after, 45, before.epoch) == "epoch_changed"
                assert after.epoch > before.epoch
                epochs.add(after.epoch)
                wait.until(partial(is_later_than, conn, after.epoch), 5)
        assert len(epochs) == 3
    finally:
        other.destroy()


@pytest.mark.spec("MB-RESYNC", "MB-STREAM")
@pytest.mark.timeout(300)
def test_a_lagging_standby_that_is_promoted_starts_a_new_epoch(server, tmp_path):
    """Case M20; reference test 11."""
    with stream_side(server) as conn:
        fill(conn, 40)
        before = standing(conn)
    server.stop()
    lagging = copied(server.data, tmp_path / "lagging")
    server.start()
    with stream_side(server) as conn:
        fill(conn, 5)
    server.stop()
    put_back(lagging, server.data)
    (server.data / "standby.signal").touch()
    server.start()
    with psycopg.connect(server.url, autocommit=True) as conn:
        assert conn.execute("select pg_is_in_recovery(), pg_promote()").fetchone() == (True, True)
    with stream_side(server) as conn:
        fill(conn, 1)
        after = standing(conn)
    assert after.head == 41
    assert after.epoch > before.epoch
    assert resync_reason(after, 41, before.epoch) == "epoch_changed"


@pytest.mark.spec("MB-RESYNC", "MB-AT-LEAST-ONCE")
@pytest.mark.timeout(400)
def test_a_copied_data_directory_is_found_out_by_the_topic(
    server, tmp_path, shared, process_on, producing, as_caller
):
    """Neither timeline nor identifier changes: only Kafka knows (reference test 12)."""
    process = process_on(server)
    caller = as_caller(process)
    group = f"{shared['RELAY_TOPIC_PREFIX']}same"
    process.start(group=group)
    ids = producing.send(AGENT, 40)
    wait.until(lambda: caller.get()["head"] == 40, 30)
    process.stop()
    server.stop()
    snapshot = copied(server.data, tmp_path / "snapshot")

    server.start()
    process.start(group=group)
    ids += producing.send(AGENT, 5)
    wait.until(lambda: caller.get()["head"] == 45, 30)
    before = caller.get()
    seen = {record["id"] for record in caller.get("/records")["records"]}
    assert process.stop() == 0
    server.stop()

    put_back(snapshot, server.data)
    server.start()
    process.start(group=group)
    wait.until(lambda: caller.get()["head"] == 45, 30)
    after = caller.get()
    assert after["epoch"] > before["epoch"]
    refused = caller.get(f"/records?since=45&epoch={before['epoch']}")
    assert (refused["code"], refused["reason"]) == ("resync_required", "epoch_changed")
    again = caller.get("/records")["records"]
    assert {record["id"] for record in again} == seen
    assert [record["seq"] for record in again] == list(range(1, 46))

    process.stop()
    process.start(group=group)
    producing.send(AGENT, 1)
    wait.until(lambda: caller.get()["head"] == 46, 30)
    assert caller.get()["epoch"] == after["epoch"]


def copied(data: Path, target: Path) -> Path:
    """Return a copy of a data directory as a disk snapshot makes it: owners and all."""
    subprocess.run(["cp", "-a", str(data), str(target)], check=True)
    return target


def put_back(snapshot: Path, data: Path) -> None:
    """Replace `data` by `snapshot`."""
    shutil.rmtree(data)
    subprocess.run(["cp", "-a", str(snapshot), str(data)], check=True)


class Load:
    """Writers who append to whoever is the primary, and note what was acknowledged."""

    def __init__(self, primary: PostgresServer) -> None:
        self.primary = primary
        self.stop = threading.Event()
        self.given: dict[tuple[str, int, int], bytes] = {}
        self.twice: list[tuple[str, int, int]] = []
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(3)]

    def __enter__(self) -> "Load":
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def run(self, number: int) -> None:
        """Append until the stop; whatever a failover does to the connection is tried again."""
        turns = itertools.count()
        while not self.stop.is_set():
            try:
                with stream_side(self.primary) as conn:
                    while not self.stop.is_set():
                        self.append(conn, f"agent:{number}-{next(turns)}")
            except psycopg.Error:
                self.stop.wait(0.05)

    def append(self, conn, newcomer: str) -> None:
        """Append to a mailbox that all share and to a new one."""
        owners = [AGENT, newcomer]
        records = [
            NewRecord(
                Owner("acme", "test", o), uuid.uuid4().bytes, "message", "n", "available", b"{}"
            )
            for o in owners
        ]
        with conn.transaction():
            fresh = append_records(conn, records)
        for one in fresh:
            place = (one.record.to.owner, one.epoch, one.seq)
            if self.given.setdefault(place, one.record.message_id) != one.record.message_id:
                self.twice.append(place)

    def goes_on(self) -> Stream:
        """Wait until much more was acknowledged; return where the shared stream stands."""
        before = len(self.given)
        wait.until(lambda: len(self.given) > before + 300, 60)
        with stream_side(self.primary) as conn:
            return shared_standing(conn)


def shared_standing(conn) -> Stream:
    query = "select epoch, oldest, head from mailbox where owner = %s"
    return Stream(*conn.execute(query, (AGENT,)).fetchone())


def rebuild(standby: PostgresServer, primary: PostgresServer) -> None:
    """Make `standby` a streaming copy of `primary`; return when it follows."""
    found = standby.data.stat()
    shutil.rmtree(standby.data)
    tool(primary, "pg_basebackup", "-R", "-c", "fast", "-D", str(standby.data), "-d", primary.url)
    owner = f"{found.st_uid}:{found.st_gid}"
    subprocess.run(["chown", "-R", owner, str(standby.data)], check=True)
    standby.start()
    with psycopg.connect(primary.url, autocommit=True) as conn:
        follows = "select count(*) from pg_stat_replication where state = 'streaming'"
        wait.until(lambda: conn.execute(follows).fetchone()[0] == 1, 30)


def fail_over(load: Load, to: PostgresServer) -> None:
    """End the primary in the middle of its work and promote its standby."""
    load.primary.stop("immediate")
    with psycopg.connect(to.url, autocommit=True) as conn:
        assert conn.execute("select pg_promote()").fetchone() == (True,)
    load.primary = to


@pytest.mark.spec("MB-STREAM", "MB-RESYNC")
@pytest.mark.timeout(300)
def test_failing_over_and_back_under_load_gives_no_number_twice(server, small, tmp_path):
    """Case M20: what sequences gave, they skip after a failover; no head is compared with that."""
    other = PostgresServer(tmp_path / "two", small)
    (tmp_path / "two" / "secrets").mkdir(parents=True)
    write_private(
        tmp_path / "two" / "secrets" / "postgres",
        kept_secret(server.state_dir, "postgres").encode(),
    )
    other.start()
    other.stop()
    try:
        with Load(server) as load:
            stood = [load.goes_on()]
            for standby in (other, server):
                rebuild(standby, load.primary)
                fail_over(load, standby)
                stood.append(load.goes_on())
        with stream_side(server) as conn:
            holes = conn.execute(HOLES).fetchall()
            highest, count = conn.execute("select max(id), count(*) from mailbox").fetchone()
    finally:
        other.destroy()
    assert load.twice == []
    assert holes == []
    assert highest > count, "the ids of mailboxes come from a sequence, which jumped"
    epochs = [stream.epoch for stream in stood]
    assert epochs == sorted(set(epochs))
    assert {epoch for _, epoch, _ in load.given} == set(epochs)
    for before, after in itertools.pairwise(stood):
        assert resync_reason(after, before.head, before.epoch) == "epoch_changed"
