"""What the gauges show, and whose turn it is to find out."""

from collections.abc import Mapping
from datetime import datetime

import orjson
from relay_common import queries
from relay_common.db import Connection, one_row

SQL = queries.load("relay_mailbox", "measure")
STATES = ("available", "leased", "held", "dead_lettered")


def take_turn(conn: Connection) -> datetime | None:
    """Take the turn to measure until the transaction ends; return when it began, None when nothing
    is due or another process measures."""
    row = conn.execute(SQL["take_turn"]).fetchone()
    return None if row is None else row[0]


def measure(conn: Connection, sample: int) -> dict[str, float]:
    """Return all figures, those of the gauges under their names."""
    checked, holes = density(conn, sample)
    return {
        **by_state(conn),
        "relay_mailbox_fan_outs": waiting_fan_outs(conn),
        "relay_mailbox_prepared_transactions": prepared_transactions(conn),
        "relay_mailbox_streams_with_holes": holes,
        "streams_checked": checked,
    }


def keep(
    conn: Connection, figures: Mapping[str, float], began: datetime, interval_seconds: float
) -> None:
    """Keep `figures` for every process until somebody's turn comes: after the interval, or a
    hundred times as long as measuring took since `began`."""
    given = {
        "figures": orjson.dumps(figures).decode(),
        "began": began,
        "interval_seconds": interval_seconds,
    }
    conn.execute(SQL["keep"], given)


def last(conn: Connection) -> Mapping[str, float]:
    """Return the figures that were found last, by whichever process; none before the first time."""
    return one_row(conn, SQL["last"])[0]


def by_state(conn: Connection) -> dict[str, float]:
    """Return the number of records in each delivery state but acked, and how many seconds the
    longest waiting leasable one has waited. Reads every delivery once."""
    names = (*STATES, "relay_mailbox_oldest_available_seconds")
    return dict(zip(names, one_row(conn, SQL["by_state"]), strict=True))


def waiting_fan_outs(conn: Connection) -> int:
    """Return how many messages of topics are on their way."""
    return one_row(conn, SQL["waiting_fan_outs"])[0]


def prepared_transactions(conn: Connection) -> int:
    """Return how many prepared transactions somebody left in this database."""
    return one_row(conn, SQL["prepared_transactions"])[0]


def density(conn: Connection, sample: int) -> tuple[int, int]:
    """Return how many streams of a random sample were checked and how many have holes."""
    row = conn.execute(SQL["density"], {"sample": sample}).fetchone()
    return (0, 0) if row is None else (row[0], row[1])
