"""`/v1/settings`: the tenant's settings of the matcher, for operators."""

from typing import Annotated, cast

from fastapi import APIRouter, Depends, Response
from pydantic import Field
from relay_common.db import tenant_transaction
from relay_common.errors import Json
from relay_common.http import attempt, caller, create_router, render
from relay_common.idempotency import Attempt, Call
from relay_common.tokens import Caller
from relay_common.wire import SourceText, Wire

from relay_matcher.http.desk import Desk
from relay_matcher.operations.reading import OPERATOR
from relay_matcher.operations.settings import read_settings

Operator = Annotated[Caller, Depends(caller(OPERATOR))]


class SettingsIn(Wire):
    """The settings; what is left out takes its default."""

    retention_seconds: int | None = None
    closed_waitpoint_seconds: int | None = None
    open_waitpoints_per_waiter: int | None = None
    open_waitpoints_per_tenant: int | None = None
    event_sources: Annotated[list[SourceText], Field(max_length=1000)] | None = None


def settings_router(desk: Desk) -> APIRouter:
    """Return the routes of the tenant's settings."""
    router = create_router("/v1/settings")

    @router.get("")
    @router.get("/matcher")
    async def get_settings(who: Operator) -> Response:
        async with tenant_transaction(desk.pool, who.tenant, who.environment) as conn:
            return render(await read_settings(conn))

    @router.put("")
    @router.put("/matcher")
    async def put_settings(
        who: Operator, attempted: Annotated[Attempt, Depends(attempt())], form: SettingsIn
    ) -> Response:
        chosen = cast(dict[str, Json], form.model_dump(exclude_none=True))
        return render(await desk.submit(desk.settings, Call(who, attempted, chosen)))

    return router
