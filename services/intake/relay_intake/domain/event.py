"""An event that was taken in: what it says, and which event it is (design D17)."""

from dataclasses import dataclass
from datetime import datetime

from relay_common.ids import derive_id, encode_id
from relay_common.match_key import MatchKey


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a request; `data` is its JSON, byte for byte as it came."""

    event_type: str
    correlation_key: str
    recipient: str | None = None
    source: str | None = None
    id: str | None = None
    occurred_at: datetime | None = None
    data: bytes | None = None
    dataref_uri: str | None = None
    dataref_digest: str | None = None
    attributes: tuple[tuple[str, str], ...] = ()  # further CloudEvents attributes


@dataclass(frozen=True, slots=True)
class Request:
    """Whose events they are: the scope of their ids."""

    tenant: str
    environment: str
    client: str
    idempotency_key: str


def match_key(request: Request, event: Event) -> MatchKey:
    """Return the match key of `event` in the tenant and environment of `request`."""
    return MatchKey(request.tenant, request.environment, event.event_type, event.correlation_key)


def given_id(request: Request, event: Event, index: int) -> bytes | None:
    """Return the id that intake gives to an event whose producer named none; None when it did.

    It derives from the Idempotency-Key and the place in the batch, so a retry is the same event.
    """
    if event.id is not None:
        return None
    scope = (request.tenant, request.environment, request.client, request.idempotency_key)
    return derive_id("event-http", *scope, str(index))


def event_id(request: Request, event: Event, index: int) -> bytes:
    """Return the 16 bytes by which the matcher knows `event`."""
    given = given_id(request, event, index)
    if given is not None:
        return given
    source, name = event.source or "", event.id or ""
    return derive_id("event", request.tenant, request.environment, source, name)


def outside_id(key_hash: int, raw: bytes) -> str:
    """Return the outside form `ev_…` of an event id: one probe per slice of the log finds it."""
    return encode_id("ev_", key_hash.to_bytes(8, "big", signed=True) + raw)
