"""The database of a run: migrated, filled with open waitpoints, put back between runs, checked."""

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from relay_common.avro import Codec
from relay_common.ids import encode_id, new_id
from relay_common.match_key import MatchKey
from relay_common.migrate import read_migrations
from relay_common.wire import rfc3339
from relay_devstack.database import create_database, prepare, role_passwords
from relay_matcher.announcement import Announcer
from relay_matcher.expansion import expander

from bench.events import ENVIRONMENT, EVENT_TYPE, TENANT, waited_key
from bench.stage import Stage

WAITERS = 10_000
FILL = """
copy matcher.waitpoint (
  tenant, environment, id, key_hash, created_at, updated_at, expires_at, kind, state, waiter,
  event_type, correlation_key, opened) from stdin (format binary)
"""
FILL_TYPES = [
    "text",
    "text",
    "uuid",
    "int8",
    "timestamptz",
    "timestamptz",
    "timestamptz",
    "text",
    "text",
    "text",
    "text",
    "text",
    "bytea",
]
ALLOW = """
insert into matcher.tenant_setting (tenant, environment, name, value)
values (%s, %s, 'open_waitpoints_per_tenant', '100000000')
on conflict (tenant, environment, name) do nothing
"""
COUNT_OPEN = """
insert into matcher.open_counter (tenant, environment, waiter, open_count)
select tenant, environment, waiter, count(*) from matcher.waitpoint group by 1, 2, 3
union all
select tenant, environment, '', count(*) from matcher.waitpoint group by 1, 2
"""
CEILING = """
create schema ceiling;
create sequence ceiling.arrival increment by 8192;
create table ceiling.position (
  topic text, partition int, next_offset bigint not null, primary key (topic, partition)
) with (fillfactor = 50);
create table ceiling.event (like matcher.event including all) partition by range (received_at);
"""
MAILBOXES = (
    "mailbox.outbox, mailbox.record, mailbox.delivery, mailbox.mailbox, mailbox.cursor,"
    " mailbox.request"
)
EMPTIED = (
    "matcher.event, matcher.outbox, matcher.outbox_dead, matcher.closed_delta,"
    f" matcher.waiter_floor, ceiling.event, {MAILBOXES}"
)
REOPEN = """
update matcher.waitpoint
set state = 'open', updated_at = created_at, closed_at = null, responded_at = null, revision = 1,
  event_id = null, event_received_at = null
where state <> 'open' and kind = 'event'
"""


@dataclass(frozen=True, slots=True)
class Database:
    """A migrated database with `open_waitpoints` event waitpoints, one for each key."""

    name: str
    url: str
    open_waitpoints: int

    def owner(self) -> psycopg.Connection:
        """Return a connection that owns everything and that no rule holds back."""
        options = "-c session_replication_role=replica"
        return psycopg.connect(self.url, autocommit=True, options=options)

    def passwords(self) -> dict[str, str]:
        """Return the passwords of the service roles, in the environment's names."""
        return {f"{r.upper()}_PASSWORD": p for r, p in role_passwords(self.url, "").items()}


@dataclass(frozen=True, slots=True)
class Found:
    """What stands in the database after a run."""

    recorded: int
    matched: int
    resolved: int
    closed: int
    announced: dict[str, int]


def open_database(stage: Stage, open_waitpoints: int) -> Database:
    """Return the database with that many open waitpoints, made and filled unless it exists.

    What the last run of matchers announced goes: a publisher would go on with it.
    """
    version = hashlib.sha256(repr([m.digest for m in read_migrations()]).encode()).hexdigest()[:8]
    name = f"relay_bench_{open_waitpoints}_{version}"
    drop_other_versions(stage.postgres_url, f"relay_bench_{open_waitpoints}_", name)
    create_database(stage.postgres_url, name)
    url = make_conninfo(stage.postgres_url, dbname=name)
    database = Database(name, url, open_waitpoints)
    with database.owner() as conn:
        if prepare(url, role_passwords(url, "")):
            fill(conn, open_waitpoints)
        conn.execute(f"truncate {EMPTIED}")
    return database


def drop_other_versions(server_url: str, prefix: str, name: str) -> None:
    """Drop databases of an older schema."""
    with psycopg.connect(server_url, autocommit=True) as conn:
        query = "select datname from pg_database where starts_with(datname, %s) and datname <> %s"
        for (old,) in conn.execute(query, (prefix, name)).fetchall():
            conn.execute(sql.SQL("drop database {} (force)").format(sql.Identifier(old)))


def fill(conn: psycopg.Connection, count: int) -> None:
    """Open `count` waitpoints as the owner, without the service, and prepare the ceilings."""
    conn.execute(CEILING)
    seed = conn.execute("select hash_seed from relay.installation").fetchone()[0]
    at = conn.execute("select relay.now()").fetchone()[0]
    with conn.cursor() as cursor, cursor.copy(FILL) as copy:
        copy.set_types(FILL_TYPES)
        for number in range(count):
            copy.write_row(waitpoint(number, at, seed))
    conn.execute(COUNT_OPEN)
    conn.execute("vacuum (analyze) matcher.waitpoint")


def waitpoint(number: int, at: datetime, seed: int) -> tuple[object, ...]:
    """Return the row of open waitpoint `number`."""
    return row_of(waited_key(number), f"agent:waiter-{number % WAITERS}", at, seed)


