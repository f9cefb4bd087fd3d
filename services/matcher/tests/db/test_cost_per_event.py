"""The regression guard of the hot path: counts that are the same on every machine, no times.

What a batch costs is counted where it happens: statements and round trips in the protocol trace of
the connection, rows and scans in the transaction's own statistics, WAL in those of the backend.
"""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from psycopg import pq

ROWS = """
select relname, n_tup_ins + n_tup_upd + n_tup_del, coalesce(seq_scan, 0), coalesce(idx_scan, 0)
from pg_stat_xact_user_tables where schemaname = 'matcher'
"""
WAL = "select wal_records, wal_bytes, wal_fpi from pg_stat_get_backend_wal(pg_backend_pid())"
# Per 1,000 events, in bytes; what was measured, and a tenth on top.
WAL_OF_A_QUIET_EVENT = 520
WAL_OF_A_MATCH = 3_000
MARGIN = 1.1
ROUNDS = 3
WARM = 6  # from the sixth execution on, a statement is prepared


@dataclass
class Cost:
    """What one batch cost."""

    statements: int
    round_trips: int
    written: Counter[str]
    seq_scans: Counter[str]
    idx_scans: Counter[str]
    wal_records: int
    wal_bytes: int
    full_pages: int


def cost_of(kit: Any, values: Sequence[bytes]) -> Cost:
    """Run one batch and count what it cost, its commit aside."""
    conn = kit.stream
    before = conn.execute(WAL).fetchone()
    with conn.transaction():
        protocol = traced(kit, values)
        rows = conn.execute(ROWS).fetchall()
    conn.execute("select pg_stat_force_next_flush()")
    after = conn.execute(WAL).fetchone()
    wal = [int(b - a) for a, b in zip(before, after, strict=True)]
    slices = [(name if not name.startswith("event_2") else "event", *rest) for name, *rest in rows]
    counted = [Counter[str]() for _ in range(3)]
    for name, *numbers in slices:
        for counter, number in zip(counted, numbers, strict=True):
            counter[name] += number
    sent = protocol["Execute"] + protocol["Query"]
    return Cost(sent, protocol["ReadyForQuery"], *counted, *wal)


def traced(kit: Any, values: Sequence[bytes]) -> Counter[str]:
    """Run one batch; return how often each message of the protocol went over."""
    connection = kit.stream.pgconn
    with tempfile.TemporaryFile() as trace:
        connection.trace(trace.fileno())
        connection.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)
        letters = kit.consumer(kit.stream, [kit.record(value) for value in values])
        connection.untrace()
        assert letters == []
        os.lseek(trace.fileno(), 0, os.SEEK_SET)
        lines = trace.read().decode(errors="replace").splitlines()
    return Counter(fields[2] for line in lines if len(fields := line.split("\t")) > 2)


async def costs(kit: Any, size: int, *, matching: bool) -> list[Cost]:
    """Return the cost of some batches of `size` events, once plans and pages are warm."""
    found: list[Cost] = []
    for number in range(WARM + ROUNDS):
        events = size if number >= WARM else 2
        keys = [f"{size}-{matching}-{number}-{n}" for n in range(events)]
        if matching:
            opened = await asyncio.gather(*(kit.open(key) for key in keys))
            assert {answer.status_code for answer in opened} == {201}
        found.append(cost_of(kit, [kit.value(key) for key in keys]))
    return found[WARM:]


@pytest.mark.parametrize(("matching", "most"), [(False, (7, 4)), (True, (10, 5))])
async def test_statements_and_round_trips_do_not_depend_on_the_batch(matcher, matching, most):
    small = await costs(matcher, 20, matching=matching)
    large = await costs(matcher, 200, matching=matching)
    statements = {cost.statements for cost in (*small, *large)}
    round_trips = {cost.round_trips for cost in (*small, *large)}
    assert len(statements) == 1
    assert len(round_trips) == 1
    assert max(statements) <= most[0]
    assert max(round_trips) <= most[1]


async def test_quiet_event_writes_its_own_row_and_nothing_else(matcher):
    for cost in await costs(matcher, 200, matching=False):
        assert +cost.written == {"event": 200}
        # One probe for its waitpoints, one in the current and one in the previous slice.
        assert cost.idx_scans["waitpoint"] == 200
        assert cost.idx_scans["event"] <= 2 * 200
        assert cost.seq_scans["waitpoint"] == cost.seq_scans["event"] == 0


async def test_match_writes_event_and_waitpoint_once(matcher):
    for cost in await costs(matcher, 200, matching=True):
        written = Counter(cost.written)
        assert written.pop("event") == 200
        assert written.pop("waitpoint") == 200
        assert written.pop("closed_delta") == 1
        assert written.pop("outbox") <= 2
        assert not +written
        # Found by its key, locked and resolved where it lies.
        assert cost.idx_scans["waitpoint"] == 200
        assert not any(cost.seq_scans[name] for name in ("waitpoint", "event", "outbox"))


@pytest.mark.parametrize(
    ("matching", "allowed"), [(False, WAL_OF_A_QUIET_EVENT), (True, WAL_OF_A_MATCH)]
)
async def test_log_written_per_event_stays_small(matcher, matching, allowed):
    if matcher.stream.info.server_version < 180000:
        pytest.skip("a backend's own WAL is counted from PostgreSQL 18 on")
    # A checkpoint makes the next touch of each page a full image; the leanest batch had none.
    leanest = min(c.wal_bytes for c in await costs(matcher, 200, matching=matching))
    assert leanest / 200 <= allowed * MARGIN
