"""Slices, and what retention takes away."""

from relay_common import queries
from relay_common.db import Connection

from relay_mailbox.store.appends import first

SQL = queries.load("relay_mailbox", "retention")


def open_slices(conn: Connection, days_ahead: int) -> int:
    """Open the slices of today and `days_ahead` more days; return how many were new."""
    return first(conn, SQL["open_slices"], {"days_ahead": days_ahead})
