"""`/v1/waitpoints`: open, read, list, cancel."""

from dataclasses import replace
from datetime import datetime
from typing import Annotated
from uuid import UUID

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from relay_common import failpoints
from relay_common.combiner import Answer
from relay_common.db import tenant_transaction
from relay_common.errors import (
    FieldError,
    GuardianNotListed,
    RelayError,
    ValidationFailed,
    WaitpointNotFound,
)
from relay_common.http import attempt, caller, create_router, render
from relay_common.idempotency import Attempt, Call
from relay_common.ids import decode_id
from relay_common.limits import LIST_ITEMS
from relay_common.tokens import Caller
from relay_common.wire import PageSize, Time

from relay_matcher.domain.waitpoint import ACTIVE_STATES, Kind, Opening, State
from relay_matcher.http.desk import Desk
from relay_matcher.http.forms import CancelIn, WaitpointIn, opening_of
from relay_matcher.http.lists import list_scope, listed, page_of
from relay_matcher.operations.cancelling import Cancelling
from relay_matcher.operations.lifecycle import JSON_TYPE
from relay_matcher.operations.reading import (
    OPERATOR,
    awaiting_counts,
    waitpoint_json,
    waitpoints_json,
)
from relay_matcher.store.reading import WaitpointFilter

Writer = Annotated[Caller, Depends(caller("waitpoints:write"))]
Closer = Annotated[Caller, Depends(caller("waitpoints:write", OPERATOR))]
Reader = Annotated[Caller, Depends(caller("waitpoints:read", "waitpoints:reply", OPERATOR))]
# The first deadline stands: a retry may say another (design D20).
FirstDeadline = Annotated[Attempt, Depends(attempt("expires_at"))]
FIRST = UUID(int=0)


def waitpoint_id(text: str) -> UUID:
    """Return the id behind `text`. Raises WaitpointNotFound for a malformed one (design D6)."""
    raw = decode_id("wp_", text, 16)
    if raw is None:
        raise WaitpointNotFound
    return UUID(bytes=raw)


def waitpoints_router(desk: Desk) -> APIRouter:
    """Return the routes of waitpoints."""
    router = create_router("/v1/waitpoints")

    @router.post("", status_code=201)
    async def open_waitpoint(
        who: Writer,
        attempted: FirstDeadline,
        form: WaitpointIn,
    ) -> Response:
        opening = opening_of(form, who, desk.plumbing.seed)
        if opening.responders:
            done = await desk.done_before(attempted)
            if done is not None:
                return render(done)
            opening = await introduced(desk, who, form, opening)
        answer = await desk.submit(desk.opens, Call(who, attempted, opening))
        failpoints.hit("matcher.after_open_commit")
        return render(answer)

    @router.get("/{identifier}")
    async def get_waitpoint(who: Reader, identifier: str) -> Response:
        wanted = waitpoint_id(identifier)
        async with tenant_transaction(desk.pool, who.tenant, who.environment) as conn:
            body = await waitpoint_json(desk.plumbing, conn, wanted, who)
        if isinstance(body, RelayError):
            raise body
        return render(Answer(200, body, JSON_TYPE))

    @router.get("")
    async def list_waitpoints(
        request: Request, who: Reader, query: Annotated[WaitpointQuery, Depends()]
    ) -> Response:
        scope = list_scope(request, who)
        after = page_of(desk.cursors, scope, query.cursor)
        wanted = filter_of(query, who, UUID(str(after[0])) if after else FIRST)
        async with tenant_transaction(desk.pool, who.tenant, who.environment) as conn:
            items, last = await waitpoints_json(desk.plumbing, conn, wanted)
            counts = await awaiting_counts(conn, wanted) if query.awaiting else None
        following = None if last is None else desk.cursors.write(scope, [str(last)])
        more = b"" if counts is None else b',"counts":' + orjson.dumps(counts)
        return render(listed(items, following, more))

    @router.post("/{identifier}/cancel")
    async def cancel_waitpoint(
        identifier: str,
        who: Closer,
        attempted: Annotated[Attempt, Depends(attempt())],
        form: CancelIn | None = None,
    ) -> Response:
        given = Cancelling(waitpoint_id(identifier), form.reason if form else None)
        return render(await desk.submit(desk.cancels, Call(who, attempted, given)))

    @router.post("/{identifier}/heartbeat")
    async def record_heartbeat(
        identifier: str, who: Writer, attempted: Annotated[Attempt, Depends(attempt())]
    ) -> Response:
        call = Call(who, attempted, waitpoint_id(identifier))
        return render(await desk.submit(desk.heartbeats, call))

    return router


