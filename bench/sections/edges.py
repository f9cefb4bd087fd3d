"""The edges: one event for many waiters, open waitpoints at rest, many expiring at once."""

import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import psycopg

from bench import runs
from bench.clients import Connection, Load
from bench.database import (
    Database,
    add_waitpoints,
    held,
    open_database,
    remove_waitpoints,
    restore,
)
from bench.events import message, push
from bench.figures import Figure
from bench.pipeline import Pipeline, running_pipeline
from bench.sections.http_load import RESPONDER, expect, questions
from bench.stage import Stage

SIZES = """
select pg_total_relation_size('matcher.waitpoint') / 2^20,
  pg_relation_size('matcher.waitpoint_one_active_per_waiter_and_key') / 2^20
"""
# Both by the index of deadlines: whether the second has not come yet, whether it is not over.
DUE = """
select exists (select from matcher.waitpoint where state in ('open', 'stalled')
    and expires_at > now() and expires_at < now() + interval '1 hour'),
  exists (select from matcher.waitpoint where state in ('open', 'stalled') and expires_at <= now())
"""
EXPIRE_IN = 15.0
PACE = 0.01
BESIDE = ("sweeper", "publisher")
NICE = 10
REPLIES_BESIDE = 2_500
EXPIRED = """
select count(*) filter (where state = 'expired'),
  extract(epoch from max(closed_at) - max(expires_at))::float8
from matcher.waitpoint where starts_with(correlation_key, 'due-')
"""


def fan_out(stage: Stage) -> list[Figure]:
    """Return how long one event takes to resolve all of its waiters."""
    database = open_database(stage, min(stage.profile.open_sizes))
    found: list[Figure] = []
    with runs.matchers(stage, database, 1) as bank:
        for size in stage.profile.fan_outs:
            seconds = [
                fanned(stage, database, bank, size) for _ in range(stage.profile.repetitions)
            ]
            what = f"one event resolves {size:,} waiter{'s' if size > 1 else ''}"
            samples = tuple(value * 1000 for value in seconds)
            found.append(Figure("fan_out", what, "ms", samples, higher_is_better=False))
    return found


def fanned(stage: Stage, database: Database, bank: runs.Bank, size: int) -> float:
    """Return the seconds from the gate until the waiters of one key are resolved."""
    remove_waitpoints(database, "fan-")
    add_waitpoints(database, ((f"fan-{size}", f"agent:fan-{n}") for n in range(size)))
    event = message(f"fan-{size}", f"{size}{time.monotonic_ns()}", random.Random(size))
    target = runs.ends(stage, bank.topic) + 1
    with psycopg.connect(database.url, autocommit=True) as conn:
        with held(database):
            push(stage.bootstrap, bank.topic, [event])
        begun = time.perf_counter()
        while runs.done(conn, bank) < target:
            bank.check()
            time.sleep(0.001)
        seconds = time.perf_counter() - begun
        query = (
            "select count(*) from matcher.waitpoint"
            " where correlation_key = %s and state = 'resolved'"
        )
        resolved = conn.execute(query, (f"fan-{size}",)).fetchone()[0]
    remove_waitpoints(database, "fan-")
    if resolved != size:
        raise AssertionError(f"expected {size} resolved waiters, found {resolved}")
    return seconds


def idle(stage: Stage) -> list[Figure]:
    """Return what open waitpoints cost while nothing happens: memory, processor, disk."""
    database = open_database(stage, stage.profile.open_default)
    with runs.matchers(stage, database, 1) as bank:
        child = bank.children[0]
        before = child.cpu_seconds()
        time.sleep(stage.profile.idle_seconds)
        share = (child.cpu_seconds() - before) / stage.profile.idle_seconds
        memory = child.resident_mib()
    with database.owner() as conn:
        table, index = conn.execute(SIZES).fetchone()
    open_count = f"{database.open_waitpoints:,} open waitpoints"
    return [
        Figure("idle", f"memory of a matcher, {open_count}", "MiB", (memory,)),
        Figure("idle", f"processor of a matcher, {open_count}", "% of a core", (share * 100,)),
        Figure("idle", f"table and indexes of {open_count}", "MiB", (table,)),
        Figure("idle", f"the exact-key index of {open_count}", "MiB", (index,)),
    ]


def expiry(stage: Stage) -> list[Figure]:
    """Return how late the last of many waitpoints expires, and what replies beside them wait."""
    database = open_database(stage, stage.profile.open_default)
    restore(database)
    count = stage.profile.expiring
    with (
        running_pipeline(stage, database, "http", NICE) as pipeline,
        sweeping(stage, database),
    ):
        prepared = asyncio.run(questions(pipeline, REPLIES_BESIDE))
        names = ((f"due-{n}", f"agent:waiter-{n % 1000}") for n in range(count))
        add_waitpoints(database, names, timedelta(seconds=EXPIRE_IN))
        with database.owner() as conn:
            calm, storm = asyncio.run(replies_around(pipeline, prepared, conn))
            expired, late = conn.execute(EXPIRED).fetchone()
    if expired != count:
        raise AssertionError(f"expected {count} expired waitpoints, found {expired}")
    remove_waitpoints(database, "due-")
    remove_waitpoints(database, "open-")
    what = f"{count:,} waitpoints expire in the same second: the last one late by"
    return [
        Figure("expiry", what, "s", (late,), higher_is_better=False),
        beside("one reply after another, before", calm),
        beside("one reply after another, while they expire", storm),
    ]


@contextmanager
def sweeping(stage: Stage, database: Database) -> Iterator[None]:
    """Run sweeper and publisher in processes of their own that step back, as an installation that
    expires much would: who answers people shares no interpreter with either."""
    own = {"RELAY_MATCHER_NICE": str(NICE)}
    started = [runs.service(stage, database, "matcher", role, own) for role in BESIDE]
    with runs.running([child for child, _ in started]):
        for child, url in started:
            runs.until(lambda child=child, url=url: runs.ready(child, url), "the loops to be ready")
        yield


def beside(what: str, load: Load) -> Figure:
    """Return the latency of replies."""
    note = f"p50; p99 {load.milliseconds(0.99):.1f} ms, {len(load.durations)} replies"
    samples = (load.milliseconds(0.5),)
    return Figure("expiry", what, "ms", samples, note=note, higher_is_better=False)


async def replies_around(
    pipeline: Pipeline, prepared: list[tuple[str, dict[str, object]]], conn: psycopg.Connection
) -> tuple[Load, Load]:
    """Reply at a steady pace until nothing is overdue any more; return before and after."""
    connection = Connection(pipeline.matcher_port, pipeline.token(RESPONDER))
    await connection.open()
    before, after = Load(), Load()
    for waitpoint, reply in prepared:
        begun = time.perf_counter()
        await expect(connection, 200, f"/v1/waitpoints/{waitpoint}/replies", reply)
        seconds = time.perf_counter() - begun
        due, overdue = conn.execute(DUE).fetchone()
        (before if due else after).durations.append(seconds)
        if not due and not overdue:
            return before, after
        await asyncio.sleep(PACE)
    raise TimeoutError("expected all to expire before the replies ran out")
