"""Counting open waitpoints per waiter and tenant, so that closings wait for nobody (design D18)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from relay_common.db import AsyncConnection
from relay_common.errors import LimitExceeded, RelayError
from relay_common.limits import OPEN_PER_TENANT, OPEN_PER_WAITER, Limit

from relay_matcher.domain.waitpoint import Opening
from relay_matcher.store import opening as store

TENANT = ""


async def refuse_excess(
    conn: AsyncConnection,
    openings: Sequence[Opening],
    counts: Mapping[str, int],
    settings: Mapping[str, int],
) -> dict[UUID, RelayError]:
    """Return those of `openings` that would go over a limit; they are taken out of `counts` again.

    The count can only be too high; at a limit the closings are folded in before anybody is refused.
    """
    if any(excess(name, count, settings) > 0 for name, count in counts.items()):
        counts = {**counts, **await store.fold_tenant(conn)}
    refused = over_limits(openings, counts, settings)
    await store.lower_counters(conn, [o.waiter for o in openings if o.id in refused])
    return refused


def over_limits(
    openings: Sequence[Opening], counted: Mapping[str, int], settings: Mapping[str, int]
) -> dict[UUID, RelayError]:
    """Return the openings that find no room, in their order; `counted` has all of them in it.

    What is refused takes no room from those behind it.
    """
    counts = Counter(counted)
    counts.subtract([name for opening in openings for name in (opening.waiter, TENANT)])
    refused: dict[UUID, RelayError] = {}
    for opening in openings:
        both = (opening.waiter, TENANT)
        full = [name for name in both if excess(name, counts[name] + 1, settings) > 0]
        if full:
            refused[opening.id] = over_limit(full[0], counts[full[0]] + 1, settings)
        else:
            counts.update(both)
    return refused


def limit_of(name: str) -> Limit:
    """Return the limit of a tenant ('') or a waiter."""
    return OPEN_PER_TENANT if name == TENANT else OPEN_PER_WAITER


def allowed(name: str, settings: Mapping[str, int]) -> int:
    """Return how many may be open, by the tenant's setting below the upper limit."""
    limit = limit_of(name)
    return min(settings.get(limit.name, limit.default), limit.upper)


def excess(name: str, count: int, settings: Mapping[str, int]) -> int:
    """Return how far `count` is over the limit of `name`; zero or less is fine."""
    return count - allowed(name, settings)


def over_limit(name: str, count: int, settings: Mapping[str, int]) -> RelayError:
    """Return the error for one opening too many."""
    most = allowed(name, settings)
    whose = "the tenant" if name == TENANT else "one waiter"
    return LimitExceeded(
        f"Expected at most {most} active waitpoints of {whose}, found {count}.",
        limit=limit_of(name).hit(count, most),
    )
