"""Calls per second over HTTP: openings, leases with acks; beside them single-row commits."""

import asyncio
import threading
import time
import uuid
from datetime import UTC, datetime, timedelta

import orjson
import psycopg

from bench.clients import Connection, Load, drive
from bench.database import Database, add_waitpoints, open_database, remove_waitpoints, restore
from bench.events import message, push
from bench.figures import Figure
from bench.pipeline import Pipeline, running_pipeline
from bench.runs import MATCHER_TOPIC, RUN_SECONDS
from bench.stage import Stage

CALLERS = (1, 32)
MAILBOXES = 64
LEASED = 100
TABLE = "create unlogged table if not exists ceiling.commits (id uuid primary key, body text)"
LOGGED = "alter table ceiling.commits set logged"


def measure(stage: Stage) -> list[Figure]:
    """Return calls per second and their latency, one service process each."""
    database = open_database(stage, stage.profile.open_default)
    restore(database)
    found: list[Figure] = []
    with running_pipeline(stage, database) as pipeline:
        for callers in CALLERS:
            ceiling = {
                "single-row commits": commits(database, callers, stage.profile.http_seconds / 2)
            }
            load = asyncio.run(openings(stage, pipeline, callers))
            found.append(figure("opens", callers, load, ceiling))
        found.append(leases(stage, database, pipeline))
    remove_waitpoints(database, "open-")
    return found


def figure(what: str, callers: int, load: Load, beside: dict[str, float]) -> Figure:
    """Return the figure of one load."""
    note = f"p50 {load.milliseconds(0.5):.1f} ms, p99 {load.milliseconds(0.99):.1f} ms"
    label = f"{what}, {callers} caller{'s' if callers > 1 else ''}"
    return Figure("http", label, "calls/s", (load.rate,), beside, note)


async def openings(stage: Stage, pipeline: Pipeline, callers: int) -> Load:
    """Open event waitpoints."""
    expires_at = (datetime.now(UTC) + timedelta(days=1)).isoformat()  # noqa: TID251 - a client
    run = uuid.uuid4().hex[:6]

    async def work(connection: Connection, number: int) -> int:
        body = {
            "kind": "event",
            "match": {"event_type": "payment.settled", "correlation_key": f"open-{run}-{number}"},
            "expires_at": expires_at,
        }
        status, answer = await connection.call("POST", "/v1/waitpoints", body)
        if status != 201:
            raise RuntimeError(f"expected 201, found {status}: {answer[:300]!r}")
        return 1

    token = [pipeline.token(f"agent:opener-{number}") for number in range(callers)]
    return await drive(
        pipeline.matcher_port, token.__getitem__, callers, stage.profile.http_seconds, work
    )


def leases(stage: Stage, database: Database, pipeline: Pipeline) -> Figure:
    """Return records leased and acknowledged per second, hundreds at a time from 64 mailboxes."""
    count = min(stage.profile.events, 40_000)
    names = [f"open-lease-{number}" for number in range(count)]
    add_waitpoints(database, [(n, f"agent:box-{i % MAILBOXES}") for i, n in enumerate(names)])
    import random  # noqa: PLC0415 - only here

    chance = random.Random(1)
    push(stage.bootstrap, MATCHER_TOPIC, [message(name, name, chance) for name in names])
    wait_for_records(database, count)
    tokens = [pipeline.token(f"agent:box-{number}") for number in range(MAILBOXES)]
    load = asyncio.run(drain(pipeline, tokens, count))
    late = load.milliseconds(0.99)
    note = f"{LEASED} at a time, {MAILBOXES} mailboxes, 16 readers; calls p99 {late:.1f} ms"
    return Figure("http", "records leased and acknowledged", "records/s", (load.rate,), note=note)


def wait_for_records(database: Database, count: int) -> None:
    """Return when `count` records of leasable boxes stand in the mailboxes."""
    query = "select count(*) from mailbox.record where type = 'waitpoint.resolved'"
    deadline = time.monotonic() + RUN_SECONDS
    with psycopg.connect(database.url, autocommit=True) as conn:
        while conn.execute(query).fetchone()[0] < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"expected {count} records in the mailboxes")
            time.sleep(0.2)


async def drain(pipeline: Pipeline, tokens: list[str], count: int) -> Load:
    """Lease and acknowledge until nothing is left."""
    load = Load()
    begun = time.perf_counter()

    async def reader(mine: list[str]) -> None:
        for token in mine:
            connection = Connection(pipeline.mailbox_port, token)
            await connection.open()
            while True:
                at = time.perf_counter()
                _, body = await connection.call(
                    "POST", "/v1/mailboxes/me/leases", {"max_records": LEASED}
                )
                leased = orjson.loads(body)
                if not leased["records"]:
                    break
                seqs = [record["seq"] for record in leased["records"]]
                epoch = leased["records"][0]["epoch"]
                acks = {"lease_id": leased["lease_id"], "epoch": epoch, "seqs": seqs}
                await connection.call("POST", "/v1/mailboxes/me/acks", acks)
                load.units += len(seqs)
                load.durations.append(time.perf_counter() - at)

    await asyncio.gather(*(reader(tokens[number::16]) for number in range(16)))
    load.seconds = time.perf_counter() - begun
    if load.units < count:
        raise AssertionError(f"expected {count} records, acknowledged {load.units}")
    return load


def commits(database: Database, callers: int, seconds: float) -> float:
    """Return single-row inserts committed per second by `callers` connections."""
    with database.owner() as conn:
        conn.execute(TABLE)
        conn.execute(LOGGED)
    counts = [0] * callers
    end = time.monotonic() + seconds

    def committer(number: int) -> None:
        with psycopg.connect(database.url, autocommit=True) as conn:
            while time.monotonic() < end:
                parameters = (uuid.uuid4(), "x" * 300)
                conn.execute("insert into ceiling.commits values (%s, %s)", parameters)
                counts[number] += 1

    threads = [threading.Thread(target=committer, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds
