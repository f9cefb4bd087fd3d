"""The database of a stack: made, migrated, and its service roles given passwords."""

from collections.abc import Mapping

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import TupleRow
from relay_common.migrate import MigrationRefusedError, migrate, read_migrations

from relay_devstack.errors import StartFailedError
from relay_devstack.secrets import derived_password

SERVICES = ("intake", "matcher", "escalation", "mailbox")
ROLES = tuple(f"relay_{service}_{side}" for service in SERVICES for side in ("http", "stream"))


def create_database(server_url: str, name: str) -> None:
    """Create the database `name` on the server unless it exists."""
    with psycopg.connect(server_url, autocommit=True) as conn:
        known = conn.execute("select 1 from pg_database where datname = %s", (name,)).fetchone()
        if known is None:
            conn.execute(sql.SQL("create database {}").format(sql.Identifier(name)))


def prepare(url: str, passwords: Mapping[str, str]) -> list[str]:
    """Migrate the database of `url` and let its roles log in; return the names applied.

    `passwords` by role; a role that can log in already is left as it is.
    Raises StartFailedError when it cannot be reached or its history differs from ours.
    """
    try:
        with psycopg.connect(url, autocommit=True, connect_timeout=10) as conn:
            applied = migrate(conn, read_migrations())
            for role, password in passwords.items():
                _let_in(conn, url, role, password)
    except psycopg.OperationalError as error:
        raise StartFailedError(
            f"The database at {without_login(url)} does not answer ({str(error).strip()}): start "
            "it, or unset RELAY_DATABASE_URL to get one."
        ) from error
    except MigrationRefusedError as error:
        raise StartFailedError(
            f"Another version of Relay migrated this database ({error}): `make db-reset` throws "
            "away the stack's own data; instead of a database you brought, bring a new one."
        ) from error
    return applied


def role_passwords(url: str, fallback: str) -> dict[str, str]:
    """Return the password of every role.

    They derive from the owner's password, so that stacks that share a server agree; from the
    secret `fallback` where the owner has none.
    """
    secret = str(conninfo_to_dict(url).get("password") or fallback)
    return {role: derived_password(secret, role) for role in ROLES}


def without_login(url: str) -> str:
    """Return `url` without user and password: services log in as roles of their own."""
    parts = conninfo_to_dict(url)
    return make_conninfo("", **{k: v for k, v in parts.items() if k not in ("user", "password")})


def _let_in(conn: psycopg.Connection[TupleRow], url: str, role: str, password: str) -> None:
    try:
        psycopg.connect(make_conninfo(url, user=role, password=password)).close()
    except psycopg.OperationalError:
        change = sql.SQL("alter role {} password {}")
        conn.execute(change.format(sql.Identifier(role), sql.Literal(password)))
