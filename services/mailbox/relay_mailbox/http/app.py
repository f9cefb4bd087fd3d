"""The app of the mailbox service."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from fastapi import FastAPI
from relay_common.cursors import Cursors
from relay_common.db import Pool
from relay_common.http import add_routes, create_app
from relay_common.routes import Verifier

from relay_mailbox.http import contacts, mailboxes, tenant
from relay_mailbox.http.paths import AsSent
from relay_mailbox.http.surface import Surface
from relay_mailbox.operations.abuse import AbuseDesk


@dataclass(frozen=True, slots=True)
class AppParts:
    """What the app stands on; `seed` is the installation's."""

    verifier: Verifier
    pool: Pool
    seed: int
    cursors: Cursors
    desk: AbuseDesk


def mailbox_app(parts: AppParts) -> FastAPI:
    """Return the app; it opens and closes the pool."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        await parts.pool.open()
        yield
        await parts.pool.close()

    app = create_app("Relay mailbox", "0.1.0", parts.verifier, lifespan)
    app.add_middleware(AsSent)
    app.state.surface = Surface.of(parts.pool, parts.seed, parts.cursors, parts.desk)
    add_routes(app, mailboxes.router, contacts.router, tenant.router)
    return app