def row_of(
    correlation_key: str, waiter: str, at: datetime, seed: int, wait: timedelta = timedelta(days=29)
) -> tuple[object, ...]:
    """Return the row of an event waitpoint of `waiter` on `correlation_key`, open since `at`."""
    identity = new_id()
    key = MatchKey(TENANT, ENVIRONMENT, EVENT_TYPE, correlation_key)
    expires_at = at + wait
    opened = (
        f'{{"id":"{encode_id("wp_", identity.bytes)}","kind":"event",'
        f'"match":{{"event_type":"{EVENT_TYPE}","correlation_key":"{correlation_key}"}},'
        f'"waiter":"{waiter}","tenant":"{TENANT}","environment":"{ENVIRONMENT}",'
        f'"created_at":"{rfc3339(at)}","expires_at":"{rfc3339(expires_at)}"'
    )
    return (
        TENANT,
        ENVIRONMENT,
        identity,
        key.hash(seed),
        at,
        at,
        expires_at,
        "event",
        "open",
        waiter,
        EVENT_TYPE,
        correlation_key,
        opened.encode(),
    )


def add_waitpoints(
    database: Database, wanted: Iterable[tuple[str, str]], wait: timedelta = timedelta(days=29)
) -> datetime:
    """Open a waitpoint for each correlation key and waiter; return when (database's clock)."""
    with database.owner() as conn:
        seed = conn.execute("select hash_seed from relay.installation").fetchone()[0]
        at = conn.execute("select relay.now()").fetchone()[0]
        with conn.cursor() as cursor, cursor.copy(FILL) as copy:
            copy.set_types(FILL_TYPES)
            for correlation_key, waiter in wanted:
                copy.write_row(row_of(correlation_key, waiter, at, seed, wait))
    return at


def remove_waitpoints(database: Database, prefix: str) -> None:
    """Remove the waitpoints whose correlation key begins with `prefix`, and what the run wrote.

    Services may be running: each table on its own, so that none waits for another in a circle.
    """
    with database.owner() as conn:
        for table in EMPTIED.split(", "):
            conn.execute(f"truncate {table}")
        conn.execute(
            "delete from matcher.waitpoint where starts_with(correlation_key, %s)", (prefix,)
        )
        conn.execute("delete from matcher.reply_session")
        conn.execute("delete from matcher.responder")
        conn.execute("vacuum (analyze) matcher.waitpoint")


def empty_mailboxes(database: Database) -> None:
    """Remove every mailbox and record."""
    with database.owner() as conn:
        conn.execute("set lock_timeout = '30s'")
        conn.execute(f"truncate {MAILBOXES}")


def restore(database: Database) -> None:
    """Open again what the last run closed, and let nothing of it slow down the next."""
    with database.owner() as conn:
        conn.execute("set lock_timeout = '30s'")
        if conn.execute(REOPEN).rowcount:
            conn.execute("vacuum (analyze) matcher.waitpoint")
        conn.execute(ALLOW, (TENANT, ENVIRONMENT))
        conn.execute("select matcher.create_slices('24 hours')")
        make_ceiling_slices(conn)


def make_ceiling_slices(conn: psycopg.Connection) -> None:
    """Give the ceiling's table the slices and indexes of the event log."""
    slices = conn.execute("select name, starts_at, ends_at from matcher.event_slice").fetchall()
    for name, starts_at, ends_at in slices:
        own = sql.Identifier("ceiling", name)
        if conn.execute("select to_regclass(%s)", (f"ceiling.{name}",)).fetchone()[0] is None:
            like = sql.SQL("create table {} (like matcher.{} including all)")
            conn.execute(like.format(own, sql.Identifier(name)))
            attach = sql.SQL(
                "alter table ceiling.event attach partition {} for values from ({}) to ({})"
            )
            conn.execute(attach.format(own, sql.Literal(starts_at), sql.Literal(ends_at)))


@contextmanager
def held(database: Database, *, empty: bool = True) -> Iterator[None]:
    """Keep every writer of the event log waiting; at the end of the block they all begin."""
    with database.owner() as conn, conn.transaction():
        conn.execute("set local lock_timeout = '30s'")
        if empty:
            conn.execute(f"truncate {EMPTIED}")
        else:
            conn.execute("lock table matcher.event, ceiling.event in access exclusive mode")
        yield


def find(database: Database) -> Found:
    """Count what the run left behind."""
    with database.owner() as conn:
        one = lambda query: conn.execute(query).fetchone()[0]  # noqa: E731
        payloads = conn.execute("select topic, payload from matcher.outbox").fetchall()
        announced: dict[str, int] = {}
        expand = expander(Announcer(Codec().prefix, "bench.{}".format))
        for topic, payload in payloads:
            for goes_to, _ in expand(topic, bytes(payload)):
                announced[goes_to] = announced.get(goes_to, 0) + 1
        return Found(
            recorded=one("select count(*) from matcher.event"),
            matched=one("select count(*) from matcher.event where rule_id = 0"),
            resolved=one("select count(*) from matcher.waitpoint where state = 'resolved'"),
            closed=one(
                "select coalesce(sum(n), 0)::int from matcher.closed_delta, unnest(closed) n"
            ),
            announced=announced,
        )


def login(url: str) -> dict[str, str]:
    """Return `url` as the services want it: without user and password."""
    parts = conninfo_to_dict(url)
    return {
        "RELAY_DATABASE_URL": make_conninfo(
            "", **{k: v for k, v in parts.items() if k not in ("user", "password")}
        )
    }
