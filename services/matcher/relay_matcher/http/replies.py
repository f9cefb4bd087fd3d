"""Reply sessions, replies by id and by match key, and recorded rejections."""

from dataclasses import replace
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Request, Response
from relay_common.combiner import Answer
from relay_common.db import tenant_transaction
from relay_common.errors import RelayError
from relay_common.http import attempt, caller, create_router, render
from relay_common.idempotency import Attempt, Call
from relay_common.ids import decode_id
from relay_common.limits import LIST_ITEMS
from relay_common.match_key import MatchKey
from relay_common.tokens import Caller
from relay_common.wire import PageSize

from relay_matcher.domain.reply import Reply, action_of
from relay_matcher.http.desk import Desk
from relay_matcher.http.lists import list_scope, listed, page_of
from relay_matcher.http.reply_forms import (
    EarlyReplyIn,
    ReplyIn,
    SessionIn,
    identity_of,
    value_of,
)
from relay_matcher.http.waitpoints import FIRST, Reader, waitpoint_id
from relay_matcher.operations.early_reply import EarlyReply
from relay_matcher.operations.reading import rejections_json, waitpoint_json
from relay_matcher.operations.replying import GivenReply, OpenSession
from relay_matcher.store.replying import ByKey

Replier = Annotated[Caller, Depends(caller("waitpoints:reply", "replies:channel"))]
Tried = Annotated[Attempt, Depends(attempt())]


def replies_router(desk: Desk) -> APIRouter:
    """Return the routes of replies."""
    router = create_router("/v1")

    @router.post("/waitpoints/{identifier}/reply-sessions", status_code=201)
    async def open_session(
        identifier: str, who: Replier, attempted: Tried, form: SessionIn | None = None
    ) -> Response:
        given = OpenSession(waitpoint_id(identifier), identity_of(who, form or SessionIn()))
        return render(await desk.submit(desk.sessions, Call(who, attempted, given)))

    @router.post("/waitpoints/{identifier}/replies")
    async def reply(identifier: str, who: Replier, attempted: Tried, form: ReplyIn) -> Response:
        raw = decode_id("rs_", form.reply_session, 16)
        wanted = waitpoint_id(identifier)
        if raw is None:
            # Unknown like any other; but the waitpoint itself decides first whether it is there.
            raw = UUID(int=0).bytes
        given = await reply_or_done(desk, who, attempted, form, UUID(bytes=raw))
        if isinstance(given, Answer):
            return render(given)
        call = Call(who, attempted, GivenReply(wanted, given))
        return render(await desk.submit(desk.replies, call))

    @router.post("/replies")
    async def reply_early(who: Replier, attempted: Tried, form: EarlyReplyIn) -> Response:
        key = MatchKey(who.tenant, who.environment, form.event_type, form.correlation_key)
        given = await reply_or_done(desk, who, attempted, form)
        if isinstance(given, Answer):
            return render(given)
        key_hash = key.hash(desk.plumbing.seed)
        where = ByKey(key, key_hash, form.waiter, who, given.identity.responder)
        call = Call(who, attempted, EarlyReply(where, given))
        return render(await desk.submit(desk.early_replies, call))

    @router.get("/waitpoints/{identifier}/rejections")
    async def list_rejections(
        request: Request,
        who: Reader,
        identifier: str,
        limit: PageSize = LIST_ITEMS.default,
        cursor: str | None = None,
    ) -> Response:
        wanted = waitpoint_id(identifier)
        scope = list_scope(request, who)
        position = page_of(desk.cursors, scope, cursor)
        after = UUID(str(position[0])) if position else FIRST
        async with tenant_transaction(desk.pool, who.tenant, who.environment) as conn:
            seen = await waitpoint_json(desk.plumbing, conn, wanted, who)
            if isinstance(seen, RelayError):
                raise seen
            items, last = await rejections_json(conn, wanted, after, limit)
        following = None if last is None else desk.cursors.write(scope, [str(last)])
        return render(listed(items, following))

    return router


async def reply_or_done(
    desk: Desk,
    who: Caller,
    attempted: Attempt,
    form: ReplyIn | EarlyReplyIn,
    session: UUID | None = None,
) -> Reply | Answer:
    """Return the reply that `form` gives, or the stored answer where it was given before.

    A reference is checked with Access (design D15), once a reply. Raises AccessUnavailable.
    """
    part, value = value_of(form)
    reply = Reply(identity_of(who, form), form.subject_digest, part, value, session)
    if form.access_reference is None:
        return reply
    done = await desk.done_before(attempted)
    return done or await proven(desk, who, reply, form.access_reference)


async def proven(desk: Desk, who: Caller, reply: Reply, reference: str) -> Reply:
    """Return `reply` with what Access says: proven when it knows this decision of this responder.

    Otherwise it is disproved: to be refused and recorded like every other that is wrong.
    """
    found = await desk.access.approval(who.tenant, who.environment, reference)
    if (
        found is None
        or found.responder != reply.identity.responder
        or found.subject_digest != reply.subject_digest
        or (reply.part == "decision" and found.decision != action_of(reply.value))
    ):
        return replace(reply, disproved=True)
    return replace(reply, identity=replace(reply.identity, evidence_level="access_aas_ref"))