async def check_guardians(desk: Desk, who: Caller, form: WaitpointIn) -> None:
    """Raise GuardianNotListed unless Access knows all responders as the child's guardians."""
    child = (form.content or {}).get("child")
    if not isinstance(child, str) or not child:
        fault = FieldError("/content/child", "expected the child's identity")
        raise ValidationFailed(errors=[fault])
    known = await desk.access.guardians(who.tenant, who.environment, child)
    strangers = [n for n, one in enumerate(form.responders or ()) if one not in known]
    if strangers:
        raise GuardianNotListed(
            errors=[FieldError(f"/responders/{n}", "expected a guardian") for n in strangers]
        )


async def introduced(desk: Desk, who: Caller, form: WaitpointIn, opening: Opening) -> Opening:
    """Return `opening` with what its waiter is to each responder (design D14).

    Access is asked before the transaction. Raises GuardianNotListed and AccessUnavailable.
    """
    if form.profile == "guardian_approval":
        await check_guardians(desk, who, form)
    place = (opening.key.tenant, opening.key.environment)
    known = await desk.access.relationships(*place, opening.waiter, opening.responders)
    return replace(opening, relationships=known)


class WaitpointQuery:
    """The filters of `GET /v1/waitpoints`; `tag` is `name:value` and may come several times."""

    def __init__(  # noqa: PLR0913, PLR0917 - one parameter a filter
        self,
        state: Annotated[list[State] | None, Query()] = None,
        kind: Annotated[list[Kind] | None, Query()] = None,
        event_type: str | None = None,
        correlation_key: str | None = None,
        waiter: str | None = None,
        responder: str | None = None,
        tag: Annotated[list[str] | None, Query()] = None,
        expires_before: Time | None = None,
        awaiting: str | None = None,
        limit: PageSize = LIST_ITEMS.default,
        cursor: str | None = None,
    ) -> None:
        """Hold the parameters as FastAPI has read them."""
        self.state = state
        self.kind = kind
        self.event_type = event_type
        self.correlation_key = correlation_key
        self.waiter = waiter
        self.responder = responder
        self.tags = [tuple(one.split(":", 1)) for one in tag or ()]
        self.expires_before: datetime | None = expires_before
        self.awaiting = awaiting
        self.limit = limit
        self.cursor = cursor


def filter_of(query: WaitpointQuery, who: Caller, after: UUID) -> WaitpointFilter:
    """Return the filter that `query` asks for. Raises ValidationFailed for one that cannot be."""
    faults = [FieldError("?tag", "expected name:value") for tag in query.tags if len(tag) != 2]
    if query.awaiting not in (None, "reply"):
        faults.append(FieldError("?awaiting", "expected reply"))
    if faults:
        raise ValidationFailed(errors=faults)
    states: list[str] | None = None if query.state is None else list(query.state)
    kinds: list[str] | None = None if query.kind is None else list(query.kind)
    if query.awaiting is not None:
        states = [state for state in sorted(ACTIVE_STATES) if states is None or state in states]
        replied = ("question", "review")
        kinds = [kind for kind in replied if kinds is None or kind in kinds]
    me = {"me": who.sub}
    return WaitpointFilter(
        caller=who.sub,
        sees_all=OPERATOR in who.scopes,
        after=after,
        limit=query.limit,
        states=states,
        kinds=kinds,
        waiter=me.get(query.waiter or "", query.waiter),
        responder=me.get(query.responder or "", query.responder),
        event_type=query.event_type,
        correlation_key=query.correlation_key,
        expires_before=query.expires_before,
        tag_names=tuple(tag[0] for tag in query.tags),
        tag_values=tuple(tag[1] for tag in query.tags),
    )
