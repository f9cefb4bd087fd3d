"""Routes of a mailbox and its stream: look, read, lease, acknowledge."""

from typing import Annotated

from fastapi import Query, Response
from relay_common import limits
from relay_common.errors import FieldError, ValidationFailed
from relay_common.failpoints import hit
from relay_common.http import create_router, render
from relay_common.idempotency import Call

from relay_mailbox.http.models import (
    AckBody,
    CursorBody,
    ExtendBody,
    LeaseBody,
    ReleaseBody,
    whole_seconds,
)
from relay_mailbox.http.surface import Acking, Reading, Shared, Tried, own, visible
from relay_mailbox.operations.cursor import CursorGiven
from relay_mailbox.operations.lease import AckGiven, ExtendGiven, LeaseGiven, ReleaseGiven
from relay_mailbox.operations.read import get_mailbox, read_since

router = create_router("/v1/mailboxes/{owner}")

Since = Annotated[int, Query(ge=0, lt=2**63)]
Epoch = Annotated[int | None, Query(ge=0, lt=2**63)]
PageLimit = Annotated[int, Query(ge=1, le=limits.LIST_ITEMS.upper)]


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
    limit: PageLimit = limits.LIST_ITEMS.default,
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
    call = Call(who, tried, given)
    answer = await shared.leases.submit(who.tenant, who.environment, call)
    hit("mailbox.after_lease_commit")
    return render(answer)


@router.post("/leases/{lease_id}/extend")
async def extend(
    owner: str, lease_id: str, who: Acking, shared: Shared, tried: Tried, body: ExtendBody
) -> Response:
    """Move the end of a running lease."""
    seconds = whole_seconds(body.lease_seconds)
    call = Call(who, tried, ExtendGiven(own(who, owner), lease_id, seconds))
    return render(await shared.extensions.submit(who.tenant, who.environment, call))


@router.post("/leases/{lease_id}/release")
async def release(
    owner: str, lease_id: str, who: Acking, shared: Shared, tried: Tried, body: ReleaseBody
) -> Response:
    """Give records of a running lease back."""
    delay = body.delay_seconds.total_seconds()
    call = Call(who, tried, ReleaseGiven(own(who, owner), lease_id, body.seqs, delay))
    return render(await shared.releases.submit(who.tenant, who.environment, call))


@router.post("/acks")
async def acknowledge(
    owner: str, who: Acking, shared: Shared, tried: Tried, body: AckBody
) -> Response:
    """Acknowledge records: acked, already_acked, lease_lost or not_found for each."""
    given = AckGiven(own(who, owner), body.lease_id, body.epoch, body.seqs)
    call = Call(who, tried, given)
    answer = await shared.acks.submit(who.tenant, who.environment, call)
    hit("mailbox.after_ack_commit")
    return render(answer)


@router.put("/cursors/{reader}")
async def report_cursor(
    owner: str, reader: str, who: Acking, shared: Shared, tried: Tried, body: CursorBody
) -> Response:
    """Report how far a reader is; answers what stands now."""
    given = CursorGiven(own(who, owner), reader, body.epoch, body.seq)
    call = Call(who, tried, given)
    return render(await shared.cursors.submit(who.tenant, who.environment, call))
