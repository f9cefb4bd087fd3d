"""The statements that lock waitpoints by id and close them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from relay_common import queries
from relay_common.db import AsyncConnection
from relay_common.match_key import MatchKey
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
) -> dict[int, Locked]:
    """Return, by place in `wanted`, the waitpoints that the callers may see; rows are locked."""
    rows = await conn.execute(
        SQL["lock_by_id"],
        {
            "ids": [identifier for identifier, _ in wanted],
            "callers": [caller.sub for _, caller in wanted],
            "sees_all": ["operator" in caller.scopes for _, caller in wanted],
        },
        binary=True,
    )
    found: dict[int, Locked] = {}
    for row in await rows.fetchall():
        place: int = row[1] - 1
        caller = wanted[place][1]
        key = MatchKey(caller.tenant, caller.environment, row[12], row[13])
        waitpoint = Active(row[0], key, row[14], *row[2:12])
        found[place] = Locked(waitpoint, row[15], row[16])
    return found


async def read_clock(conn: AsyncConnection) -> datetime:
    """Return the clock; call it after the locks."""
    row = await (await conn.execute(SQL["now"], binary=True)).fetchone()
    if row is None:
        raise LookupError("expected a clock, found none")
    return row[0]


async def cancel(conn: AsyncConnection, waitpoints: Sequence[Active], at: datetime) -> None:
    """Cancel locked active waitpoints."""
    if waitpoints:
        ids = [waitpoint.id for waitpoint in waitpoints]
        await conn.execute(SQL["cancel"], {"ids": ids, "at": at})


async def record_heartbeats(conn: AsyncConnection, ids: Sequence[UUID], at: datetime) -> None:
    """Note that the waiters of locked waitpoints are alive."""
    if ids:
        await conn.execute(SQL["record_heartbeats"], {"ids": list(ids), "at": at})
