"""`/v1/events`: recorded events, why they matched or not, and who took them."""

from datetime import datetime
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request, Response
from relay_common.combiner import Answer
from relay_common.db import tenant_transaction
from relay_common.errors import (
    EventNotFound,
    FieldError,
    RelayError,
    TimeWindowRequired,
)
from relay_common.http import caller, create_router, render
from relay_common.ids import decode_id
from relay_common.limits import LIST_ITEMS
from relay_common.match_key import MatchKey
from relay_common.tokens import Caller
from relay_common.wire import PageSize, Time, parse_time, rfc3339

from relay_matcher.http.desk import Desk
from relay_matcher.http.lists import list_scope, listed, page_of
from relay_matcher.operations.lifecycle import JSON_TYPE
from relay_matcher.operations.look_back import retention
from relay_matcher.operations.reading import event_json, events_json
from relay_matcher.store.opening import read_settings
from relay_matcher.store.reading import EventFilter

Reader = Annotated[Caller, Depends(caller("events:read", "operator"))]
Disposition = Literal["matched", "held", "expired", "unmatched"]
NEWEST = 2**63 - 1


def events_router(desk: Desk) -> APIRouter:
    """Return the routes of recorded events."""
    router = create_router("/v1/events")

    @router.get("/{identifier}")
    async def get_event(who: Reader, identifier: str) -> Response:
        raw = decode_id("ev_", identifier, 24)
        if raw is None:
            raise EventNotFound
        key_hash = int.from_bytes(raw[:8], "big", signed=True)
        async with tenant_transaction(desk.pool, who.tenant, who.environment) as conn:
            body = await event_json(desk.plumbing, conn, key_hash, UUID(bytes=raw[8:]))
        if isinstance(body, RelayError):
            raise body
        return render(Answer(200, body, JSON_TYPE))

    @router.get("")
    async def list_events(
        request: Request, who: Reader, query: Annotated[EventQuery, Depends()]
    ) -> Response:
        scope = list_scope(request, who)
        position = page_of(desk.cursors, scope, query.cursor)
        before = int(str(position[0])) if position else NEWEST
        before_time = parse_time(position[1]) if position else query.received_before
        async with tenant_transaction(desk.pool, who.tenant, who.environment) as conn:
            settings = await (await read_settings(conn)).result()
            wanted = EventFilter(
                retention=retention(settings),
                limit=query.limit,
                before=before,
                before_time=before_time,
                key_hash=query.key_hash(who, desk.plumbing.seed),
                event_type=query.event_type,
                correlation_key=query.correlation_key,
                received_after=query.received_after,
                received_before=query.received_before,
                dispositions=query.dispositions(),
            )
            items, last = await events_json(desk.plumbing, conn, wanted)
        following = None
        if last is not None:
            following = desk.cursors.write(scope, [last.arrival, rfc3339(last.received_at)])
        return render(listed(items, following))

    return router


class EventQuery:
    """The filters of `GET /v1/events`; without a whole key a window of time is required."""

    def __init__(  # noqa: PLR0913, PLR0917 - one parameter a filter
        self,
        disposition: Annotated[list[Disposition] | None, Query()] = None,
        event_type: str | None = None,
        correlation_key: str | None = None,
        received_after: Time | None = None,
        received_before: Time | None = None,
        limit: PageSize = LIST_ITEMS.default,
        cursor: str | None = None,
    ) -> None:
        """Hold the parameters as FastAPI has read them. Raises TimeWindowRequired."""
        whole_key = event_type is not None and correlation_key is not None
        if not whole_key and (received_after is None or received_before is None):
            raise TimeWindowRequired(
                errors=[
                    FieldError("?received_after", "expected a time"),
                    FieldError("?received_before", "expected a time"),
                ]
            )
        self.disposition = disposition
        self.event_type = event_type
        self.correlation_key = correlation_key
        self.received_after: datetime | None = received_after
        self.received_before: datetime | None = received_before
        self.limit = limit
        self.cursor = cursor

    def key_hash(self, who: Caller, seed: int) -> int | None:
        """Return the hash of the key, None when the query names no whole key."""
        if self.event_type is None or self.correlation_key is None:
            return None
        key = MatchKey(who.tenant, who.environment, self.event_type, self.correlation_key)
        return key.hash(seed)

    def dispositions(self) -> list[str] | None:
        """Return the dispositions asked for; `unmatched` is held and expired."""
        if self.disposition is None:
            return None
        asked = set(self.disposition)
        if "unmatched" in asked:
            return sorted(asked - {"unmatched"} | {"held", "expired"})
        return sorted(asked)
