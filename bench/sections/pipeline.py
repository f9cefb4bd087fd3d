"""The whole pipeline: its sustained rate, and how long an event takes to be resolved and leased."""

import asyncio
import random
import threading
import time
from dataclasses import dataclass, field

import orjson
import psycopg
from confluent_kafka import Producer
from relay_common.ids import encode_id

from bench import runs
from bench.clients import Connection
from bench.database import (
    Database,
    add_waitpoints,
    held,
    open_database,
    remove_waitpoints,
    restore,
)
from bench.events import Message, make, message, push
from bench.figures import Figure, percentile
from bench.pipeline import Pipeline, running_pipeline
from bench.stage import Stage

RATE = 0.1
READERS = 4
POLL_SECONDS = 0.05
LEASED = 100
WARM_EVENTS = 200
QUIET_RATE = 20.0
SHARES = (0.1, 0.5, 0.9)
APPENDED = "select count(*) from mailbox.record where kind = 'waitpoint_event'"
RESOLVED = """
select correlation_key, id, extract(epoch from responded_at)::float8 from matcher.waitpoint
where starts_with(correlation_key, 'live-') and state = 'resolved'
"""
RECORDS = "select waitpoint_id, extract(epoch from appended_at)::float8 from mailbox.record"


@dataclass
class Times:
    """When each matching event was sent, and when its waiter had leased its record."""

    sent: dict[str, float] = field(default_factory=dict)
    leased: dict[str, float] = field(default_factory=dict)


def sustained(stage: Stage) -> list[Figure]:
    """Return the rate at which events go through to the mailbox, at 10 and 100 % match."""
    database = open_database(stage, stage.profile.open_default)
    found: list[Figure] = []
    with running_pipeline(stage, database, "consumer,publisher") as pipeline:
        for rate in (RATE, 1.0):
            samples = [
                through(stage, database, pipeline, rate) for _ in range(stage.profile.repetitions)
            ]
            what = f"matcher, publisher and mailbox, {rate:.0%} match"
            found.append(
                Figure("pipeline", what, "events/s", tuple(samples), note="1 process each")
            )
    return found


def through(stage: Stage, database: Database, pipeline: Pipeline, rate: float) -> float:
    """Return events per second from the gate until the last record stands in its mailbox."""
    count = min(stage.profile.events, int(database.open_waitpoints / rate))
    batch = make(count, rate, database.open_waitpoints, f"through{rate}")
    restore(database)
    with psycopg.connect(database.url, autocommit=True) as conn:
        with held(database):
            push(stage.bootstrap, runs.MATCHER_TOPIC, batch.messages)
        begun = time.perf_counter()
        while conn.execute(APPENDED).fetchone()[0] < batch.matching:
            pipeline.bank().check()
            if time.perf_counter() - begun > runs.RUN_SECONDS:
                raise RuntimeError(f"expected {batch.matching} records in the mailboxes")
            time.sleep(runs.TICK)
        seconds = time.perf_counter() - begun
        appended = conn.execute(APPENDED).fetchone()[0]
    if appended != batch.matching:
        raise AssertionError(f"expected {batch.matching} records, found {appended}")
    return count / seconds


def latency(stage: Stage) -> list[Figure]:
    """Return how long events take at shares of the sustained rate, and when it is quiet."""
    database = open_database(stage, stage.profile.open_default)
    found: list[Figure] = []
    with running_pipeline(stage, database) as pipeline:
        top = through(stage, database, pipeline, RATE)
        for share in SHARES:
            label = f"at {share:.0%} of the top rate ({top * share:,.0f} events/s)"
            found += latencies(stage, database, pipeline, top * share, label)
        found += latencies(
            stage, database, pipeline, QUIET_RATE, f"quiet ({QUIET_RATE:.0f} events/s)"
        )
    return found


def latencies(
    stage: Stage, database: Database, pipeline: Pipeline, rate: float, label: str
) -> list[Figure]:
    """Return the percentiles of one paced run."""
    count = int(rate * stage.profile.latency_seconds)
    share = RATE if rate > QUIET_RATE else 1.0
    chance = random.Random(label)
    names = [f"live-{label}-{n}" if chance.random() < share else f"quiet-{n}" for n in range(count)]
    messages = [message(name, f"{label}{n}", chance) for n, name in enumerate(names)]
    spans = paced(stage, database, pipeline, list(zip(names, messages, strict=True)), rate)
    return [
        Figure(
            "latency",
            f"event → {stage_name} {label}",
            "ms",
            (percentile(values, 0.5) * 1000,),
            note=f"p50; p99 {percentile(values, 0.99) * 1000:,.1f} ms, {len(values)} events",
            higher_is_better=False,
        )
        for stage_name, values in spans.items()
    ]


