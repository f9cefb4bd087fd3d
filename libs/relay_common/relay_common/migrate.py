"""Runs the migrations of `db/migrations` in order, once, under an advisory lock (design §6).

Forward only. Each file is one transaction. A file that was applied and has changed since is
refused: the history of a database is what happened, not what a later checkout says.
"""

import argparse
import hashlib
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString, cast

import psycopg
from psycopg.rows import TupleRow

MIGRATIONS = Path(__file__).parents[3] / "db" / "migrations"
NAME = re.compile(r"^\d{4}_(pre|post)_[a-z0-9_]+\.sql$")
LOCK = (0x52454C41, 1)  # two-int advisory space: long-held locks stay out of the bigint one


class MigrationRefusedError(Exception):
    """The files and the database disagree about the history."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One file: its name, which is its place in the history, and its text."""

    name: str
    text: LiteralString
    digest: str


def read_migrations(folder: Path = MIGRATIONS) -> list[Migration]:
    """Return the migrations of `folder` in order.

    Raises MigrationRefusedError on a name outside the scheme.
    """
    found: list[Migration] = []
    for path in sorted(folder.glob("*.sql")):
        if not NAME.match(path.name):
            raise MigrationRefusedError(f"expected NNNN_pre_… or NNNN_post_…, found {path.name}")
        # The repository's own files are the one place where statements come from text.
        text = cast(LiteralString, path.read_text(encoding="utf-8"))
        found.append(Migration(path.name, text, hashlib.sha256(text.encode()).hexdigest()))
    return found


def migrate(conn: psycopg.Connection[TupleRow], migrations: list[Migration]) -> list[str]:
    """Apply what is missing on `conn` (autocommit, as the owner) and return the names applied.

    Raises MigrationRefusedError when an applied file has changed or is gone.
    """
    conn.execute("select pg_advisory_lock(%s, %s)", LOCK)
    try:
        done = applied(conn)
        refuse_rewritten(migrations, done)
        missing = [m for m in migrations if m.name not in done]
        for migration in missing:
            apply(conn, migration)
        return [m.name for m in missing]
    finally:
        conn.execute("select pg_advisory_unlock(%s, %s)", LOCK)


def applied(conn: psycopg.Connection[TupleRow]) -> dict[str, str]:
    """Return name → digest of what this database has, creating the table that says so."""
    conn.execute(
        "create table if not exists public.relay_migration (name text primary key,"
        " digest text not null, applied_at timestamptz not null default clock_timestamp())"
    )
    conn.execute("grant select on public.relay_migration to public")
    return dict(conn.execute("select name, digest from public.relay_migration").fetchall())


def refuse_rewritten(migrations: list[Migration], done: dict[str, str]) -> None:
    """Raise MigrationRefusedError when the applied history is not a prefix of the files."""
    known = {m.name: m.digest for m in migrations}
    for name, digest in done.items():
        if known.get(name) != digest:
            raise MigrationRefusedError(
                f"expected {name} as it was applied, found it changed or gone"
            )


def apply(conn: psycopg.Connection[TupleRow], migration: Migration) -> None:
    """Run one migration and record it in one transaction; a lock not free in 5 s fails it."""
    with conn.transaction():
        conn.execute("set local lock_timeout = '5s'")
        conn.execute(migration.text)
        conn.execute(
            "insert into public.relay_migration (name, digest) values (%s, %s)",
            (migration.name, migration.digest),
        )


def main() -> int:
    """Migrate the database of `--database-url` or RELAY_DATABASE_URL; print the names applied."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database-url", default=os.environ.get("RELAY_DATABASE_URL"))
    url = parser.parse_args().database_url
    if not url:
        parser.error("expected --database-url or RELAY_DATABASE_URL")
    with psycopg.connect(url, autocommit=True) as conn:
        names = migrate(conn, read_migrations())
    for name in names:
        sys.stdout.write(f"applied {name}\n")
    if not names:
        sys.stdout.write("nothing to apply\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
