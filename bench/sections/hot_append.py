"""The hot mailbox beside quiet ones at the append function, each writer on a connection of its own.

Through the topic both streams stand in one consumer's queue; here they share only the database.
"""

import psycopg

from bench.appender import GATE, Load, Waits, append, waits_of
from bench.database import Database, empty_mailboxes
from bench.figures import Figure, percentile
from bench.processes import Child, running, start
from bench.runs import READY_SECONDS, all_alive, until
from bench.sections.mailbox import stream_side, stream_url
from bench.stage import Stage

HOT = Load("hot", boxes=1, size=500, rate=20_000)
QUIET_RATE = 200
ALONE_SECONDS = 20.0
WAITING = """
select count(*) from pg_locks l join pg_database d on d.oid = l.database
where d.datname = current_database() and l.locktype = 'advisory' and not l.granted
"""


def measure(stage: Stage, database: Database) -> list[Figure]:
    """Return the hot writer's rate, and what a quiet append takes alone and beside it."""
    quiet = Load("quiet", stage.profile.quiet_mailboxes, 1, QUIET_RATE)
    seconds = stage.profile.hot_seconds
    empty_mailboxes(database)
    with stream_side(database) as conn:
        for first in range(0, quiet.boxes, HOT.size):
            append(conn, quiet, first, HOT.size)
    [alone] = written(stage, database, [quiet], min(ALONE_SECONDS, seconds))
    hot, beside = written(stage, database, [HOT, quiet], seconds)
    empty_mailboxes(database)
    return [rate_of(hot, seconds), *latencies(quiet, alone, beside)]


def written(stage: Stage, database: Database, loads: list[Load], seconds: float) -> list[Waits]:
    """Append `loads` for `seconds`, all from the same moment; return what each of them waited."""
    url, logs = stream_url(database), stage.folder / "logs"
    with database.owner() as gate:
        gate.execute("select pg_advisory_lock(%s)", (GATE,))
        children = [
            start(load.arguments(url, seconds), {}, logs / f"append-{load.name}.log")
            for load in loads
        ]
        with running(children):
            until(lambda: all_alive(children) and all_wait(gate, children), "writers at the gate")
            gate.execute("select pg_advisory_unlock(%s)", (GATE,))
            return [waits_of(child, seconds + READY_SECONDS) for child in children]


def all_wait(gate: psycopg.Connection, children: list[Child]) -> bool:
    """Return whether every writer waits at the gate."""
    return gate.execute(WAITING).fetchone()[0] == len(children)


def rate_of(hot: Waits, seconds: float) -> Figure:
    """Return the rate that the hot writer reached."""
    rate = len(hot.since_begin) * HOT.size / seconds
    what = f"append function, {HOT.size} a transaction: appended to one mailbox in {seconds:.0f} s"
    took = f"a transaction p50 {percentile(hot.since_begin, 0.5):.1f} ms"
    note = f"{took}, p99 {percentile(hot.since_begin, 0.99):.1f} ms"
    return Figure("hot_mailbox", what, "records/s", (rate,), {"rate asked": HOT.rate}, note)


def latencies(quiet: Load, alone: Waits, beside: Waits) -> list[Figure]:
    """Return what a quiet append takes from its begin to its commit, alone and beside the hot."""
    found: list[Figure] = []
    for share in (0.5, 0.99):
        what = f"append function, {quiet.boxes:,} quiet mailboxes, {quiet.rate} records/s:"
        what = f"{what} begin to commit, p{share * 100:.0f}"
        before = percentile(alone.since_begin, share)
        found += [
            latency(f"{what}, alone", alone, share, {}),
            latency(f"{what}, beside the hot one", beside, share, {"alone": before}),
        ]
    return found


def latency(what: str, waits: Waits, share: float, ratio: dict[str, float]) -> Figure:
    """Return one latency; the note says what it is from when the append was due."""
    value = percentile(waits.since_begin, share)
    note = f"{percentile(waits.since_due, share):.2f} ms from when it was due"
    note += f"; {len(waits.since_due):,} appends"
    return Figure("hot_mailbox", what, "ms", (value,), ratio, note, higher_is_better=False)
