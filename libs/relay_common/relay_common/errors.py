"""Every error of Relay: one tree, one stable code each; problems.py renders them.

Exception
├── Poison               a record that can never be processed: to the DLQ
├── Busy                 not now: offer the batch again
└── RelayError           answers a caller; a code never changes once released
    ├── BadRequest 400   malformed_json · cursor_invalid · idempotency_key_required · …
    ├── Unauthorized 401 invalid_token · first_contact_token_required
    ├── Forbidden 403    insufficient_scope · responder_not_listed · reply_session_mismatch
    ├── NotFound 404     not_found · waitpoint_not_found · event_not_found · mailbox_not_found · …
    ├── Conflict 409     idempotency_in_progress · waitpoint_already_active · resync_required · …
    ├── Gone 410         mailbox_deleted · cursor_expired
    ├── Invalid 422      validation_failed · unknown_field · idempotency_key_reused · …
    ├── TooMany 429      limit_exceeded · rate_limited
    ├── Unavailable 503  store_unavailable · broker_unavailable · access_unavailable · overloaded
    └── alone            method_not_allowed 405 · request_timeout 408 · payload_too_large 413 ·
                         unsupported_media_type 415 · internal_error 500

A docstring is the default `detail` and the text of docs/errors.md, so it speaks to the caller.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


class Poison(Exception):
    """A record that can never be processed: it goes to the DLQ with `reason` and its bytes."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


class Busy(Exception):
    """Not now: the loop backs off and offers the same batch again."""


@dataclass(frozen=True, slots=True)
class FieldError:
    """One fault at one place: `pointer` is an RFC 6901 pointer into the body, or `?name`."""

    pointer: str
    detail: str


@dataclass(frozen=True, slots=True)
class LimitHit:
    """The published limit that was hit, its value now, and what the caller asked for."""

    name: str
    value: int
    got: int


class RelayError(Exception):
    """The request cannot be answered."""

    code: ClassVar[str] = ""
    status: ClassVar[int] = 500

    def __init_subclass__(cls, code: str = "", status: int = 0) -> None:
        """Name the code and status of the class; a class without one takes its parent's."""
        super().__init_subclass__()
        cls.code = code or cls.code
        cls.status = status or cls.status

    def __init__(
        self,
        detail: str | None = None,
        *,
        limit: LimitHit | None = None,
        errors: Sequence[FieldError] = (),
        retry_after: int | None = None,
        **extra: Json,
    ) -> None:
        """Say what was expected and what was found in `detail`; `retry_after` is in seconds.

        `extra` becomes members of the problem (epoch, oldest, head, id, …).
        """
        self.detail = detail or default_detail(type(self))
        self.limit = limit
        self.errors = tuple(errors)
        self.retry_after = retry_after
        self.extra = extra
        super().__init__(self.detail)


def default_detail(error: type[RelayError]) -> str:
    """Return the first sentence of the class, which is its message when nothing better is known."""
    return " ".join((error.__doc__ or "").split("\n\n")[0].split())


def catalogue(root: type[RelayError] = RelayError) -> Iterator[type[RelayError]]:
    """Yield every class that has a code, in the order of the tree."""
    for error in root.__subclasses__():
        if error.code != root.code:
            yield error
        yield from catalogue(error)


# 400


class BadRequest(RelayError, status=400):
    """The request cannot be read."""


class MalformedJson(BadRequest, code="malformed_json"):
    """Expected a JSON document in UTF-8 (no duplicate keys, NaN, NUL or lone surrogates, at most
    64 levels deep), but found something else."""


class MalformedRequest(BadRequest, code="malformed_request"):
    """Expected a well-formed HTTP request, but found something else."""


class CursorInvalid(BadRequest, code="cursor_invalid"):
    """Expected a cursor of this very list, but found another or a broken one."""


class IdempotencyKeyRequired(BadRequest, code="idempotency_key_required"):
    """Expected the header Idempotency-Key, as on every mutating request, but found none."""


