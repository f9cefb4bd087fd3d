"""The mailbox at its verbs: append, lease with acknowledgement, read; beside a plain queue table.

The plain table is what one would write by hand: an index, `for update skip locked`, a delete. It
has no commit order, no duplicates' check, no gap fill and no dead letters. Beside the append there
is also the same append, row for row, with its numbers from a sequence: what order, repeats and
epochs cost (case M8).
"""

import asyncio
import itertools
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson
import psycopg
from psycopg.conninfo import make_conninfo
from relay_common.arrays import blobs, repeated_texts
from relay_devstack.database import role_passwords
from relay_mailbox.domain.record import NewRecord, Owner
from relay_mailbox.store.appends import append_records

from bench.clients import Connection, Load, drive
from bench.database import Database, empty_mailboxes, open_database
from bench.events import ENVIRONMENT, TENANT
from bench.figures import Figure
from bench.pipeline import Pipeline, running_mailbox
from bench.sections.http_load import READERS, drain
from bench.stage import Stage

Batch = Callable[[psycopg.Connection, Sequence[NewRecord]], object]
BODY = b'{"type":"waitpoint.resolved","id":"wp_AaItSrksdJuiHOsV3P6WQg","revision":2,"text":"%s"}'
FILLER = b"x" * 180
MANY = 5000
BOXES = 64
APPENDS = ((1, 1), (1, 10), (100, 1), (500, 1))  # records a transaction, callers
LEASES = (1, 10, 100)
PAGES = (100, 1000)
PLAIN = """
drop table if exists ceiling.queue;
create table ceiling.queue (
  id bigint generated always as identity primary key, owner text not null, taken_until timestamptz,
  body bytea not null);
create index on ceiling.queue (owner, id);
"""
PUT = """
insert into ceiling.queue (owner, body)
select * from unnest(%(owners)s::text[], %(bodies)s::bytea[])
"""
TAKE = """
update ceiling.queue set taken_until = clock_timestamp() + interval '30 s'
where id in (
  select id from ceiling.queue
  where owner = %s and (taken_until is null or taken_until < clock_timestamp())
  order by id limit %s for update skip locked)
returning id, body
"""
BY_SEQUENCE = Path(__file__).with_name("sequence_append.sql").read_text()
DONE = "delete from ceiling.queue where id = any(%s)"
SCAN = "select id, body from ceiling.queue where owner = %s and id > %s order by id limit %s"


def measure(stage: Stage) -> list[Figure]:
    """Return rates of append, lease with acknowledgement, and reading."""
    database = open_database(stage, min(stage.profile.open_sizes))
    found: list[Figure] = []
    for boxes in (1, MANY):
        found += [appended(stage, database, boxes, *shape) for shape in APPENDS]
    with running_mailbox(stage, database, "http") as pipeline:
        for boxes in (1, BOXES):
            found += [leased(stage, database, pipeline, boxes, size) for size in LEASES]
        found += [pages(stage, database, pipeline, size) for size in PAGES]
    empty(database)
    return found


def empty(database: Database) -> None:
    """Begin anew: no mailbox, no record, an empty plain table."""
    empty_mailboxes(database)
    with database.owner() as conn:
        conn.execute(PLAIN)
        conn.execute(BY_SEQUENCE)


def record(owner: str) -> NewRecord:
    """Return a new record of about 260 bytes for `owner`."""
    to = Owner(TENANT, ENVIRONMENT, owner)
    kind, type_ = "waitpoint_event", "waitpoint.resolved"
    return NewRecord(to, uuid.uuid4().bytes, kind, type_, "available", BODY % FILLER)


def records(count: int, boxes: int) -> list[NewRecord]:
    """Return `count` records, spread over `boxes` owners in turn."""
    return [record(owner_of(number % boxes)) for number in range(count)]


def owner_of(number: int) -> str:
    """Return owner `number`."""
    return f"agent:box-{number}"


def stream_url(database: Database) -> str:
    """Return the login of the mailbox's stream role."""
    role = "relay_mailbox_stream"
    password = role_passwords(database.url, "")[role]
    return make_conninfo(database.url, user=role, password=password)


def stream_side(database: Database) -> psycopg.Connection:
    """Return a connection of the mailbox's stream role."""
    return psycopg.connect(stream_url(database), autocommit=True)


def by_sequence(database: Database) -> psycopg.Connection:
    """Return a connection of the stream role whose append takes its numbers from a sequence."""
    found_first = "-c search_path=ceiling,mailbox,relay"
    return psycopg.connect(stream_url(database), autocommit=True, options=found_first)


def appended(stage: Stage, database: Database, boxes: int, size: int, callers: int) -> Figure:
    """Return records appended per second, `size` a transaction, through the append function."""
    seconds = stage.profile.http_seconds / 2
    shape = (boxes, size, callers, seconds)
    empty(database)
    rate = written(lambda: stream_side(database), append_records, *shape)
    empty(database)
    sequence = written(lambda: by_sequence(database), append_records, *shape)
    plain = written(database.owner, put, *shape)
    by = f"{callers} callers" if callers > 1 else "1 caller"
    what = f"appended, {size:,} a transaction, {by}, {among(boxes)}"
    beside = {"plain table": plain, "same rows by a sequence": sequence}
    return Figure("mailbox", what, "records/s", (rate,), beside)


