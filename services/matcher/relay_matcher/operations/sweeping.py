"""Periodic duties: each ends in what it finds, and each is one short transaction a run."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from relay_common.db import Connection
from relay_common.outbox import OutMessage

from relay_matcher import expiries
from relay_matcher.announcement import Announcer
from relay_matcher.domain.waitpoint import Active, Responder
from relay_matcher.operations import lifecycle
from relay_matcher.store import matching, sweeping

BATCH = 2_000
EXPIRED_TOGETHER = 1_000  # a larger commit keeps others waiting for the disk
FORGOTTEN_TOGETHER = 500
AHEAD = timedelta(hours=24)


def expire_due(conn: Connection, announcer: Announcer, shards: int) -> Mapping[str, int]:
    """Expire waitpoints whose deadline has passed and that nobody touched (design D5).

    In batches of one transaction each, until none is left; returns how many.
    """
    expired = 0
    while True:
        found = expire_batch(conn, announcer, shards)
        expired += found
        if found < EXPIRED_TOGETHER:
            return {"expired": expired}


def expire_batch(conn: Connection, announcer: Announcer, shards: int) -> int:
    """Expire one batch; return its size."""
    with conn.transaction():
        due = sweeping.due(conn, EXPIRED_TOGETHER)
        overdue = due.waitpoints
        if not overdue:
            return 0
        at = sweeping.read_clock(conn)
        listed = sweeping.responders(conn, [one for one in overdue if one.kind != "event"])
        with conn.pipeline():
            sweeping.expire(conn, due.places, at)
            matching.count_closed(conn, overdue)
            matching.append_rows(conn, expiries.rows_of(announcer, overdue, at, shards))
            matching.announce(conn, endings(announcer, overdue, listed, at), shards)
        return len(overdue)


def endings(
    announcer: Announcer,
    overdue: Sequence[Active],
    listed: Mapping[UUID, Sequence[Responder]],
    at: datetime,
) -> list[OutMessage]:
    """Return what tells responders (`listed` by waitpoint) that no reply is needed any more."""
    return [
        message
        for waitpoint in overdue
        if waitpoint.id in listed
        for message in lifecycle.no_reply_needed(announcer, waitpoint, listed[waitpoint.id], at)
    ]


def stall_silent(conn: Connection, announcer: Announcer, shards: int) -> Mapping[str, int]:
    """Stall open waitpoints whose waiter's heartbeat has stopped (spec, Two timeouts)."""
    with conn.transaction():
        silent = sweeping.silent(conn, BATCH)
        if silent:
            at = sweeping.read_clock(conn)
            sweeping.stall(conn, silent, at)
            messages = [m for w in silent for m in lifecycle.stalled(announcer, w, at)]
            matching.announce(conn, messages, shards)
    return {"stalled": len(silent)}


def keep_slices(conn: Connection) -> Mapping[str, int]:
    """Create the slices of the event log ahead of need and drop those past all retention."""
    with conn.transaction():
        created = sweeping.create_slices(conn, AHEAD)
    with conn.transaction():
        dropped = sweeping.drop_slices(conn, sweeping.longest_retention(conn))
    return {"slices_created": created, "slices_dropped": dropped}


def fold_counters(conn: Connection) -> Mapping[str, int]:
    """Fold closings into the counters of open waitpoints."""
    with conn.transaction():
        return {"counters_folded": sweeping.fold_counters(conn, 10 * BATCH)}


def forget_floors(conn: Connection) -> Mapping[str, int]:
    """Forget floors when their events are gone."""
    with conn.transaction():
        floors = sweeping.forget_floors(conn, sweeping.longest_retention(conn), BATCH)
    return {"floors_forgotten": floors}


def expire_held_replies(conn: Connection) -> Mapping[str, int]:
    """Let go of the values of replies that were held for nobody, and of sessions long ended."""
    with conn.transaction():
        held = sweeping.expire_held_replies(conn, BATCH)
    with conn.transaction():
        forgotten = sweeping.forget_held_replies(conn, BATCH)
    with conn.transaction():
        sessions = sweeping.forget_sessions(conn, BATCH)
    return {
        "held_replies_expired": held,
        "held_replies_forgotten": forgotten,
        "sessions_forgotten": sessions,
    }


def forget_waitpoints(conn: Connection) -> Mapping[str, int]:
    """Forget waitpoints that are over for longer than their tenant keeps them, batch by batch."""
    forgotten = 0
    while True:
        with conn.transaction():
            found = sweeping.forget_waitpoints(conn, FORGOTTEN_TOGETHER)
        forgotten += found
        if found < FORGOTTEN_TOGETHER:
            return {"waitpoints_forgotten": forgotten}