class IdempotencyKeyInvalid(BadRequest, code="idempotency_key_invalid"):
    """Expected an Idempotency-Key of 1 to 255 visible ASCII characters."""


# 401, 403


class Unauthorized(RelayError, status=401):
    """The caller is not known."""


class InvalidToken(Unauthorized, code="invalid_token"):
    """Expected `Authorization: Bearer` with a valid access token of Access for Relay."""


class FirstContactTokenRequired(Unauthorized, code="first_contact_token_required"):
    """Expected a valid first-contact token, because sender and recipient do not know each other."""


class Forbidden(RelayError, status=403):
    """The caller may see the thing, but may not do this."""


class InsufficientScope(Forbidden, code="insufficient_scope"):
    """Expected an access token with another scope."""


class ResponderNotListed(Forbidden, code="responder_not_listed"):
    """Expected a responder out of the waitpoint's responders, but found another identity."""


class ReplySessionMismatch(Forbidden, code="reply_session_mismatch"):
    """Expected the identity that opened the reply session, but found another."""


class AccessReferenceRequired(Forbidden, code="access_reference_required"):
    """Expected a reply with a reference to a decision on the Access approval surface."""


class AccessReferenceInvalid(Forbidden, code="access_reference_invalid"):
    """Expected a reference to this very decision of this responder, but Access knows none."""


# 404: unknown, foreign and malformed ids are one and the same answer (design D6)


class NotFound(RelayError, status=404, code="not_found"):
    """There is nothing at this address."""


class WaitpointNotFound(NotFound, code="waitpoint_not_found"):
    """There is no waitpoint with this id."""


class EventNotFound(NotFound, code="event_not_found"):
    """There is no recorded event with this id."""


class MailboxNotFound(NotFound, code="mailbox_not_found"):
    """There is no mailbox of this owner."""


class LeaseNotFound(NotFound, code="lease_not_found"):
    """There is no lease with this id."""


class TriggerNotFound(NotFound, code="trigger_not_found"):
    """There is no trigger with this id."""


class MethodNotAllowed(RelayError, status=405, code="method_not_allowed"):
    """Expected one of the methods in the header Allow."""


class RequestTimeout(RelayError, status=408, code="request_timeout"):
    """Expected the whole request body in time, but the rest did not come."""


# 409


class Conflict(RelayError, status=409):
    """The state of the thing does not allow this."""


class IdempotencyInProgress(Conflict, code="idempotency_in_progress"):
    """Expected the first request with this Idempotency-Key to be finished; it is still running."""


class WaitpointAlreadyActive(Conflict, code="waitpoint_already_active"):
    """Expected no active waitpoint of this waiter on the match key; `id` names the one there is."""


class WaitpointExpired(Conflict, code="waitpoint_expired"):
    """Expected an active waitpoint, but its deadline has passed."""


class WaitpointResolved(Conflict, code="waitpoint_resolved"):
    """Expected an active waitpoint, but it is resolved already."""


class WaitpointCancelled(Conflict, code="waitpoint_cancelled"):
    """Expected an active waitpoint, but it is cancelled."""


class WaitpointClosed(Conflict, code="waitpoint_closed"):
    """Expected an active or cancelled waitpoint, but it is resolved or expired."""


class LookBackExceeded(Conflict, code="look_back_exceeded"):
    """Expected fewer recorded events to look back over; name a later `accept_events_since`."""


class SubjectDigestMismatch(Conflict, code="subject_digest_mismatch"):
    """Expected the subject digest of this waitpoint, but found another."""


class MailboxSuspended(Conflict, code="mailbox_suspended"):
    """Expected an active mailbox; a suspended one is read, but not leased or acknowledged."""


class ResyncRequired(Conflict, code="resync_required"):
    """Expected a position between oldest and head of this epoch; read again from `oldest`."""


