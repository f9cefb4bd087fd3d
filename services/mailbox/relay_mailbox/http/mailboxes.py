"""Routes of a mailbox and its stream: look, read, lease, acknowledge."""

from typing import Annotated

from fastapi import Query, Response
from relay_common import limits
from relay_common.errors import FieldError, ValidationFailed
from relay_common.failpoints import hit
from relay_common.http import create_router, render
from relay_common.wire import PageSize

from relay_mailbox.http.models import (
    AckBody,
    CursorBody,
    ExtendBody,
    LeaseBody,
    RedriveBody,
    ReleaseBody,
    StateBody,
    whole_seconds,
)
from relay_mailbox.http.paths import ReaderName
from relay_mailbox.http.surface import (
    Acking,
    Operating,
    Reading,
    Redriving,
    Shared,
    Tried,
    answered,
    own,
    visible,
)
from relay_mailbox.operations.cursor import CursorGiven
from relay_mailbox.operations.dead_letters import ListGiven, RedriveGiven, list_dead_letters
from relay_mailbox.operations.lease import AckGiven, ExtendGiven, LeaseGiven, ReleaseGiven
from relay_mailbox.operations.read import get_mailbox, read_since
from relay_mailbox.operations.settings import StateGiven

router = create_router("/v1/mailboxes/{owner:name}")

Since = Annotated[int, Query(ge=0, lt=2**63)]
Epoch = Annotated[int | None, Query(ge=0, lt=2**63)]


@router.get("")
async def get(owner: str, who: Reading, shared: Shared) -> Response:
    """State, epoch, head, oldest and counts of a mailbox."""
    return render(await get_mailbox(shared.pool, who, visible(who, owner)))


@router.get("/records")
async def records(
    owner: str,
    who: Reading,
    shared: Shared,
    since: Since = 0,
    epoch: Epoch = None,
    limit: PageSize = limits.LIST_ITEMS.default,
) -> Response:
    """Records after `since`, in seq order, without side effects; 409 when a resync is required."""
    if since > 0 and epoch is None:
        detail = "expected the epoch that `since` belongs to, found none"
        raise ValidationFailed(errors=[FieldError("?epoch", detail)])
    page = await read_since(shared.pool, who, visible(who, owner), (since, epoch), limit)
    return render(page)


@router.post("/leases", status_code=201)
async def lease(owner: str, who: Acking, shared: Shared, tried: Tried, body: LeaseBody) -> Response:
    """Lease records in seq order; 200 without a lease when there is nothing."""
    seconds = None if body.lease_seconds is None else whole_seconds(body.lease_seconds)
    given = LeaseGiven(own(who, owner), body.max_records, seconds)
    answer = await answered(shared.leases, who, tried, given)
    hit("mailbox.after_lease_commit")
    return answer


@router.post("/leases/{lease_id:name}/extend")
async def extend(
    owner: str, lease_id: str, who: Acking, shared: Shared, tried: Tried, body: ExtendBody
) -> Response:
    """Move the end of a running lease."""
    given = ExtendGiven(own(who, owner), lease_id, whole_seconds(body.lease_seconds))
    return await answered(shared.extensions, who, tried, given)


@router.post("/leases/{lease_id:name}/release")
async def release(
    owner: str, lease_id: str, who: Acking, shared: Shared, tried: Tried, body: ReleaseBody
) -> Response:
    """Give records of a running lease back."""
    delay = body.delay_seconds.total_seconds()
    given = ReleaseGiven(own(who, owner), lease_id, body.seqs, delay)
    return await answered(shared.releases, who, tried, given)


@router.post("/acks")
async def acknowledge(
    owner: str, who: Acking, shared: Shared, tried: Tried, body: AckBody
) -> Response:
    """Acknowledge records: acked, already_acked, lease_lost or not_found for each."""
    given = AckGiven(own(who, owner), body.lease_id, body.epoch, body.seqs)
    answer = await answered(shared.acks, who, tried, given)
    hit("mailbox.after_ack_commit")
    return answer


@router.put("/cursors/{reader:name}")
async def report_cursor(
    owner: str, reader: ReaderName, who: Acking, shared: Shared, tried: Tried, body: CursorBody
) -> Response:
    """Report how far a reader is; answers what stands now."""
    given = CursorGiven(own(who, owner), reader, body.epoch, body.seq)
    return await answered(shared.reports, who, tried, given)


@router.get("/dead-letters")
async def dead_letters(
    owner: str,
    who: Reading,
    shared: Shared,
    limit: PageSize = limits.LIST_ITEMS.default,
    cursor: str | None = None,
) -> Response:
    """Records that were redelivered too often, in seq order."""
    given = ListGiven(visible(who, owner), limit, cursor)
    return render(await list_dead_letters(shared.pool, who, given, shared.cursors))


@router.post("/dead-letters/redrive")
async def redrive(
    owner: str, who: Redriving, shared: Shared, tried: Tried, body: RedriveBody
) -> Response:
    """Bring dead letters back: `seqs`, or `all` (10,000 a call); `dry_run` only counts."""
    given = RedriveGiven(visible(who, owner), body.chosen(), body.dry_run)
    return await answered(shared.redrives, who, tried, given)


@router.put("/state")
async def set_state(
    owner: str, who: Operating, shared: Shared, tried: Tried, body: StateBody
) -> Response:
    """Suspend, delete or reactivate a mailbox; its records are kept."""
    given = StateGiven(visible(who, owner), body.state)
    return await answered(shared.states, who, tried, given)
