"""Reading waitpoints and recorded events of one tenant and environment."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from relay_common import queries
from relay_common.db import AsyncConnection

SQL = queries.load("relay_matcher", "reading")
TAKERS = 100  # shown with one event


@dataclass(frozen=True, slots=True)
class WaitpointRow:
    """A waitpoint as it stands; `opened` is its fixed part, rendered."""

    id: UUID
    kind: str
    profile: str | None
    state: str
    revision: int
    activation: int
    updated_at: datetime
    closed_at: datetime | None
    responded_at: datetime | None
    responder: str | None
    channel: str | None
    evidence_level: str | None
    subject_digest: str | None
    reply: bytes | None
    key_hash: int
    event_id: UUID | None
    event_received_at: datetime | None
    event_value: bytes | None
    opened: bytes


@dataclass(frozen=True, slots=True)
class EventRow:
    """A recorded event; `taken_by` holds waitpoint, waiter and time of each take."""

    received_at: datetime
    key_hash: int
    event_id: UUID
    rule_id: int
    reason: str | None
    value: bytes
    past_retention: bool
    taken_by: Sequence[tuple[str, str, str]] | None
    arrival: int


@dataclass(frozen=True, slots=True)
class WaitpointFilter:
    """Which waitpoints a caller wants to see, and may; None is no filter."""

    caller: str
    sees_all: bool
    after: UUID
    limit: int
    states: list[str] | None = None
    kinds: list[str] | None = None
    waiter: str | None = None
    responder: str | None = None
    event_type: str | None = None
    correlation_key: str | None = None
    expires_before: datetime | None = None
    tag_names: tuple[str, ...] = ()
    tag_values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EventFilter:
    """Which events a caller wants to see, newest first, before one place in the log."""

    retention: timedelta
    limit: int
    before: int
    before_time: datetime | None = None
    key_hash: int | None = None
    event_type: str | None = None
    correlation_key: str | None = None
    received_after: datetime | None = None
    received_before: datetime | None = None
    dispositions: list[str] | None = None


async def waitpoint(
    conn: AsyncConnection, identifier: UUID, caller: str, sees_all: bool
) -> WaitpointRow | None:
    """Return a waitpoint, None when there is none that `caller` may see."""
    given = {"id": identifier, "caller": caller, "sees_all": sees_all}
    row = await (await conn.execute(SQL["waitpoint"], given, binary=True)).fetchone()
    return None if row is None else WaitpointRow(*row)


async def waitpoints(conn: AsyncConnection, wanted: WaitpointFilter) -> list[WaitpointRow]:
    """Return a page of waitpoints in order of creation."""
    rows = await conn.execute(SQL["waitpoints"], parameters(wanted), binary=True)
    return [WaitpointRow(*row) for row in await rows.fetchall()]


async def awaiting(conn: AsyncConnection, wanted: WaitpointFilter) -> dict[str, int]:
    """Return how many waitpoints of a filter wait for a reply, by state."""
    return dict(await (await conn.execute(SQL["awaiting"], parameters(wanted))).fetchall())


def parameters(wanted: WaitpointFilter) -> dict[str, object]:
    """Return a filter as the parameters of its statements."""
    return {
        "caller": wanted.caller,
        "sees_all": wanted.sees_all,
        "after": wanted.after,
        "limit": wanted.limit,
        "states": wanted.states,
        "kinds": wanted.kinds,
        "waiter": wanted.waiter,
        "responder": wanted.responder,
        "event_type": wanted.event_type,
        "correlation_key": wanted.correlation_key,
        "expires_before": wanted.expires_before,
        "tag_names": list(wanted.tag_names),
        "tag_values": list(wanted.tag_values),
    }


async def event(
    conn: AsyncConnection, key_hash: int, event_id: UUID, retention: timedelta
) -> EventRow | None:
    """Return a recorded event, None when this tenant has none."""
    given = {
        "key_hash": key_hash,
        "event_id": event_id,
        "retention": retention,
        "takers": TAKERS,
    }
    row = await (await conn.execute(SQL["event"], given)).fetchone()
    return None if row is None else EventRow(*row)


async def events(conn: AsyncConnection, wanted: EventFilter) -> list[EventRow]:
    """Return a page of events, newest first: of one key, or of a window of time."""
    given = {
        "retention": wanted.retention,
        "limit": wanted.limit,
        "before": wanted.before,
        "before_time": wanted.before_time,
        "key_hash": wanted.key_hash,
        "event_type": wanted.event_type,
        "correlation_key": wanted.correlation_key,
        "received_after": wanted.received_after,
        "received_before": wanted.received_before,
        "dispositions": wanted.dispositions,
        "takers": TAKERS,
    }
    name = "events_in_window" if wanted.key_hash is None else "events_of_key"
    rows = await conn.execute(SQL[name], given)
    return [EventRow(*row) for row in await rows.fetchall()]
