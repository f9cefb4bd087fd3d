"""A database for every test: a clone of one migrated template, on a server many runs may share."""

import hashlib
import os
import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from itertools import count
from typing import LiteralString
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow

from relay_common import db
from relay_common.migrate import migrate, read_migrations

HERE = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:6]
RUN = f"{HERE}_{os.getpid()}"
NUMBERS = count(1)
PASSWORDS_LOCK = (0x52454C41, 2)

# Settings of roles in a database are not cloned with it.
ROLE_SETTINGS: LiteralString = """
select r.rolname, split_part(c, '=', 1), substr(c, strpos(c, '=') + 1)
from pg_db_role_setting s
join pg_roles r on r.oid = s.setrole
cross join unnest(s.setconfig) c
where s.setdatabase = (select oid from pg_database where datname = %s)
"""
CLOCK: LiteralString = """
create table relay.test_clock (shift interval not null default '0', frozen timestamptz);
insert into relay.test_clock default values;
grant select on relay.test_clock to public;
create or replace function relay.now() returns timestamptz language sql volatile parallel safe as
  'select coalesce(frozen, clock_timestamp()) + shift from relay.test_clock';
"""


class Database:
    """One test's database. Everything it hands out is closed when the test ends."""

    def __init__(self, server: str, name: str) -> None:
        parts = {k: v for k, v in conninfo_to_dict(server).items() if v is not None}
        self.parts = {**parts, "dbname": name}
        self.name = name
        self.open: list[psycopg.Connection[TupleRow]] = []
        self.owner = self.connect()

    @property
    def url(self) -> str:
        """The owner's URL."""
        user, password = self.parts.get("user", "postgres"), self.parts.get("password")
        login = f"{user}:{password}" if password else user
        host, port = self.parts.get("host", "127.0.0.1"), self.parts.get("port", 5432)
        return f"postgresql://{login}@{host}:{port}/{self.name}"

    def conninfo(self, role: str | None = None) -> str:
        """Return the conninfo of `role` (`relay_matcher_http`, …), or of the owner."""
        return make_conninfo("", **{**self.parts, **({"user": role} if role else {})})

    def connect(self, role: str | None = None) -> psycopg.Connection[TupleRow]:
        """Return a connection of `role` in autocommit; the owner's when none is named."""
        conn = db.connect(self.conninfo(role), "relay-test")
        self.open.append(conn)
        return conn

    def waits_for_a_lock(self, conn: psycopg.Connection[TupleRow]) -> bool:
        """Tell whether the backend of `conn` waits for a lock now."""
        waiting = "select from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
        return self.owner.execute(waiting, (conn.info.backend_pid,)).fetchone() is not None

    def close(self) -> None:
        """Close all connections."""
        for conn in self.open:
            conn.close()


class Clock:
    """relay.now() of one database under the test's hand (design D22)."""

    def __init__(self, database: Database) -> None:
        self.owner = database.owner
        self.owner.execute(CLOCK)

    def shift(self, by: timedelta) -> None:
        """Move the clock forward (or back) by `by`, on top of earlier shifts."""
        self.owner.execute("update relay.test_clock set shift = shift + %s", (by,))

    def freeze(self, at: datetime | None = None) -> None:
        """Stop the clock, now or at `at`; shifts still move it."""
        self.owner.execute(
            "update relay.test_clock set frozen = coalesce(%s, clock_timestamp())", (at,)
        )

    def thaw(self) -> None:
        """Let the clock run again."""
        self.owner.execute("update relay.test_clock set frozen = null")

    def now(self) -> datetime:
        """Return what relay.now() says."""
        return db.one_row(self.owner, "select relay.now()")[0]


class Template:
    """The migrated database that tests are cloned from; belongs to this process alone."""

    def __init__(self, server: str) -> None:
        migrations = read_migrations()
        digest = hashlib.sha256("".join(m.digest for m in migrations).encode()).hexdigest()[:8]
        self.server = server
        self.name = f"relay_template_{RUN}_{digest}"
        with self.admin() as conn:
            drop_leftovers(conn)
            create(conn, self.name, "template1")
            allow_logins(conn, server)
        with psycopg.connect(server, dbname=self.name, autocommit=True) as conn:
            migrate(conn, migrations)

    @contextmanager
    def admin(self) -> Generator[psycopg.Connection[TupleRow]]:
        """Lend a superuser's connection to the server."""
        with psycopg.connect(self.server, autocommit=True) as conn:
            yield conn

    @contextmanager
    def clone(self) -> Generator[Database]:
        """Lend a fresh clone; it is dropped afterwards."""
        name = f"relay_test_{RUN}_{next(NUMBERS)}"
        with self.admin() as conn:
            create(conn, name, self.name)
            for role, setting, value in conn.execute(ROLE_SETTINGS, (self.name,)).fetchall():
                conn.execute(
                    sql.SQL("alter role {} in database {} set {} = {}").format(
                        sql.Identifier(role),
                        sql.Identifier(name),
                        sql.Identifier(setting),
                        sql.SQL(", ").join(map(sql.Identifier, value.split(", "))),
                    )
                )
        database = Database(self.server, name)
        try:
            yield database
        finally:
            database.close()
            self.drop(name)

    def drop(self, name: str) -> None:
        """Drop a database of this run, whoever is still connected."""
        with self.admin() as conn:
            conn.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))


def create(conn: psycopg.Connection[TupleRow], name: str, template: str) -> None:
    """Create database `name` as a copy of `template`."""
    conn.execute(
        sql.SQL("create database {} template {}").format(
            sql.Identifier(name), sql.Identifier(template)
        )
    )


def allow_logins(conn: psycopg.Connection[TupleRow], server: str) -> None:
    """Give the roles the owner's password, where the server asks for passwords."""
    password = urlsplit(server).password
    if password is None:
        return
    conn.execute("select pg_advisory_lock(%s, %s)", PASSWORDS_LOCK)
    sides = (("http", sql.SQL("nobypassrls")), ("stream", sql.SQL("bypassrls")))
    for service in ("intake", "matcher", "escalation", "mailbox"):
        for side, attribute in sides:
            role = sql.Identifier(f"relay_{service}_{side}")
            with suppress(psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
                conn.execute(sql.SQL("create role {} login {}").format(role, attribute))
            conn.execute(sql.SQL("alter role {} password {}").format(role, password))
    conn.execute("select pg_advisory_unlock(%s, %s)", PASSWORDS_LOCK)


def drop_leftovers(conn: psycopg.Connection[TupleRow]) -> None:
    """Drop the databases of runs on this machine that were killed before they could."""
    found = conn.execute(
        "select datname, split_part(datname, '_', 4)::int from pg_database"
        " where datname ~ ('^relay_(template|test)_' || %s || '_[0-9]+_')",
        (HERE,),
    ).fetchall()
    for name, pid in found:
        if not os.path.exists(f"/proc/{pid}"):
            conn.execute(
                sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name))
            )
