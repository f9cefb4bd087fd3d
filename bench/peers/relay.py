"""Relay at the job of the peers, and at its own pace; the bench's sections measure."""

import asyncio
import random
import time
from datetime import UTC, datetime, timedelta

from bench import runs
from bench.clients import Connection, drive
from bench.database import (
    Database,
    add_waitpoints,
    held,
    open_database,
    remove_waitpoints,
    restore,
)
from bench.events import EVENT_TYPE, Message, connected, make, message, push, send
from bench.peers.jobs import CALLERS, SECONDS, Rates
from bench.pipeline import Pipeline, running_pipeline
from bench.sections import http_load
from bench.sections.match_rate import BATCH
from bench.sections.pipeline import READERS, Times, read
from bench.stage import Stage

PREFIX = "peer-"


def measure(stage: Stage, waits: int) -> Rates:
    """Return the rates of the job, of its parts at full speed, and of synchronous calls.

    `open`, `deliver`, `seen` are the peers' steps: openings over HTTP, events acked by Kafka,
    records leased and acknowledged by their waiters. `resolved` is the matcher alone, one process,
    every event for another waitpoint; `leased` is that and the way to the waiters' acks; `reply`
    and `opens` are synchronous calls of 32 callers while nothing is published, `reply_through`
    while publisher and mailbox take what the replies announce.
    """
    database = open_database(stage, stage.profile.open_default)
    rates = {"resolved": resolved(stage, database)}
    clear(database)
    with running_pipeline(stage, database) as pipeline:
        rates["leased"] = leased(stage, database, pipeline)
        clear(database)
        rates |= same_job(stage, pipeline, waits)
        rates["reply_through"] = asyncio.run(http_load.replies(stage, pipeline, CALLERS)).rate
    clear(database)
    with running_pipeline(stage, database, "http") as pipeline:
        rates["reply"] = asyncio.run(http_load.replies(stage, pipeline, CALLERS)).rate
        rates["opens"] = asyncio.run(http_load.openings(stage, pipeline, CALLERS)).rate
    clear(database)
    return rates


def clear(database: Database) -> None:
    """Remove what a step opened, and open again what it closed of the others."""
    for prefix in (PREFIX, "open-"):
        remove_waitpoints(database, prefix)
    restore(database)


def resolved(stage: Stage, database: Database) -> float:
    """Return waitpoints resolved per second by one matcher, from the topic, checked."""
    count = min(stage.profile.events, database.open_waitpoints)
    batch = make(count, 1.0, database.open_waitpoints, "peers")
    own = {"RELAY_MATCHER_BATCH_RECORDS": str(BATCH)}
    with runs.matchers(stage, database, 1, own) as bank:
        run = runs.drive(stage, database, bank, batch)
        runs.verify(database, batch)
    return run.rate


def leased(stage: Stage, database: Database, pipeline: Pipeline) -> float:
    """Return events per second from the topic to the acknowledgement of their waiters."""
    names = [f"{PREFIX}{number}" for number in range(stage.profile.events)]
    add_waitpoints(database, ((name, reader(n)) for n, name in enumerate(names)))
    with held(database):
        push(stage.bootstrap, runs.MATCHER_TOPIC, events_of(names))
    return len(names) / read_by_waiters(pipeline, names)


def same_job(stage: Stage, pipeline: Pipeline, waits: int) -> Rates:
    """Return the rates of the peers' three steps."""
    names = [f"{PREFIX}{number}" for number in range(waits)]
    producer = connected(stage.bootstrap)
    send(producer, runs.MATCHER_TOPIC, events_of(["nobody-waits"]))  # as the peers' clients: warm
    events = events_of(names)
    begun = time.perf_counter()
    asyncio.run(open_over_http(pipeline, names))
    opened = time.perf_counter()
    send(producer, runs.MATCHER_TOPIC, events)
    delivered = time.perf_counter()
    read_by_waiters(pipeline, names)
    done = time.perf_counter()
    return {
        "open": waits / (opened - begun),
        "deliver": waits / (delivered - opened),
        "seen": waits / (done - opened),
    }


def events_of(names: list[str]) -> list[Message]:
    """Return one event for each correlation key."""
    chance = random.Random(len(names))
    return [message(name, f"{name}{time.monotonic_ns()}", chance) for name in names]


def reader(number: int) -> str:
    """Return which of the readers waits for correlation key `number`."""
    return f"agent:reader-{number % READERS}"


def read_by_waiters(pipeline: Pipeline, names: list[str]) -> float:
    """Lease and acknowledge until every waiter has its event; return the seconds."""
    times = Times()
    begun = time.perf_counter()
    asyncio.run(read(pipeline, times, len(names)))
    seconds = time.perf_counter() - begun
    if times.leased.keys() != set(names):
        raise AssertionError("a waiter saw another event than its own")
    return seconds


async def open_over_http(pipeline: Pipeline, names: list[str]) -> None:
    """Open an event waitpoint for each correlation key, 32 callers at a time."""
    expires_at = (datetime.now(UTC) + timedelta(days=1)).isoformat()  # noqa: TID251 - a client
    done = asyncio.Event()

    async def work(connection: Connection, number: int) -> int:
        if number >= len(names):
            done.set()
            return 0
        match = {"event_type": EVENT_TYPE, "correlation_key": names[number]}
        body = {"kind": "event", "match": match, "expires_at": expires_at}
        await http_load.expect(connection, 201, "/v1/waitpoints", body)
        return 1

    tokens = [pipeline.token(reader(number)) for number in range(CALLERS)]
    await drive(pipeline.matcher_port, tokens.__getitem__, CALLERS, SECONDS, work, done)
