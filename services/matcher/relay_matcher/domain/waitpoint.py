"""The waitpoint: kinds, states and what may follow what (spec, Waitpoint kinds, States).

open ──► resolved | expired | cancelled | stalled
stalled ──► open | resolved | expired | cancelled
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, NamedTuple

import msgspec
from relay_common.errors import (
    DeadlinePassed,
    DeadlineTooFar,
    FieldError,
    Json,
    RelayError,
    ValidationFailed,
)
from relay_common.limits import WAIT_SECONDS
from relay_common.match_key import MatchKey
from relay_common.wire import rfc3339

Kind = Literal["question", "review", "event"]
State = Literal["open", "stalled", "resolved", "expired", "cancelled"]
Part = Literal["response", "decision"]

TRANSITIONS: Mapping[State, frozenset[State]] = {
    "open": frozenset({"resolved", "expired", "cancelled", "stalled"}),
    "stalled": frozenset({"open", "resolved", "expired", "cancelled"}),
    "resolved": frozenset(),
    "expired": frozenset(),
    "cancelled": frozenset(),
}
ACTIVE_STATES: frozenset[State] = frozenset({"open", "stalled"})
REPLY_PART: Mapping[Kind, Part] = {"question": "response", "review": "decision"}
CLOCKS_DIFFER = timedelta(seconds=60)
LONGEST_WAIT = timedelta(seconds=WAIT_SECONDS.default)


class Responder(NamedTuple):
    """Who may reply, and what the waiter is to them: None where Access was not asked."""

    identity: str
    relationship: str | None


@dataclass(frozen=True, slots=True)
class Opening:
    """What somebody asks to open. `fields` is the request as it is shown again (api.md)."""

    id: uuid.UUID
    key: MatchKey
    key_hash: int
    waiter: str
    kind: Kind
    expires_at: datetime
    fields: Mapping[str, Json]
    condition: str | None = None
    since: datetime | None = None
    heartbeat_interval: timedelta | None = None
    deliver_topic: str | None = None
    profile: str | None = None
    responders: tuple[str, ...] = ()
    relationships: Mapping[str, str] = field(default_factory=dict[str, str])
    subject_digest: str | None = None
    schema_digest: bytes | None = None
    default_response: bytes | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])

    def invited(self) -> list[Responder]:
        """Return the responders with what the waiter is to them."""
        return [Responder(one, self.relationships.get(one)) for one in self.responders]

    def opened_fields(self, external_id: str, at: datetime) -> dict[str, Json]:
        """Return the members of this waitpoint that never change, as opened at `at`."""
        return {
            "id": external_id,
            "waiter": self.waiter,
            "tenant": self.key.tenant,
            "environment": self.key.environment,
            **self.fields,
            "created_at": rfc3339(at),
        }


class Active(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An active waitpoint whose row is locked. `opened` is its fixed part, rendered."""

    id: uuid.UUID
    key: MatchKey
    key_hash: int
    waiter: str
    kind: str
    profile: str | None
    condition: str | None
    expires_at: datetime
    revision: int
    activation: int
    deliver_topic: str | None
    default_response: bytes | None
    opened: bytes


def since_fault(since: datetime | None, at: datetime) -> RelayError | None:
    """Return why a waitpoint opened at `at` may not look back to `since`, None when it may.

    What arrives after the opening counts, whatever `since` says: so it makes no difference whether
    event or opening came first. "Now" by a clock that runs ahead a little means the opening.
    """
    if since is None or since <= at + CLOCKS_DIFFER:
        return None
    fault = f"expected a time up to {rfc3339(at)}, when the waitpoint opens, found a later one"
    return ValidationFailed(errors=[FieldError("/accept_events_since", fault)])


def deadline_fault(expires_at: datetime, at: datetime) -> RelayError | None:
    """Return why `expires_at` is no deadline for a waitpoint opened at `at`, None when it is."""
    if expires_at <= at:
        return DeadlinePassed(f"Expected a deadline after {rfc3339(at)}, found an earlier one.")
    if expires_at - at > LONGEST_WAIT:
        got = int((expires_at - at).total_seconds()) + 1
        return DeadlineTooFar(
            f"Expected a deadline at most {WAIT_SECONDS.default} seconds away, found {got}.",
            limit=WAIT_SECONDS.hit(got),
        )
    return None
