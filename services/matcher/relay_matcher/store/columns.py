"""Values as the arrays that set-based statements take; both sides use them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from relay_common.match_key import MatchKey

from relay_matcher.domain.event import Event, uuid_of
from relay_matcher.domain.waitpoint import Active


def key_columns(keys: Mapping[MatchKey, int]) -> dict[str, object]:
    """Return `keys` (key → hash) as arrays."""
    return {
        "tenants": [key.tenant for key in keys],
        "environments": [key.environment for key in keys],
        "key_hashes": list(keys.values()),
        "event_types": [key.event_type for key in keys],
        "correlation_keys": [key.correlation_key for key in keys],
    }


def waitpoint_columns(waitpoints: Sequence[Active]) -> dict[str, object]:
    """Return the primary keys of `waitpoints` as arrays."""
    return {
        "tenants": [waitpoint.key.tenant for waitpoint in waitpoints],
        "environments": [waitpoint.key.environment for waitpoint in waitpoints],
        "ids": [waitpoint.id for waitpoint in waitpoints],
    }


def take_columns(takes: Sequence[tuple[Active, Event]], at: datetime) -> dict[str, object]:
    """Return who takes which event as arrays."""
    return {
        "tenants": [waitpoint.key.tenant for waitpoint, _ in takes],
        "environments": [waitpoint.key.environment for waitpoint, _ in takes],
        "key_hashes": [waitpoint.key_hash for waitpoint, _ in takes],
        "event_ids": [uuid_of(event.event_id) for _, event in takes],
        "waiters": [waitpoint.waiter for waitpoint, _ in takes],
        "waitpoint_ids": [waitpoint.id for waitpoint, _ in takes],
        "at": at,
    }


def closed_columns(closed: Iterable[Active]) -> dict[str, object]:
    """Return how many waitpoints of each waiter are closed, as arrays."""
    counts = Counter((w.key.tenant, w.key.environment, w.waiter) for w in closed)
    return {
        "tenants": [tenant for tenant, _, _ in counts],
        "environments": [environment for _, environment, _ in counts],
        "waiters": [waiter for _, _, waiter in counts],
        "closed": list(counts.values()),
    }
