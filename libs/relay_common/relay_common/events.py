"""The event catalog: the names that lifecycle events carry on topics and in mailboxes."""

from typing import Literal, get_args

# The spec's table of events.
CatalogEvent = Literal[
    "waitpoint.created",
    "waitpoint.escalated",
    "waitpoint.resolved",
    "waitpoint.expired",
    "waitpoint.cancelled",
    "waitpoint.stalled",
    "waitpoint.response_rejected",
]
# For Relay's own services only: `internal` is true in the record.
InternalEvent = Literal["waitpoint.reopened"]
LifecycleEvent = CatalogEvent | InternalEvent

CATALOG: frozenset[str] = frozenset(get_args(CatalogEvent))
INTERNAL: frozenset[str] = frozenset(get_args(InternalEvent))
