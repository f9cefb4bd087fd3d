"""Replies: what is acceptable, and in which order a reply is judged (spec, Invariants)."""

import hashlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

import orjson
from relay_common.errors import (
    AccessReferenceInvalid,
    AccessReferenceRequired,
    FieldError,
    Json,
    RelayError,
    ReplySchemaViolation,
    ReplySessionMismatch,
    ResponderIsWaiter,
    ResponderNotListed,
    SubjectDigestMismatch,
    WaitpointCancelled,
    WaitpointExpired,
    WaitpointResolved,
)

from relay_matcher.domain.response_schema import faults_of, schema_text
from relay_matcher.domain.waitpoint import REPLY_PART, Active, Part

Channel = Literal["inbox", "push_action", "sms", "email", "chat_app", "api"]
EvidenceLevel = Literal["channel_claim", "relay_session", "access_aas_ref"]
CLOSED: Mapping[str, type[RelayError]] = {
    "resolved": WaitpointResolved,
    "expired": WaitpointExpired,
    "cancelled": WaitpointCancelled,
}


@dataclass(frozen=True, slots=True)
class Acceptable:
    """Which replies a waitpoint accepts: those that fit the schema and name an allowed action."""

    schema: Mapping[str, Json] | None
    actions: tuple[str, ...] | None

    def digest(self) -> bytes:
        """Return the digest that a stored reply names as what it was validated against."""
        schema = b"" if self.schema is None else schema_text(self.schema)
        return hashlib.sha256(orjson.dumps(self.actions) + schema).digest()

    def faults(self, reply: Json, pointer: str) -> list[FieldError]:
        """Return what keeps `reply` (at `pointer` of its body) from being acceptable."""
        found: list[FieldError] = []
        if self.actions is not None and action_of(reply) not in self.actions:
            found.append(FieldError(pointer, "expected one of the actions of this review"))
        if self.schema is not None:
            found += faults_of(schema_text(self.schema), reply, pointer)
        return found


def action_of(decision: Json) -> Json:
    """Return the action of a decision: the decision itself, or its member `action`."""
    return decision.get("action") if isinstance(decision, Mapping) else decision


def acceptable_of(opened: bytes) -> Acceptable:
    """Return which replies the waitpoint with the fixed part `opened` accepts."""
    fields: Mapping[str, Json] = orjson.loads(opened + b"}")
    schema = fields.get("response_schema")
    actions = fields.get("actions")
    return Acceptable(
        schema if isinstance(schema, Mapping) else None,
        tuple(str(one) for one in actions) if isinstance(actions, list) else None,
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """Who replies, how the reply came, and what that proves (design D15)."""

    responder: str
    channel: Channel
    evidence_level: EvidenceLevel


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply as it was given: `part` is the field it came in, `session` is none for one by key.

    It is `disproved` when it names a decision that Access does not know.
    """

    identity: Identity
    subject_digest: str
    part: Part
    value: Json
    session: uuid.UUID | None = None
    disproved: bool = False


@dataclass(frozen=True, slots=True)
class Session:
    """A reply session as it is stored."""

    id: uuid.UUID
    waitpoint_id: uuid.UUID | None
    identity: str
    channel: str
    evidence_level: EvidenceLevel
    expires_at: datetime


@dataclass(slots=True)
class Target:
    """The waitpoint a reply is for, its row locked; `state` moves as replies of a batch are judged.

    `listed` tells whether the responder of the reply is one of its responders.
    """

    waitpoint: Active
    state: str
    subject_digest: str | None
    schema_digest: bytes | None
    listed: bool


def judge(reply: Reply, target: Target, session: Session | None, at: datetime) -> RelayError | None:
    """Return why `reply` is refused, None when it resolves `target` (spec, Invariants 1 to 6).

    `at` is the clock, read after the row lock. The session counts for a reply by id only; one by
    match key opens its own.
    """
    return (
        identity_fault(reply, target, session)
        or state_fault(target)
        or session_fault(reply, session, at)
        or value_fault(reply, target)
    )


def identity_fault(reply: Reply, target: Target, session: Session | None) -> RelayError | None:
    """Return what invariants 1 and 2 say: who may reply, and in whose session."""
    if reply.identity.responder == target.waitpoint.waiter:
        return ResponderIsWaiter()
    if not target.listed:
        return ResponderNotListed()
    if session is not None and not belongs(session, reply, target):
        return ReplySessionMismatch()
    return None


def state_fault(target: Target) -> RelayError | None:
    """Return what invariants 3 and 4 say: what is closed stays as it is."""
    closed = CLOSED.get(target.state)
    return closed(f"Expected an active waitpoint, but it is {target.state}.") if closed else None


def session_fault(reply: Reply, session: Session | None, at: datetime) -> RelayError | None:
    """Return whether the session that a reply by id needs is there and still runs."""
    if reply.session is not None and (session is None or session.expires_at <= at):
        return ReplySessionMismatch("Expected a running reply session of this waitpoint.")
    return None


def value_fault(reply: Reply, target: Target) -> RelayError | None:
    """Return what invariants 5 and 6 and the profile say about the reply itself."""
    if faults := faults_in(reply, target):
        return ReplySchemaViolation(errors=faults)
    if reply.subject_digest != target.subject_digest:
        return SubjectDigestMismatch()
    if reply.disproved:
        return AccessReferenceInvalid()
    if target.waitpoint.profile is not None and reply.identity.evidence_level != "access_aas_ref":
        return AccessReferenceRequired()
    return None


def belongs(session: Session, reply: Reply, target: Target) -> bool:
    """Tell whether the session was opened for this waitpoint by the identity that completes it.

    Who a channel claims to be is not who a token proves; Access alone may prove more later.
    """
    identity = reply.identity
    return (
        session.waitpoint_id in (target.waitpoint.id, None)
        and session.identity == identity.responder
        and session.channel == identity.channel
        and identity.evidence_level in (session.evidence_level, "access_aas_ref")
    )


def faults_in(reply: Reply, target: Target) -> list[FieldError]:
    """Return what is wrong with the value, by pointers into the request."""
    kind = target.waitpoint.kind
    part = REPLY_PART["review" if kind == "review" else "question"]
    if reply.part != part:
        return [FieldError(f"/{reply.part}", f"expected {part} on kind {kind}")]
    return acceptable_of(target.waitpoint.opened).faults(reply.value, f"/{part}")
