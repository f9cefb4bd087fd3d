"""Connections: limits, tenants kept apart, and a database that is away."""

import threading

import psycopg
import pytest
from relay_common import db
from relay_common.errors import StoreUnavailable
from relay_common.testing import wait
from relay_common.testing.databases import Database

ROLE = "relay_intake_http"
KEY = (
    "insert into idempotency_key (tenant, environment, client, route, key_digest, fingerprint,"
    " status, body) values (%s, 'test', 'c', 'r', '\\x01', '\\x01', 200, '')"
)


def test_role_replaces_user_and_password_of_the_url() -> None:
    url = "postgresql://owner:secret@db.example:6432/relay?sslmode=require"
    parts = psycopg.conninfo.conninfo_to_dict(db.role_conninfo(url, "relay_intake_http", "own"))
    assert (parts["user"], parts["password"], parts["host"]) == (
        "relay_intake_http",
        "own",
        "db.example",
    )
    assert parts["sslmode"] == "require"
    assert "secret" not in db.role_conninfo(url, "relay_intake_http", None)


def test_stream_connection_has_time_limits_and_a_name(database: Database) -> None:
    with db.connect(database.conninfo("relay_matcher_stream"), "matcher") as conn:
        settings = [
            conn.execute(f"show {name}").fetchone()
            for name in ("lock_timeout", "statement_timeout", "application_name")
        ]
        assert settings == [("20s",), ("1min",), ("matcher",)]
        assert conn.autocommit


def test_installation_is_one_and_stays(database: Database) -> None:
    first = db.installation(database.connect(ROLE))
    assert first == db.installation(database.connect("relay_matcher_stream"))
    assert -(2**63) <= first.hash_seed < 2**63


def test_server_that_may_forget_is_refused(database: Database) -> None:
    conn = database.connect()
    conn.execute("set synchronous_commit = off")
    with pytest.raises(db.UnsafeDatabase, match=r"found .* and off"):
        db.check_server(conn, allow_unsafe_durability=False)
    db.check_server(conn, allow_unsafe_durability=True)


def test_service_waits_for_its_migration(database: Database) -> None:
    stop = threading.Event()
    waiting = threading.Thread(
        target=db.wait_for_schema, args=(database.connect(ROLE), "9999_pre_later", stop)
    )
    waiting.start()
    database.owner.execute(
        "insert into public.relay_migration (name, digest) values ('9999_pre_later.sql', '')"
    )
    waiting.join(5)
    assert not waiting.is_alive()


def test_waiting_for_a_migration_ends_with_the_process(database: Database) -> None:
    stop = threading.Event()
    stop.set()
    db.wait_for_schema(database.connect(ROLE), "9999_pre_later", stop)


async def test_transaction_sees_one_tenant_only(database: Database) -> None:
    async with db.open_pool(database.conninfo(ROLE), "test", 2) as pool:
        async with db.tenant_transaction(pool, "acme", "test") as conn:
            await conn.execute(KEY, ("acme",))
        async with db.tenant_transaction(pool, "other", "test") as conn:
            assert await (await conn.execute("select * from idempotency_key")).fetchall() == []
        async with db.tenant_transaction(pool, "acme", "test") as conn:
            assert len(await (await conn.execute("select * from idempotency_key")).fetchall()) == 1
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            async with db.tenant_transaction(pool, "other", "test") as conn:
                await conn.execute(KEY, ("acme",))
        async with pool.connection() as conn:
            assert await (await conn.execute("select * from idempotency_key")).fetchall() == []


async def test_pool_heals_after_its_connections_are_cut(database: Database) -> None:
    async with db.open_pool(database.conninfo(ROLE), "test", 2) as pool:
        async with db.tenant_transaction(pool, "acme", "test") as conn:
            await conn.execute("select 1")
        database.owner.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'test'"
            " and datname = current_database()"
        )

        async def works() -> bool:
            try:  # whoever is given a connection in the moment of its end is told so
                async with db.tenant_transaction(pool, "acme", "test") as conn:
                    await conn.execute("select 1")
            except StoreUnavailable:
                return False
            return True

        assert await wait.eventually(works)


async def test_database_that_goes_away_in_a_transaction_is_store_unavailable(
    database: Database,
) -> None:
    async with db.open_pool(database.conninfo(ROLE), "test", 2) as pool:

        async def cut() -> None:
            async with db.tenant_transaction(pool, "acme", "test") as conn:
                pid = conn.info.backend_pid
                database.owner.execute("select pg_terminate_backend(%s)", (pid,))
                await conn.execute("select 1")

        with pytest.raises(StoreUnavailable):
            await cut()


async def test_errors_of_the_rules_come_through_unchanged(database: Database) -> None:
    async with db.open_pool(database.conninfo(ROLE), "test", 2) as pool:
        with pytest.raises(psycopg.errors.DivisionByZero):
            async with db.tenant_transaction(pool, "acme", "test") as conn:
                await conn.execute("select 1 / 0")


async def refused(pool: db.Pool) -> None:
    """Be refused while more is on its way."""
    async with db.tenant_transaction(pool, "acme", "test") as conn:
        await conn.execute("select 1 / 0")
        for _ in range(1_000):
            await conn.execute("select 1")


async def test_what_aborts_a_pipeline_is_what_is_told(database: Database) -> None:
    """Not that it was aborted, which would read as a database that does not answer."""
    async with db.open_pool(database.conninfo(ROLE), "test", 1) as pool:
        for _ in range(20):
            with pytest.raises(psycopg.errors.DivisionByZero):
                await refused(pool)
        async with db.tenant_transaction(pool, "acme", "test") as conn:
            found = await conn.execute("select 2")
            assert await found.fetchall() == [(2,)]
