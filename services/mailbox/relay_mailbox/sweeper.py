"""Periodic duties, each one function that returns what it found.

None of them is needed to be right: leases expire and records die without them.
"""

from collections.abc import Mapping

from relay_common.db import Connection

from relay_mailbox.store import retention

DAYS_AHEAD = 2


def open_slices(conn: Connection) -> Mapping[str, int]:
    """Open the slices of the record table for today and the next days."""
    return {"slices_opened": retention.open_slices(conn, DAYS_AHEAD)}
