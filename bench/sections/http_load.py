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
READERS = 16
RESPONDER = "subscriber:answerer"
ASKERS = 16
REPLIES_A_SECOND = 400
LEASABLE = """
select count(*) from mailbox.record r join mailbox.mailbox m on m.id = r.mailbox_id
where r.type = 'waitpoint.resolved' and starts_with(m.owner, 'agent:box-')
"""
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
            load = asyncio.run(replies(stage, pipeline, callers))
            found.append(figure("replies", callers, load, ceiling))
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


async def replies(stage: Stage, pipeline: Pipeline, callers: int) -> Load:
    """Answer questions, each opened and given its reply session before the clock starts."""
    count = max(64, int(stage.profile.http_seconds * REPLIES_A_SECOND * min(callers, 8)))
    prepared = await questions(pipeline, count)
    done = asyncio.Event()

    async def answer(connection: Connection, number: int) -> int:
        if number >= len(prepared):
            done.set()
            return 0
        identifier, reply = prepared[number]
        await expect(connection, 200, f"/v1/waitpoints/{identifier}/replies", reply)
        return 1

    responder = pipeline.token(RESPONDER)
    seconds = stage.profile.http_seconds
    return await drive(pipeline.matcher_port, lambda _: responder, callers, seconds, answer, done)


async def questions(pipeline: Pipeline, count: int) -> list[tuple[str, dict[str, object]]]:
    """Open `count` questions, each with a reply session; return their ids and valid replies."""
    asked: list[tuple[str, dict[str, object]]] = []
    done = asyncio.Event()
    run = uuid.uuid4().hex[:6]

    async def ask(connection: Connection, number: int) -> int:
        if number >= count:
            done.set()
            return 0
        opened = await expect(connection, 201, "/v1/waitpoints", question(f"open-{run}-{number}"))
        asked.append((opened["id"], opened))
        return 1

    waiter = pipeline.token("agent:asker")
    await drive(pipeline.matcher_port, lambda _: waiter, ASKERS, RUN_SECONDS, ask, done)
    prepared: list[tuple[str, dict[str, object]]] = []
    done = asyncio.Event()

    async def start(connection: Connection, number: int) -> int:
        if number >= len(asked):
            done.set()
            return 0
        identifier, opened = asked[number]
        path = f"/v1/waitpoints/{identifier}/reply-sessions"
        session = await expect(connection, 201, path, {})
        reply = {
            "reply_session": session["reply_session"],
            "subject_digest": opened["subject_digest"],
            "response": {"ok": True},
        }
        prepared.append((identifier, reply))
        return 1

    responder = pipeline.token(RESPONDER)
    await drive(pipeline.matcher_port, lambda _: responder, ASKERS, RUN_SECONDS, start, done)
    return prepared


def question(correlation_key: str) -> dict[str, object]:
    """Return the body that asks one responder a question."""
    expires_at = (datetime.now(UTC) + timedelta(days=1)).isoformat()  # noqa: TID251 - a client
    return {
        "kind": "question",
        "match": {"event_type": "approval.asked", "correlation_key": correlation_key},
        "expires_at": expires_at,
        "responders": [RESPONDER],
        "content": {"text": "May the order go out?"},
        "response_schema": {"type": "object", "properties": {"ok": {"type": "boolean"}}},
    }


async def expect(
    connection: Connection, wanted: int, path: str, body: dict[str, object]
) -> dict[str, str]:
    """POST and return the answer. Raises RuntimeError for another status."""
    status, answer = await connection.call("POST", path, body)
    if status != wanted:
        raise RuntimeError(f"expected {wanted} from {path}, found {status}: {answer[:300]!r}")
    return orjson.loads(answer)


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
    load = asyncio.run(drain(pipeline, tokens, count, LEASED))
    late = load.milliseconds(0.99)
    note = f"{LEASED} at a time, {MAILBOXES} mailboxes, {READERS} readers; calls p99 {late:.1f} ms"
    return Figure("http", "records leased and acknowledged", "records/s", (load.rate,), note=note)


def wait_for_records(database: Database, count: int) -> None:
    """Return when `count` records of leasable boxes stand in the mailboxes."""
    deadline = time.monotonic() + RUN_SECONDS
    with psycopg.connect(database.url, autocommit=True) as conn:
        while conn.execute(LEASABLE).fetchone()[0] < count:
            if time.monotonic() > deadline:
                raise TimeoutError(f"expected {count} records in the mailboxes")
            time.sleep(0.2)


async def drain(pipeline: Pipeline, tokens: list[str], count: int, size: int) -> Load:
    """Lease and acknowledge `size` records at a time until nothing is left."""
    load = Load()
    begun = time.perf_counter()

    async def reader(mine: list[str]) -> None:
        for token in mine:
            connection = Connection(pipeline.mailbox_port, token)
            await connection.open()
            while True:
                at = time.perf_counter()
                _, body = await connection.call(
                    "POST", "/v1/mailboxes/me/leases", {"max_records": size}
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

    await asyncio.gather(*(reader(tokens[number::READERS]) for number in range(READERS)))
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
