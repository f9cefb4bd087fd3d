"""The statements that lock waitpoints by id and close them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import TupleRow
from relay_common import queries
from relay_common.db import AsyncConnection
from relay_common.match_key import MatchKey
from relay_common.pending import Pending, ask, only
from relay_common.tokens import Caller

from relay_matcher.domain.waitpoint import Active

SQL = queries.load("relay_matcher", "closing")


@dataclass(frozen=True, slots=True)
class Locked:
    """A waitpoint whose row is locked: its state, and whether the caller may close it."""

    waitpoint: Active
    state: str
    may_close: bool


async def lock_by_id(
    conn: AsyncConnection, wanted: Sequence[tuple[UUID, Caller]]
) -> Pending[dict[int, Locked]]:
    """Return, by place in `wanted`, the waitpoints that the callers may see; rows are locked."""

    def locked(row: TupleRow) -> Locked:
        place: int = row[1] - 1
        caller = wanted[place][1]
        key = MatchKey(caller.tenant, caller.environment, row[12], row[13])
        return Locked(Active(row[0], key, row[14], *row[2:12]), row[15], row[16])

    given = {
        "ids": [identifier for identifier, _ in wanted],
        "callers": [caller.sub for _, caller in wanted],
        "sees_all": ["operator" in caller.scopes for _, caller in wanted],
    }
    return await ask(
        conn, SQL["lock_by_id"], given, lambda rows: {row[1] - 1: locked(row) for row in rows}
    )


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
