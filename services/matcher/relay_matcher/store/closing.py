"""The statements that close waitpoints, or keep them open, once their rows are locked."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from relay_common import queries
from relay_common.db import AsyncConnection
from relay_common.pending import Pending, ask, only

from relay_matcher.domain.waitpoint import Active

SQL = queries.load("relay_matcher", "closing")


async def read_clock(conn: AsyncConnection) -> Pending[datetime]:
    """Return the clock; call it after the locks."""
    return await ask(conn, SQL["now"], {}, lambda rows: only(rows)[0])


async def cancel(conn: AsyncConnection, waitpoints: Sequence[Active], at: datetime) -> None:
    """Cancel locked active waitpoints."""
    if waitpoints:
        ids = [waitpoint.id for waitpoint in waitpoints]
        await conn.execute(SQL["cancel"], {"ids": ids, "at": at})


async def record_heartbeats(conn: AsyncConnection, ids: Sequence[UUID], at: datetime) -> None:
    """Note that the waiters of locked waitpoints are alive."""
    if ids:
        await conn.execute(SQL["record_heartbeats"], {"ids": list(ids), "at": at})