def paced(
    stage: Stage,
    database: Database,
    pipeline: Pipeline,
    events: list[tuple[str, Message]],
    rate: float,
) -> dict[str, list[float]]:
    """Send named events at `rate`; return the seconds of those called live-… to each stage."""
    live = [name for name, _ in events if name.startswith("live-")]
    remove_waitpoints(database, "live-")
    add_waitpoints(database, ((name, f"agent:reader-{n % READERS}") for n, name in enumerate(live)))
    times = Times()
    sender = threading.Thread(target=send, args=(stage.bootstrap, events, rate, times))
    sender.start()
    asyncio.run(read(pipeline, times, len(live)))
    sender.join()
    spans = spans_of(database, times)
    remove_waitpoints(database, "live-")
    return spans


def send(bootstrap: str, events: list[tuple[str, Message]], rate: float, times: Times) -> None:
    """Write events at `rate` and note when each live one was handed to the producer."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5, "compression.type": "lz4"}
    )
    for number in range(WARM_EVENTS):  # the first ones wait for connections and metadata
        key, value = message(f"warm-{number}", f"warm{rate}{number}", random.Random(number))
        producer.produce(runs.MATCHER_TOPIC, value, key)
    producer.flush(30)
    begun = time.perf_counter()
    for number, (name, (key, value)) in enumerate(events):
        ahead = begun + number / rate - time.perf_counter()
        if ahead > 0.001:
            producer.poll(0)
            time.sleep(ahead)
        if name.startswith("live-"):
            times.sent[name] = time.time()  # noqa: TID251 - compared with the database's clock
        producer.produce(runs.MATCHER_TOPIC, value, key)
        if number % 1000 == 0:
            producer.poll(0)
    producer.flush(30)


async def read(pipeline: Pipeline, times: Times, expected: int) -> None:
    """Lease and acknowledge as the waiters do, a page every POLL_SECONDS and full ones at once."""
    deadline = time.monotonic() + runs.RUN_SECONDS

    async def reader(number: int) -> None:
        connection = Connection(pipeline.mailbox_port, pipeline.token(f"agent:reader-{number}"))
        await connection.open()
        while len(times.leased) < expected:
            if time.monotonic() > deadline:
                raise RuntimeError(f"expected {expected} records, leased {len(times.leased)}")
            if await lease(connection, times) < LEASED:
                await asyncio.sleep(POLL_SECONDS)

    await asyncio.gather(*(reader(number) for number in range(READERS)))


async def lease(connection: Connection, times: Times) -> int:
    """Lease what is there, note when, acknowledge it; return how many records there were."""
    status, body = await connection.call("POST", "/v1/mailboxes/me/leases", {"max_records": LEASED})
    if status not in (200, 201):
        raise RuntimeError(f"expected a lease, found {status}: {body[:200]!r}")
    leased = orjson.loads(body)
    now = time.time()  # noqa: TID251 - compared with when it was sent
    for record in leased["records"]:
        if record["type"] == "waitpoint.resolved":
            times.leased[record["body"]["waitpoint"]["match"]["correlation_key"]] = now
    if leased["records"]:
        seqs = [record["seq"] for record in leased["records"]]
        epoch = leased["records"][0]["epoch"]
        acks = {"lease_id": leased["lease_id"], "epoch": epoch, "seqs": seqs}
        await connection.call("POST", "/v1/mailboxes/me/acks", acks)
    return len(leased["records"])


def spans_of(database: Database, times: Times) -> dict[str, list[float]]:
    """Return the seconds from sending to each stage, for every event that was sent."""
    with database.owner() as conn:
        resolved = {key: (identity, at) for key, identity, at in conn.execute(RESOLVED).fetchall()}
        appended = dict(conn.execute(RECORDS).fetchall())
    missing = times.sent.keys() - resolved.keys()
    if missing or times.sent.keys() - times.leased.keys():
        raise AssertionError(f"{len(missing)} events were not resolved")
    names = {key: encode_id("wp_", identity.bytes) for key, (identity, _) in resolved.items()}
    return {
        "resolved": [resolved[key][1] - at for key, at in times.sent.items()],
        "mailbox": [appended[names[key]] - at for key, at in times.sent.items()],
        "leased": [times.leased[key] - at for key, at in times.sent.items()],
    }
