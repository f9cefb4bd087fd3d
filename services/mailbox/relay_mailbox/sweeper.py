"""Periodic duties, each one function that returns what it found.

None of them is needed to be right: leases expire and records die without them.
"""

from collections.abc import Mapping, Sequence

from relay_common.db import Connection
from relay_common.telemetry import MetricName, gauge

from relay_mailbox.operations.append import Appending
from relay_mailbox.operations.fan_out import FanOut
from relay_mailbox.store import measures, retention

DAYS_AHEAD = 2
MAILBOXES_A_RUN = 500
DEAD_LETTERS_A_RUN = 5000
HINTS_A_PAGE = 1000
DENSITY_SAMPLE = 200
GAUGES: Sequence[MetricName] = (
    "relay_mailbox_oldest_available_seconds",
    "relay_mailbox_fan_outs",
    "relay_mailbox_prepared_transactions",
    "relay_mailbox_streams_with_holes",
)


def open_slices(conn: Connection) -> Mapping[str, int]:
    """Open the slices of the record table for today and the next days."""
    return {"slices_opened": retention.open_slices(conn, DAYS_AHEAD)}


def expire_due(conn: Connection) -> Mapping[str, int]:
    """Take away what is older than its tenant's retention; drop slices nobody needs any more.

    What lies in a dropped slice is below the oldest record of every mailbox. What the count took
    away is counted here, too: appends have no metric of their own for it.
    """
    mailboxes, unacked = retention.expire_records(conn, MAILBOXES_A_RUN)
    dead = retention.expire_dead_letters(conn, DEAD_LETTERS_A_RUN)
    dropped = retention.drop_slices(conn)
    return {
        "mailboxes_trimmed": mailboxes,
        "unacked_records_expired": unacked + retention.count_trimmed(conn),
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


def measure(interval_seconds: float, conn: Connection) -> Mapping[str, int]:
    """Set the gauges: records by delivery state, age of the oldest one that waits, streams of a
    random sample that are not dense and prepared transactions (there must be none of both).

    Measuring reads every delivery, so one process at a time does it, once an interval and at most
    a hundredth of the time; the others show what it found.
    """
    with conn.transaction():
        began = measures.take_turn(conn)
        if began is not None:
            figures = measures.measure(conn, DENSITY_SAMPLE)
            measures.keep(conn, figures, began, interval_seconds)
    show(measures.last(conn))
    return {} if began is None else {"measured": 1}


def show(figures: Mapping[str, float]) -> None:
    """Set the gauges to the figures that there are."""
    for state in measures.STATES:
        if state in figures:
            gauge("relay_mailbox_delivery_records").labels(state).set(figures[state])
    for name in GAUGES:
        if name in figures:
            gauge(name).set(figures[name])