def put(conn: psycopg.Connection, batch: Sequence[NewRecord]) -> None:
    """Insert a batch into the plain table."""
    owners = repeated_texts(one.to.owner for one in batch)
    conn.execute(PUT, {"owners": owners, "bodies": blobs([one.body for one in batch])})


def written(
    connect: Callable[[], psycopg.Connection],
    batch: Batch,
    boxes: int,
    size: int,
    callers: int,
    seconds: float,
) -> float:
    """Return records per second that `callers` write, a transaction for each `size` of them."""
    numbers = itertools.count()

    def write(conn: psycopg.Connection) -> int:
        owners = [owner_of(next(numbers) % boxes) for _ in range(size)]
        with conn.transaction():
            batch(conn, [record(owner) for owner in owners])
        return size

    return by_threads(connect, callers, write, seconds)


def by_threads(
    connect: Callable[[], psycopg.Connection],
    callers: int,
    work: Callable[[psycopg.Connection], int],
    seconds: float,
) -> float:
    """Return units per second of `callers` threads that do `work` until it finds nothing, or for
    `seconds`."""
    counts = [0] * callers
    end = time.monotonic() + seconds

    def call(number: int) -> None:
        with connect() as conn:
            while time.monotonic() < end and (units := work(conn)):
                counts[number] += units

    threads = [threading.Thread(target=call, args=(number,)) for number in range(callers)]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - begun)


def leased(stage: Stage, database: Database, pipeline: Pipeline, boxes: int, size: int) -> Figure:
    """Return records leased and acknowledged per second over HTTP, `size` at a time."""
    count = fill(database, boxes, int(stage.profile.http_seconds * 250 * min(size, 20)))
    tokens = [pipeline.token(owner_of(number % boxes)) for number in range(max(boxes, READERS))]
    load = asyncio.run(drain(pipeline, tokens, count, size))
    what = f"leased and acknowledged over HTTP, {size} at a time, {among(boxes)}"
    note = f"{READERS} readers; both calls p50 {load.milliseconds(0.5):.1f} ms"
    note += f", p99 {load.milliseconds(0.99):.1f} ms"
    beside = {"plain skip locked": taken(stage, database, boxes, size)}
    return Figure("mailbox", what, "records/s", (load.rate,), beside, note)


def fill(database: Database, boxes: int, count: int) -> int:
    """Put `count` records into `boxes` mailboxes and into the plain table; return how many."""
    empty(database)
    with stream_side(database) as conn, database.owner() as plain:
        for begin in range(0, count, 500):
            batch = records(min(500, count - begin), boxes)
            append_records(conn, batch)
            put(plain, batch)
        plain.execute("vacuum (analyze) mailbox.record, mailbox.delivery, mailbox.mailbox")
        plain.execute("vacuum (analyze) ceiling.queue")
    return count


def taken(stage: Stage, database: Database, boxes: int, size: int) -> float:
    """Return records per second that as many connections take from the plain table and delete."""
    numbers = itertools.count()

    def take(conn: psycopg.Connection) -> int:
        for _ in range(boxes):
            owner = owner_of(next(numbers) % boxes)
            if rows := conn.execute(TAKE, (owner, size)).fetchall():
                return conn.execute(DONE, ([row[0] for row in rows],)).rowcount
        return 0

    return by_threads(database.owner, READERS, take, stage.profile.http_seconds)


def pages(stage: Stage, database: Database, pipeline: Pipeline, size: int) -> Figure:
    """Return records read per second over HTTP in pages of `size`, from one mailbox."""
    count = fill(database, 1, 20_000)
    load = asyncio.run(read(stage, pipeline, count, size))
    note = f"one reader; a page p50 {load.milliseconds(0.5):.1f} ms"
    note += f", p99 {load.milliseconds(0.99):.1f} ms"
    beside = {"plain select": scanned(stage, database, size)}
    what = f"read over HTTP, pages of {size:,}"
    return Figure("mailbox", what, "records/s", (load.rate,), beside, note)


async def read(stage: Stage, pipeline: Pipeline, count: int, size: int) -> Load:
    """Read the mailbox from its beginning to its end, over and over."""
    at = {"since": 0, "epoch": 0}

    async def work(connection: Connection, _: int) -> int:
        where = f"since={at['since']}&epoch={at['epoch']}" if at["since"] else "since=0"
        path = f"/v1/mailboxes/me/records?{where}&limit={size}"
        status, body = await connection.call("GET", path)
        if status != 200:
            raise RuntimeError(f"expected 200, found {status}: {body[:300]!r}")
        page = orjson.loads(body)
        at.update(since=page["next_since"] % count, epoch=page["epoch"])
        return len(page["records"])

    token = pipeline.token(owner_of(0))
    return await drive(
        pipeline.mailbox_port, lambda _: token, 1, stage.profile.http_seconds / 2, work
    )


def scanned(stage: Stage, database: Database, size: int) -> float:
    """Return records per second that one connection reads from the plain table in pages."""
    at = [0]

    def scan(conn: psycopg.Connection) -> int:
        rows = conn.execute(SCAN, (owner_of(0), at[0], size)).fetchall()
        at[0] = rows[-1][0] if rows else 0
        return len(rows) or 1

    return by_threads(database.owner, 1, scan, stage.profile.http_seconds / 2)


def among(boxes: int) -> str:
    """Return how the records are spread."""
    return "one mailbox" if boxes == 1 else f"{boxes:,} mailboxes"
