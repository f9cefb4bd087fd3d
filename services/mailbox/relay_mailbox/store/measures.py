"""What the gauges show."""

from relay_common import queries
from relay_common.db import Connection, one_row

SQL = queries.load("relay_mailbox", "measure")


def by_state(conn: Connection) -> tuple[dict[str, int], float]:
    """Return the number of records in each delivery state but acked, and how many seconds the
    longest waiting leasable one has waited. Reads every delivery once."""
    *counts, oldest = one_row(conn, SQL["by_state"])
    return dict(zip(("available", "leased", "held", "dead_lettered"), counts, strict=True)), oldest


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
