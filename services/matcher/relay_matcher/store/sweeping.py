"""The statements of the periodic duties."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from relay_common import queries
from relay_common.arrays import tids
from relay_common.db import Connection, one_row
from relay_common.limits import CLOSED_WAITPOINT_SECONDS, RETENTION_SECONDS
from relay_common.match_key import MatchKey

from relay_matcher.domain.waitpoint import Active, Responder
from relay_matcher.store.columns import waitpoint_columns
from relay_matcher.store.matching import Waiting

SQL = queries.load("relay_matcher", "sweeping")
TAKES_LONGER = timedelta(days=30)


def due(conn: Connection, limit: int) -> Waiting:
    """Return overdue waitpoints, earliest deadline first, their rows locked; busy ones left out."""
    rows = conn.execute(SQL["due"], {"limit": limit}, binary=True).fetchall()
    found = [Active(row[1], MatchKey(*row[2:6]), *row[6:]) for row in rows]
    return Waiting(found, [row[0] for row in rows])


def expire(conn: Connection, places: Sequence[bytes], at: datetime) -> None:
    """Expire the waitpoints at `places`, locked in this transaction."""
    conn.execute(SQL["expire"], {"places": tids(places), "at": at})


def silent(conn: Connection, limit: int) -> list[Active]:
    """Return open waitpoints whose waiter is silent, their rows locked; busy ones left out."""
    rows = conn.execute(SQL["silent"], {"limit": limit}, binary=True).fetchall()
    return [Active(row[0], MatchKey(*row[1:5]), *row[5:]) for row in rows]


def stall(conn: Connection, waitpoints: Sequence[Active], at: datetime) -> None:
    """Stall locked open waitpoints."""
    conn.execute(SQL["stall"], {**waitpoint_columns(waitpoints), "at": at})


def responders(conn: Connection, waitpoints: Sequence[Active]) -> dict[UUID, list[Responder]]:
    """Return the responders of waitpoints, as they were asked."""
    found: dict[UUID, list[Responder]] = {}
    if waitpoints:
        rows = conn.execute(SQL["responders"], waitpoint_columns(waitpoints), binary=True)
        for waitpoint, *responder in rows.fetchall():
            found.setdefault(waitpoint, []).append(Responder(*responder))
    return found


def expire_held_replies(conn: Connection, limit: int) -> int:
    """Let go of held replies past their retention; return how many."""
    return conn.execute(SQL["expire_held_replies"], {"limit": limit}).rowcount


def forget_waitpoints(conn: Connection, limit: int) -> int:
    """Forget waitpoints that are over for longer than their tenant keeps them; return how many.

    Those that an event resolved stay 30 days longer than events: they are the takes (design D2).
    """
    given = {
        "usual": timedelta(seconds=CLOSED_WAITPOINT_SECONDS.default),
        "takes": longest_retention(conn) + TAKES_LONGER,
        "limit": limit,
    }
    row = conn.execute(SQL["forget_waitpoints"], given).fetchone()
    return 0 if row is None else row[0]


def forget_held_replies(conn: Connection, limit: int) -> int:
    """Forget held replies that nothing came of, long after; return how many."""
    return conn.execute(SQL["forget_held_replies"], {"limit": limit}).rowcount


def forget_sessions(conn: Connection, limit: int) -> int:
    """Forget reply sessions long ended; return how many."""
    return conn.execute(SQL["forget_sessions"], {"limit": limit}).rowcount


def read_clock(conn: Connection) -> datetime:
    """Return the clock; call it after the locks."""
    return one_row(conn, SQL["now"])[0]


def longest_retention(conn: Connection) -> timedelta:
    """Return how long the most patient tenant keeps its events."""
    given = {"default": RETENTION_SECONDS.default}
    row = conn.execute(SQL["longest_retention"], given).fetchone()
    seconds = RETENTION_SECONDS.default if row is None else row[0]
    return timedelta(seconds=min(seconds, RETENTION_SECONDS.upper))


def create_slices(conn: Connection, ahead: timedelta) -> int:
    """Create slices of the event log; return how many were missing."""
    row = conn.execute(SQL["create_slices"], {"ahead": ahead}).fetchone()
    return 0 if row is None else row[0]


def drop_slices(conn: Connection, longest: timedelta) -> int:
    """Drop the slices that lie before all retention; return how many."""
    row = conn.execute(SQL["drop_slices"], {"longest": longest}).fetchone()
    return 0 if row is None else row[0]


def fold_counters(conn: Connection, limit: int) -> int:
    """Fold up to `limit` closings into the counters of tenants nobody counts at right now."""
    locked = conn.execute(SQL["lock_counters"], {"limit": limit}).fetchall()
    if not locked:
        return 0
    columns = {"tenants": [row[0] for row in locked], "environments": [row[1] for row in locked]}
    return conn.execute(SQL["fold_counters"], {**columns, "limit": limit}).rowcount


def forget_floors(conn: Connection, longest: timedelta, limit: int) -> int:
    """Forget floors that are about events long gone; return how many."""
    return conn.execute(SQL["forget_floors"], {"age": longest, "limit": limit}).rowcount
