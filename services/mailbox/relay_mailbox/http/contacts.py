"""Routes of first contact: the request box, blocks, abuse reports."""

from typing import Annotated

from fastapi import Path, Response
from relay_common import limits
from relay_common.http import create_router, render
from relay_common.wire import PageSize

from relay_mailbox.http.models import AbuseBody
from relay_mailbox.http.paths import Sender
from relay_mailbox.http.surface import Acking, Reading, Shared, Tried, answered, own, visible
from relay_mailbox.operations.abuse import AbuseGiven
from relay_mailbox.operations.contacts import SenderGiven, SubscribeGiven, list_requests
from relay_mailbox.operations.dead_letters import ListGiven

router = create_router("/v1/mailboxes/{owner:name}")

RecordSeq = Annotated[int, Path(ge=1, lt=2**63)]


@router.get("/requests")
async def requests(
    owner: str,
    who: Reading,
    shared: Shared,
    limit: PageSize = limits.LIST_ITEMS.default,
    cursor: str | None = None,
) -> Response:
    """Unknown senders whose messages wait in the request box."""
    given = ListGiven(visible(who, owner), limit, cursor)
    return render(await list_requests(shared.pool, who, given, shared.cursors))


@router.post("/requests/{sender:name}/accept")
async def accept(owner: str, sender: Sender, who: Acking, shared: Shared, tried: Tried) -> Response:
    """Let a sender in: what waits becomes leasable, what comes lands in the mailbox."""
    given = SenderGiven(own(who, owner), sender)
    return await answered(shared.acceptances, who, tried, given)


@router.put("/requests/subscription")
async def subscribe_requests(owner: str, who: Acking, shared: Shared, tried: Tried) -> Response:
    """Let the request box wake its owner."""
    given = SubscribeGiven(own(who, owner), wanted=True)
    return await answered(shared.request_subscriptions, who, tried, given)


@router.delete("/requests/subscription")
async def unsubscribe_requests(owner: str, who: Acking, shared: Shared, tried: Tried) -> Response:
    """Let the request box wake nobody."""
    given = SubscribeGiven(own(who, owner), wanted=False)
    return await answered(shared.request_subscriptions, who, tried, given)


@router.put("/blocks/{sender:name}")
async def block(owner: str, sender: Sender, who: Acking, shared: Shared, tried: Tried) -> Response:
    """Block a sender; it is not told."""
    given = SenderGiven(own(who, owner), sender, wanted=True)
    return await answered(shared.blocks, who, tried, given)


@router.delete("/blocks/{sender:name}")
async def unblock(
    owner: str, sender: Sender, who: Acking, shared: Shared, tried: Tried
) -> Response:
    """Take a block away."""
    given = SenderGiven(own(who, owner), sender, wanted=False)
    return await answered(shared.blocks, who, tried, given)


@router.post("/records/{seq}/abuse-report", status_code=201)
async def report_abuse(
    owner: str, seq: RecordSeq, who: Acking, shared: Shared, tried: Tried, body: AbuseBody
) -> Response:
    """Report a message as abuse."""
    given = AbuseGiven(own(who, owner), seq, body.reason)
    return await answered(shared.abuse_reports, who, tried, given)
