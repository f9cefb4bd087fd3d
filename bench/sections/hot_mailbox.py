"""One mailbox at 20,000 appends a second beside thousands of quiet ones, through the topic.

A record's delay is from its hand-over to the producer to the commit of its append, by the clock of
the one machine. The quiet mailboxes are measured alone and beside the hot one in the same run. The
figures of `hot_append`, where the two streams have a connection each, follow.
"""

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psutil
import psycopg
from confluent_kafka import Producer
from relay_common.match_key import owner_key

from bench.database import Database, empty_mailboxes, open_database
from bench.events import CODEC, ENVIRONMENT, TENANT
from bench.figures import Figure, percentile
from bench.pipeline import Pipeline, running_mailbox
from bench.runs import RUN_SECONDS, until
from bench.sections import hot_append
from bench.stage import Stage

TOPIC = "bench.relay.mailbox"
SCHEMA = "relay.mailbox.v1"
HOT_RATE = 20_000
QUIET_RATE = 500
TICK = 0.005
SENT = "%020d"  # microseconds, of one width in every record
HOT = "agent:hot"
KEPT = 10_000_000
DELAYS = """
select extract(epoch from pg_xact_commit_timestamp(r.xmin))::float8 * 1e6
  - (convert_from(r.body, 'UTF8')::jsonb ->> 'sent')::float8
from mailbox.record r join mailbox.mailbox m on m.id = r.mailbox_id
where m.owner <> %s and convert_from(r.body, 'UTF8')::jsonb ->> 'phase' = %s
"""
HOT_SPAN = """
select count(*), extract(epoch from max(pg_xact_commit_timestamp(r.xmin))
  - min(pg_xact_commit_timestamp(r.xmin)))::float8
from mailbox.record r join mailbox.mailbox m on m.id = r.mailbox_id where m.owner = %s
"""
HEADS = "select coalesce(sum(head), 0)::bigint from mailbox.mailbox"
KEEP = """
insert into mailbox.tenant_setting (tenant, environment, max_records) values (%s, %s, %s)
on conflict on constraint tenant_setting_once do update set max_records = excluded.max_records
"""


