"""Connections: one for each loop, an async pool for HTTP, and what a server must promise."""

import select
import threading
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import LiteralString

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow
from psycopg_pool import AsyncConnectionPool, PoolClosed

from relay_common.errors import StoreUnavailable
from relay_common.overlap import OverlappingConnection

Connection = psycopg.Connection[TupleRow]
AsyncConnection = psycopg.AsyncConnection[TupleRow]
Pool = AsyncConnectionPool[AsyncConnection]

OLDEST_SERVER = 160000
# A frozen process keeps its locks until the server gives it up: about as long as its group waits.
STREAM_OPTIONS = (
    "-c statement_timeout=60s -c lock_timeout=20s -c idle_in_transaction_session_timeout=15s"
)
HTTP_OPTIONS = (
    "-c statement_timeout=10s -c lock_timeout=5s -c idle_in_transaction_session_timeout=15s"
)
# A dead network is noticed within about 15 s instead of two hours.
KEEPALIVE = {
    "connect_timeout": "5",
    "keepalives_idle": "10",
    "keepalives_interval": "3",
    "keepalives_count": "2",
    "tcp_user_timeout": "15000",
}
SCOPE = "select set_config('relay.tenant', %s, true), set_config('relay.environment', %s, true)"
# What says "the database, not the request": connection or server gone, full or read-only.
UNAVAILABLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    errors.ReadOnlySqlTransaction,
    PoolClosed,
)


class UnsafeDatabase(Exception):
    """The server could forget what it has acknowledged, or is no primary of a supported version."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Who this database is; `hash_seed` belongs to MatchKey.hash."""

    id: uuid.UUID
    hash_seed: int


def role_conninfo(database_url: str, role: str, password: str | None) -> str:
    """Return `database_url` for `role`, whose password replaces the one in the URL."""
    parts = conninfo_to_dict(database_url)
    parts.pop("password", None)
    parts["user"] = role
    if password is not None:
        parts["password"] = password
    return make_conninfo("", **parts)


def with_limits(conninfo: str, application_name: str, options: str) -> str:
    """Return `conninfo` with keepalives and time limits; what it says itself wins."""
    given = {k: str(v) for k, v in conninfo_to_dict(conninfo).items() if v is not None}
    limits = {**KEEPALIVE, "options": options, "application_name": application_name}
    return make_conninfo("", **{**limits, **given})


def connect(conninfo: str, application_name: str) -> OverlappingConnection:
    """Return a stream side connection in autocommit: a transaction is `conn.transaction()`.

    Raises psycopg.OperationalError when there is none to be had.
    """
    limited = with_limits(conninfo, application_name, STREAM_OPTIONS)
    return OverlappingConnection.connect(limited, autocommit=True)


def open_pool(conninfo: str, application_name: str, max_size: int) -> Pool:
    """Return the HTTP side's pool, not opened yet; a connection is checked before it is lent."""
    return AsyncConnectionPool(
        with_limits(conninfo, application_name, HTTP_OPTIONS),
        kwargs={"autocommit": True},
        min_size=min(2, max_size),
        max_size=max_size,
        open=False,
        timeout=5.0,
        check=check_quiet,
        name=application_name,
    )


async def check_quiet(conn: AsyncConnection) -> None:
    """Raise psycopg.OperationalError when an idle connection is not quiet: it has been closed.

    A server says so when it ends a connection; to ask it costs every transaction a round trip.
    """
    quiet = select.poll()
    quiet.register(conn.fileno(), select.POLLIN)
    if quiet.poll(0):
        await AsyncConnectionPool.check_connection(conn)


@asynccontextmanager
async def tenant_transaction(
    pool: Pool, tenant: str, environment: str
) -> AsyncGenerator[AsyncConnection]:
    """Lend a connection inside a transaction that sees one tenant and environment only.

    It is in pipeline mode: a statement is on its way when its rows are asked for, or at the end;
    so is its refusal.

    Raises StoreUnavailable (503) when the database cannot be reached, does not answer in time or
    goes away; whether a commit under way then took place is for the retry's idempotency key.
    """
    try:
        async with pool.connection() as conn, conn.pipeline():
            await conn.execute("begin")
            await conn.execute(SCOPE, (tenant, environment))
            try:
                yield conn
            except BaseException:
                with suppress(errors.PipelineAborted):  # the error to tell is what aborted it
                    await conn.rollback()
                raise
            await conn.execute("commit")
    except UNAVAILABLE as error:
        raise StoreUnavailable from error  # what the driver says is not for the caller


@asynccontextmanager
async def savepoint(conn: AsyncConnection) -> AsyncGenerator[None]:
    """Take back what is done inside when it raises; the transaction goes on.

    All that was sent before, and inside, is waited for.
    """
    async with conn.pipeline():  # only at its end does the driver know that a transaction is open
        pass
    async with conn.transaction():
        yield


def check_server(conn: Connection, *, allow_unsafe_durability: bool) -> None:
    """Raise UnsafeDatabase unless acknowledged means durable on a primary of version 16 or later.

    `allow_unsafe_durability` leaves out the durability settings: throw-away test servers only.
    """
    row = one_row(
        conn,
        "select current_setting('server_version_num')::int, pg_is_in_recovery(),"
        " current_setting('fsync'), current_setting('full_page_writes'),"
        " current_setting('synchronous_commit')",
    )
    version, standby, fsync, full_pages, commit = row
    if version < OLDEST_SERVER or standby:
        raise UnsafeDatabase(f"expected a primary of 16 or later, found {version}, {standby=}")
    durable = (fsync, full_pages) == ("on", "on") and commit in ("on", "remote_apply")
    if not durable and not allow_unsafe_durability:
        raise UnsafeDatabase(
            "expected fsync=on, full_page_writes=on and synchronous_commit=on,"
            f" found {fsync}, {full_pages} and {commit}"
        )


def wait_for_schema(conn: Connection, version: str, stop: threading.Event) -> None:
    """Return when the migration named `version` (or beginning so) is applied, or `stop` is set."""
    while not stop.is_set():
        try:
            found = conn.execute(
                "select 1 from public.relay_migration where starts_with(name, %s)", (version,)
            ).fetchone()
        except errors.UndefinedTable:
            found = None
        if found is not None:
            return
        stop.wait(0.5)


def installation(conn: Connection) -> Installation:
    """Return the identity of this database."""
    row = one_row(conn, "select id, hash_seed from relay.installation")
    return Installation(id=row[0], hash_seed=row[1])


def one_row(conn: Connection, statement: LiteralString) -> TupleRow:
    """Return the one row of `statement`. Raises LookupError when there is none."""
    row = conn.execute(statement).fetchone()
    if row is None:
        raise LookupError(f"expected one row of {statement!r}, found none")
    return row
