"""Slices, and what retention takes away."""

from relay_common import queries
from relay_common.db import Connection, one_row

from relay_mailbox.store.appends import first

SQL = queries.load("relay_mailbox", "retention")


def open_slices(conn: Connection, days_ahead: int) -> int:
    """Open the slices of today and `days_ahead` more days; return how many were new."""
    return first(conn, SQL["open_slices"], {"days_ahead": days_ahead})


def drop_slices(conn: Connection) -> int:
    """Drop the slices older than the longest retention of any tenant; return how many."""
    return one_row(conn, SQL["drop_slices"])[0]


def expire_records(conn: Connection, wanted: int) -> tuple[int, int]:
    """Apply retention by age to up to `wanted` due mailboxes.

    Returns how many were due and how many of their records nobody had acknowledged.
    """
    row = conn.execute(SQL["expire_records"], {"wanted": wanted}).fetchone()
    return (0, 0) if row is None else (row[0], row[1])


def count_trimmed(conn: Connection) -> int:
    """Return how many unacknowledged records retention by count has taken away since the last
    call, whoever made it."""
    return one_row(conn, SQL["count_trimmed"])[0]


def expire_dead_letters(conn: Connection, wanted: int) -> int:
    """Remove up to `wanted` dead letters older than the retention; return how many."""
    return first(conn, SQL["expire_dead_letters"], {"wanted": wanted})


def dead_letter_exhausted(conn: Connection, wanted: int) -> int:
    """Dead-letter exhausted records of up to `wanted` mailboxes inside the open transaction, each
    with its notice; return how many."""
    rows = conn.execute(SQL["exhausted_mailboxes"], {"wanted": wanted}).fetchall()
    columns = ("tenant", "environment", "mailbox_id", "low_water")
    return sum(
        first(conn, SQL["dead_letter_exhausted"], dict(zip(columns, row, strict=True)))
        for row in rows
    )
