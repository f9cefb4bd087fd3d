"""Reading waitpoints and recorded events as they are shown (api.md)."""

from datetime import datetime
from uuid import UUID

import orjson
from relay_common.db import AsyncConnection
from relay_common.errors import EventNotFound, Json, RelayError, WaitpointNotFound
from relay_common.ids import encode_id
from relay_common.tokens import Caller
from relay_common.wire import rfc3339

from relay_matcher.domain.event import Event, external_id, stored_event
from relay_matcher.domain.rendering import event_head, reply_resolution, waitpoint_head
from relay_matcher.domain.rules import Rule
from relay_matcher.operations import lifecycle
from relay_matcher.operations.look_back import retention
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.operations.ruling import rejection_json
from relay_matcher.store import reading as store
from relay_matcher.store.opening import read_settings
from relay_matcher.store.replying import rejections

OPERATOR = "operator"


async def waitpoint_json(
    plumbing: Plumbing, conn: AsyncConnection, identifier: UUID, caller: Caller
) -> bytes | RelayError:
    """Return a waitpoint as JSON; waitpoint_not_found for one that `caller` may not see."""
    row = await store.waitpoint(conn, identifier, caller.sub, OPERATOR in caller.scopes)
    return WaitpointNotFound() if row is None else shown(plumbing, row)


def shown(plumbing: Plumbing, row: store.WaitpointRow) -> bytes:
    """Return a waitpoint as JSON."""
    closed_at = None if row.closed_at is None else rfc3339(row.closed_at)
    head = waitpoint_head(
        row.opened,
        row.kind,
        row.profile,
        row.state,
        (row.revision, row.activation),
        (rfc3339(row.updated_at), closed_at),
    )
    return head + resolution(plumbing, row) + b"}"


def resolution(plumbing: Plumbing, row: store.WaitpointRow) -> bytes:
    """Return the value of `resolution`: null until the waitpoint is resolved."""
    if row.responded_at is None:
        return b"null"
    if row.event_id is not None:
        stamp = rfc3339(row.responded_at)
        return b'{"event":' + taken_event(plumbing, row) + f',"responded_at":"{stamp}"}}'.encode()
    identity = (row.responder or "", row.channel or "", row.evidence_level or "")
    stamp = rfc3339(row.responded_at)
    return reply_resolution(
        row.kind, identity, row.reply or b"null", stamp, row.subject_digest or ""
    )


def taken_event(plumbing: Plumbing, row: store.WaitpointRow) -> bytes:
    """Return the event a waitpoint resolved by; past retention only its id and time are left."""
    if row.event_id is None or row.event_received_at is None:
        return b"null"
    if row.event_value is None:
        shown_id = external_id(row.key_hash, row.event_id.bytes)
        return event_head(shown_id, {}, rfc3339(row.event_received_at)) + b"}"
    offset = plumbing.codec.split(row.event_value)[1]
    event = stored_event(row.event_value, offset, row.key_hash, row.event_id)
    return lifecycle.event_json(event, row.event_received_at)


async def waitpoints_json(
    plumbing: Plumbing, conn: AsyncConnection, wanted: store.WaitpointFilter
) -> tuple[list[bytes], UUID | None]:
    """Return a page of waitpoints as JSON, and the last id when there may be more."""
    rows = await store.waitpoints(conn, wanted)
    last = rows[-1].id if len(rows) == wanted.limit else None
    return [shown(plumbing, row) for row in rows], last


async def event_json(
    plumbing: Plumbing, conn: AsyncConnection, key_hash: int, event_id: UUID
) -> bytes | RelayError:
    """Return a recorded event as JSON, with who took it and why; or event_not_found."""
    settings = await (await read_settings(conn)).result()
    row = await store.event(conn, key_hash, event_id, retention(settings))
    return EventNotFound() if row is None else recorded(plumbing, row)


async def events_json(
    plumbing: Plumbing, conn: AsyncConnection, wanted: store.EventFilter
) -> tuple[list[bytes], store.EventRow | None]:
    """Return a page of events as JSON, newest first, and the last row when there may be more."""
    rows = await store.events(conn, wanted)
    last = rows[-1] if len(rows) == wanted.limit else None
    return [recorded(plumbing, row) for row in rows], last


def recorded(plumbing: Plumbing, row: store.EventRow) -> bytes:
    """Return a recorded event as JSON (api.md, Event out)."""
    event = stored_event(row.value, plumbing.codec.split(row.value)[1], row.key_hash, row.event_id)
    members: dict[str, Json] = {
        "disposition": disposition(row),
        "rule_id": Rule(row.rule_id).name,
        "reason": row.reason,
        "taken_by": [taker(*take) for take in row.taken_by or ()],
    }
    return whole_event(event, row) + b"," + orjson.dumps(members)[1:]


def whole_event(event: Event, row: store.EventRow) -> bytes:
    """Return an event with all its data, which others refer to, without its closing brace."""
    return lifecycle.event_json(event, row.received_at, whole=True)[:-1]


def disposition(row: store.EventRow) -> str:
    """Return whether an event was taken, is held, or is past retention untaken."""
    if row.taken_by:
        return "matched"
    return "expired" if row.past_retention else "held"


def taker(waitpoint_id: str, waiter: str, taken_at: str) -> dict[str, Json]:
    """Return who took an event, as the API shows it."""
    return {
        "waitpoint_id": encode_id("wp_", UUID(waitpoint_id).bytes),
        "waiter": waiter,
        "taken_at": rfc3339_of(taken_at),
    }


def rfc3339_of(stamp: str) -> str:
    """Return a time as Postgres writes it into JSON in the form of the API."""
    return rfc3339(datetime.fromisoformat(stamp))


async def awaiting_counts(conn: AsyncConnection, wanted: store.WaitpointFilter) -> dict[str, int]:
    """Return how many waitpoints wait for a reply, by state, on all pages of the list."""
    return {"open": 0, "stalled": 0, **await store.awaiting(conn, wanted)}


async def rejections_json(
    conn: AsyncConnection, waitpoint: UUID, after: UUID, limit: int
) -> tuple[list[bytes], UUID | None]:
    """Return a page of recorded rejections as JSON, and the last id when there may be more."""
    rows = await rejections(conn, waitpoint, after, limit)
    shown_rows = [
        orjson.dumps(
            {
                **rejection_json(row[0], waitpoint, (row[1], row[2], row[3]), row[4]),
                **({"pointers": row[5]} if row[5] else {}),
            }
        )
        for row in rows
    ]
    return shown_rows, rows[-1][0] if len(rows) == limit else None