class LeaseLost(Conflict, code="lease_lost"):
    """Expected a running lease, but it has expired or moved to another holder."""


# 410, 413, 415


class Gone(RelayError, status=410):
    """The thing was here and will not come back."""


class MailboxDeleted(Gone, code="mailbox_deleted"):
    """Expected a mailbox that is not deleted; its records are kept."""


class CursorExpired(Gone, code="cursor_expired"):
    """Expected a cursor within the retention, but its events are gone."""


class PayloadTooLarge(RelayError, status=413, code="payload_too_large"):
    """Expected a smaller payload; carry large content by reference."""


class UnsupportedMediaType(RelayError, status=415, code="unsupported_media_type"):
    """Expected an uncompressed body of type application/json."""


# 422


class Invalid(RelayError, status=422):
    """The request is well-formed, but says something that cannot be."""


class ValidationFailed(Invalid, code="validation_failed"):
    """Expected other values; `errors` names each place."""


class UnknownField(Invalid, code="unknown_field"):
    """Expected only fields of the contract; `errors` names those that are not."""


class IdempotencyKeyReused(Invalid, code="idempotency_key_reused"):
    """Expected the payload that came first with this Idempotency-Key, but found another."""


class DeadlineRequired(Invalid, code="deadline_required"):
    """Expected `expires_at`: there is no default deadline."""


class DeadlinePassed(Invalid, code="deadline_passed"):
    """Expected `expires_at` in the future."""


class DeadlineTooFar(Invalid, code="deadline_too_far"):
    """Expected `expires_at` within the maximum wait."""


class DefaultResponseForbidden(Invalid, code="default_response_forbidden"):
    """Expected no `default_response`: under guardian_approval silence is not consent."""


class ResponderIsWaiter(Invalid, code="responder_is_waiter"):
    """Expected responders other than the waiter."""


class GuardianNotListed(Invalid, code="guardian_not_listed"):
    """Expected responders that Access knows as guardians of the child."""


class ConditionInvalid(Invalid, code="condition_invalid"):
    """Expected a condition that compiles and is bounded."""


class SchemaInvalid(Invalid, code="schema_invalid"):
    """Expected a JSON Schema (2020-12) that compiles, stays inside itself and is bounded."""


class TimeWindowRequired(Invalid, code="time_window_required"):
    """Expected a time window, because the list names no key."""


class ReplySchemaViolation(Invalid, code="reply_schema_violation"):
    """Expected a reply that fits the response schema; nothing was stored."""


class LeaseTooLong(Invalid, code="lease_too_long"):
    """Expected a lease within the longest allowed."""


# 429, 5xx: never stored under an idempotency key


class TooMany(RelayError, status=429):
    """There is too much of something."""


class LimitExceeded(TooMany, code="limit_exceeded"):
    """Expected to stay within the published limit that `limit` names."""


class RateLimited(TooMany, code="rate_limited"):
    """Expected fewer requests in this time; try again after `retry_after` seconds."""


class InternalError(RelayError, code="internal_error"):
    """Relay failed; the request may be repeated with the same Idempotency-Key."""


class Unavailable(RelayError, status=503):
    """A part that Relay needs does not answer; repeat with the same Idempotency-Key."""

    def __init__(self, detail: str | None = None, *, retry_after: int = 1) -> None:
        """As RelayError; `retry_after` (seconds) is always given."""
        super().__init__(detail, retry_after=retry_after)


class StoreUnavailable(Unavailable, code="store_unavailable"):
    """The database does not answer in time; repeat with the same Idempotency-Key."""


class BrokerUnavailable(Unavailable, code="broker_unavailable"):
    """The broker has not acknowledged; repeat with the same Idempotency-Key."""


class AccessUnavailable(Unavailable, code="access_unavailable"):
    """Access does not answer, so the request cannot be checked; repeat later."""


class Overloaded(Unavailable, code="overloaded"):
    """Too many requests are waiting; repeat with the same Idempotency-Key."""