@dataclass(frozen=True, slots=True)
class Form:
    """The bytes of one owner's records around their id and the time they are sent."""

    key: bytes
    before: bytes
    middle: bytes
    after: bytes

    def record(self) -> bytes:
        """Return a new record, sent now."""
        sent = SENT % (time.time_ns() // 1000)
        return b"".join((self.before, os.urandom(16), self.middle, sent.encode(), self.after))


def form(owner: str, phase: str) -> Form:
    """Return the form of the records of `owner` in one phase of the run; about 300 bytes each."""
    marker, sent = b"\xfe" * 16, (SENT % 0).encode()
    body = b'{"type":"waitpoint.resolved","phase":"%s","sent":"%s","text":"%s"}'
    value = CODEC.encode(
        SCHEMA,
        {
            "tenant": TENANT,
            "environment": ENVIRONMENT,
            "owner": owner,
            "message_id": marker,
            "kind": "waitpoint_event",
            "type": "waitpoint.resolved",
            "state": "available",
            "trust": None,
            "relationship": None,
            "waitpoint_id": "wp_AaItSrksdJuiHOsV3P6WQg",
            "supersedes": None,
            "wakes": True,
            "body": body % (phase.encode(), sent, b"x" * 150),
        },
    )
    before, rest = value.split(marker)
    middle, after = rest.split(sent)
    return Form(owner_key(TENANT, ENVIRONMENT, owner), before, middle, after)


def measure(stage: Stage) -> list[Figure]:
    """Return the delays of quiet mailboxes alone and beside a hot one, and the hot one's rate:
    through the topic, then at the append function."""
    database = open_database(stage, min(stage.profile.open_sizes))
    return through_topic(stage, database) + hot_append.measure(stage, database)


def through_topic(stage: Stage, database: Database) -> list[Figure]:
    """Return the figures of one mailbox process that takes both from the topic."""
    empty_mailboxes(database)
    with psycopg.connect(database.url, autocommit=True) as conn:
        conn.execute(KEEP, (TENANT, ENVIRONMENT, KEPT))
        with running_mailbox(stage, database, "consumer,publisher") as pipeline:
            boxes, seconds = stage.profile.quiet_mailboxes, stage.profile.hot_seconds
            quiet = {
                phase: [form(owner_of(n), phase) for n in range(boxes)]
                for phase in ("first", "alone", "beside")
            }
            producer = new_producer(stage)
            send(producer, conn, quiet["first"], None, boxes / QUIET_RATE)
            send(producer, conn, quiet["alone"], None, seconds)
            before = processor_seconds(pipeline, conn)
            lag = send(producer, conn, quiet["beside"], form(HOT, "hot"), seconds)
            spent = processor_seconds(pipeline, conn) - before
        found = figures(stage, conn, lag, spent)
        conn.execute("delete from mailbox.tenant_setting")
    empty_mailboxes(database)
    return found


def owner_of(number: int) -> str:
    """Return quiet owner `number`."""
    return f"agent:quiet-{number}"


def new_producer(stage: Stage) -> Producer:
    """Return the producer of all phases: its first record waits for its id, half a second long."""
    return Producer(
        {
            "bootstrap.servers": stage.bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
        }
    )


def send(
    producer: Producer,
    conn: psycopg.Connection,
    quiet: Sequence[Form],
    hot: Form | None,
    seconds: float,
) -> int:
    """Send records at their rates for `seconds`, wait until all are appended, and return how many
    were still missing when the last one was sent."""
    begin = appended(conn)
    count = 0
    for owner in paced(quiet, hot, seconds):
        producer.produce(TOPIC, owner.record(), owner.key)
        count += 1
    producer.flush(60)
    lag = begin + count - appended(conn)
    until(lambda: appended(conn) >= begin + count, "every record to be appended", RUN_SECONDS)
    return lag


def paced(quiet: Sequence[Form], hot: Form | None, seconds: float) -> Iterator[Form]:
    """Yield whose record is due: quiet ones in turn at their rate, the hot one at its own."""
    begun = time.perf_counter()
    told, hot_told = 0, 0
    while (elapsed := time.perf_counter() - begun) < seconds:
        while hot is not None and hot_told < elapsed * HOT_RATE:
            hot_told += 1
            yield hot
        while told < elapsed * QUIET_RATE:
            told += 1
            yield quiet[told % len(quiet)]
        time.sleep(TICK)


def appended(conn: psycopg.Connection) -> int:
    """Return how many records all mailboxes have had."""
    return conn.execute(HEADS).fetchone()[0]


def processor_seconds(pipeline: Pipeline, conn: psycopg.Connection) -> float:
    """Return the processor time that mailbox and its backends have used."""
    query = "select pid from pg_stat_activity where application_name like 'relay-mailbox%'"
    times = [psutil.Process(pid).cpu_times() for (pid,) in conn.execute(query).fetchall()]
    backends = sum(one.user + one.system for one in times)
    return pipeline.children[1].cpu_seconds() + backends


def figures(stage: Stage, conn: psycopg.Connection, lag: int, spent: float) -> list[Figure]:
    """Return what the two phases came to."""
    delays = {
        phase: [row[0] / 1000 for row in conn.execute(DELAYS, (HOT, phase)).fetchall()]
        for phase in ("alone", "beside")
    }
    count, span = conn.execute(HOT_SPAN, (HOT,)).fetchone()
    quiet = f"{stage.profile.quiet_mailboxes:,} quiet mailboxes"
    wanted = f"{HOT_RATE:,} a second for {stage.profile.hot_seconds:.0f} s"
    note = f"{lag:,} behind at the end; {spent / count * 1e6:.0f} µs of processor a record"
    rate = Figure(
        "hot_mailbox",
        f"appended to one mailbox, sent {wanted}",
        "records/s",
        (count / span,),
        {"rate sent": HOT_RATE},
        note,
    )
    found = [rate]
    for share in (0.5, 0.99):
        alone, beside = (percentile(delays[phase], share) for phase in ("alone", "beside"))
        what = f"{quiet}, {QUIET_RATE} records/s: sent to committed, p{share * 100:.0f}"
        found.append(
            Figure("hot_mailbox", f"{what}, alone", "ms", (alone,), higher_is_better=False)
        )
        what = f"{what}, beside the hot one"
        found.append(
            Figure("hot_mailbox", what, "ms", (beside,), {"alone": alone}, higher_is_better=False)
        )
    return found
