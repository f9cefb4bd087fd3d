"""Periodic duties, each one function that returns what it found.

None of them is needed to be right: leases expire and records die without them.
"""

from collections.abc import Mapping

from relay_common.db import Connection
from relay_common.telemetry import gauge

from relay_mailbox.operations.append import Appending
from relay_mailbox.operations.fan_out import FanOut
from relay_mailbox.store import measures, retention

DAYS_AHEAD = 2
MAILBOXES_A_RUN = 500
DEAD_LETTERS_A_RUN = 5000
HINTS_A_PAGE = 1000
DENSITY_SAMPLE = 200


def open_slices(conn: Connection) -> Mapping[str, int]:
    """Open the slices of the record table for today and the next days."""
    return {"slices_opened": retention.open_slices(conn, DAYS_AHEAD)}


def expire_due(conn: Connection) -> Mapping[str, int]:
    """Take away what is older than its tenant's retention; drop slices nobody needs any more.

    What lies in a dropped slice is below the oldest record of every mailbox.
    """
    mailboxes, unacked = retention.expire_records(conn, MAILBOXES_A_RUN)
    dead = retention.expire_dead_letters(conn, DEAD_LETTERS_A_RUN)
    dropped = retention.drop_slices(conn)
    return {
        "mailboxes_trimmed": mailboxes,
        "unacked_records_expired": unacked,
        "dead_letters_expired": dead,
        "slices_dropped": dropped,
    }


def dead_letter_exhausted(conn: Connection) -> Mapping[str, int]:
    """Dead-letter records that nobody leases any more, so that their owners hear of it.

    A lease does the same for what stands before it; this is for mailboxes without a reader.
    """
    with conn.transaction():
        return {"records_dead_lettered": retention.dead_letter_exhausted(conn, MAILBOXES_A_RUN)}


def announce_hints(appending: Appending, conn: Connection) -> Mapping[str, int]:
    """Announce the hints that were held back and are due, page by page."""
    announced = 0
    while page := appending.announce_due(conn, HINTS_A_PAGE):
        announced += page
    return {"hints_announced": announced}


def fan_out_due(fan_out: FanOut, conn: Connection) -> Mapping[str, int]:
    """Fan out whatever waits, page by page."""
    copies = 0
    while (page := fan_out.run_page(conn)) is not None:
        copies += page
    return {"copies_announced": copies}


def measure(conn: Connection) -> Mapping[str, int]:
    """Set the gauges: records by delivery state, age of the oldest one that waits, streams of a
    random sample that are not dense and prepared transactions (there must be none of both)."""
    states, oldest_seconds = measures.by_state(conn)
    for state, records in states.items():
        gauge("relay_mailbox_delivery_records").labels(state).set(records)
    gauge("relay_mailbox_oldest_available_seconds").set(oldest_seconds)
    gauge("relay_mailbox_fan_outs").set(measures.waiting_fan_outs(conn))
    prepared = measures.prepared_transactions(conn)
    gauge("relay_mailbox_prepared_transactions").set(prepared)
    checked, holes = measures.density(conn, DENSITY_SAMPLE)
    gauge("relay_mailbox_streams_with_holes").set(holes)
    return {"streams_checked": checked, "streams_with_holes": holes}
