"""The app of the mailbox service."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from relay_common.db import Pool
from relay_common.http import Verifier, create_app

from relay_mailbox.http import mailboxes
from relay_mailbox.http.surface import Surface


def mailbox_app(verifier: Verifier, pool: Pool, seed: int) -> FastAPI:
    """Return the app; it opens and closes `pool`. `seed` is the installation's."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncGenerator[None]:
        await pool.open()
        yield
        await pool.close()

    app = create_app("Relay mailbox", "0.1.0", verifier, lifespan)
    app.state.surface = Surface.of(pool, seed)
    app.include_router(mailboxes.router)
    return app
