"""One writer at the append function: a process, a connection, a pace.

A child process, `python -m bench.appender DATABASE_URL NAME BOXES SIZE RATE SECONDS`: when the
gate opens it appends RATE records a second for SECONDS, SIZE a transaction, to the mailboxes NAME-0
… NAME-(BOXES - 1) in turn. At the end it prints, for each transaction, the milliseconds from when
it was due to its commit, and from its begin to its commit.

The gate is an advisory lock: connected writers wait at it, so that all of them begin at once.
"""

import sys
import time
from dataclasses import dataclass

import orjson
import psycopg
from relay_mailbox.store.appends import append_records

from bench.processes import Child
from bench.sections.mailbox import record

GATE = 18
ENTER = "select pg_advisory_lock_shared(%s)"


@dataclass(frozen=True, slots=True)
class Load:
    """What one writer appends: `size` records a transaction, `rate` records a second."""

    name: str
    boxes: int
    size: int
    rate: int

    def arguments(self, url: str, seconds: float) -> tuple[str, ...]:
        """Return the command of the process that appends it."""
        given = (url, self.name, self.boxes, self.size, self.rate, seconds)
        return ("bench.appender", *map(str, given))

    def owner(self, number: int) -> str:
        """Return the owner of record `number`."""
        return f"agent:{self.name}-{number % self.boxes}"


@dataclass(frozen=True, slots=True)
class Waits:
    """Milliseconds of each transaction: from when it was due, and from its begin, to its commit."""

    since_due: list[float]
    since_begin: list[float]


def waits_of(child: Child, seconds: float) -> Waits:
    """Return what a writer found when it has ended. Raises RuntimeError when it has failed."""
    if child.process.wait(seconds):
        child.check()
    return Waits(**orjson.loads(child.log.read_bytes().splitlines()[-1]))


def append(conn: psycopg.Connection, load: Load, first: int, count: int) -> float:
    """Append `count` records, `first` the number of the first; return the seconds to the commit."""
    batch = [record(load.owner(first + place)) for place in range(count)]
    begun = time.monotonic()
    with conn.transaction():
        append_records(conn, batch)
    return time.monotonic() - begun


def run(conn: psycopg.Connection, load: Load, seconds: float) -> Waits:
    """Append at the pace for `seconds` from when the gate opens; what is late does not pause."""
    waits = Waits([], [])
    conn.execute(ENTER, (GATE,))
    begin = time.monotonic()
    for first in range(0, int(load.rate * seconds), load.size):
        due = begin + first / load.rate
        time.sleep(max(0.0, due - time.monotonic()))
        if time.monotonic() > begin + seconds:
            break
        waits.since_begin.append(append(conn, load, first, load.size) * 1000)
        waits.since_due.append((time.monotonic() - due) * 1000)
    return waits


if __name__ == "__main__":
    URL, NAME, BOXES, SIZE, RATE, SECONDS = sys.argv[1:]
    LOAD = Load(NAME, int(BOXES), int(SIZE), int(RATE))
    with psycopg.connect(URL, autocommit=True) as CONN:
        print(orjson.dumps(run(CONN, LOAD, float(SECONDS))).decode())
