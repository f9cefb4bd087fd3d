"""The HTTP side of the matcher: parse, hand to an operation, render."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from relay_common.http import add_routes, create_app
from relay_common.routes import Verifier

from relay_matcher.http.conditions import conditions_router
from relay_matcher.http.desk import Desk
from relay_matcher.http.events import events_router
from relay_matcher.http.replies import replies_router
from relay_matcher.http.settings import settings_router
from relay_matcher.http.waitpoints import waitpoints_router


def matcher_app(desk: Desk, verifier: Verifier) -> FastAPI:
    """Return the public app of the matcher; pool and Access are open while it runs."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        await desk.pool.open()
        try:
            yield
        finally:
            await desk.pool.close()
            await desk.access.close()

    app = create_app("Relay matcher", "1", verifier, lifespan)
    add_routes(
        app,
        waitpoints_router(desk),
        replies_router(desk),
        events_router(desk),
        conditions_router(),
        settings_router(desk),
    )
    return app
