"""Waitpoints that are locked for the calls of a batch, and how they stand afterwards."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from relay_common.combiner import Answer
from relay_common.db import AsyncConnection
from relay_common.errors import RelayError
from relay_common.tokens import Caller

from relay_matcher.domain.reply import Target
from relay_matcher.operations import lifecycle
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.operations.reading import waitpoint_json
from relay_matcher.store.closing import read_clock
from relay_matcher.store.replying import Wanted, lock_targets


async def locked(
    conn: AsyncConnection, wanted: Sequence[tuple[UUID, Caller]]
) -> tuple[dict[int, Target], datetime]:
    """Lock waitpoints for their callers, in id order; return by place those that they may see, and
    the clock, read in a statement after the locks (design D5).
    """
    locking = await lock_targets(conn, [Wanted(one, who, who.sub) for one, who in wanted])
    reading = await read_clock(conn)
    return await locking.result(), await reading.result()


async def shown(
    plumbing: Plumbing, conn: AsyncConnection, identifier: UUID, caller: Caller
) -> Answer | RelayError:
    """Return the waitpoint as it is now: 200, or waitpoint_not_found."""
    body = await waitpoint_json(plumbing, conn, identifier, caller)
    return body if isinstance(body, RelayError) else Answer(200, body, lifecycle.JSON_TYPE)
