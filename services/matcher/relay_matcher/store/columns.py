"""Values as the arrays that set-based statements take; both sides use them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from relay_common.arrays import longs, repeated_texts, texts, uuids
from relay_common.match_key import MatchKey

from relay_matcher.domain.event import Event
from relay_matcher.domain.waitpoint import Active


def key_columns(keys: Mapping[MatchKey, int]) -> dict[str, object]:
    """Return `keys` (key → hash) as arrays."""
    return {
        "tenants": repeated_texts(key.tenant for key in keys),
        "environments": repeated_texts(key.environment for key in keys),
        "key_hashes": longs(keys.values()),
        "event_types": repeated_texts(key.event_type for key in keys),
        "correlation_keys": texts([key.correlation_key.encode() for key in keys]),
    }


def waitpoint_columns(waitpoints: Sequence[Active]) -> dict[str, object]:
    """Return the primary keys of `waitpoints` as arrays."""
    return {
        "tenants": repeated_texts(waitpoint.key.tenant for waitpoint in waitpoints),
        "environments": repeated_texts(waitpoint.key.environment for waitpoint in waitpoints),
        "ids": uuids([waitpoint.id.bytes for waitpoint in waitpoints]),
    }


def take_columns(takes: Sequence[tuple[Active, Event]]) -> dict[str, object]:
    """Return who takes which event as arrays."""
    return {
        "tenants": repeated_texts(waitpoint.key.tenant for waitpoint, _ in takes),
        "environments": repeated_texts(waitpoint.key.environment for waitpoint, _ in takes),
        "key_hashes": longs(waitpoint.key_hash for waitpoint, _ in takes),
        "event_ids": uuids([event.event_id for _, event in takes]),
        "waiters": texts([waitpoint.waiter.encode() for waitpoint, _ in takes]),
    }


def closed_columns(closed: Iterable[Active]) -> dict[str, object]:
    """Return how many waitpoints of each waiter are closed, as arrays."""
    counts = Counter((w.key.tenant, w.key.environment, w.waiter) for w in closed)
    return {
        "tenants": texts([tenant.encode() for tenant, _, _ in counts]),
        "environments": texts([environment.encode() for _, environment, _ in counts]),
        "waiters": texts([waiter.encode() for _, _, waiter in counts]),
        "closed": longs(counts.values()),
    }
