"""Which error a violated rule of the database is, by the name of its constraint."""

import psycopg
from relay_common.errors import (
    DeadlinePassed,
    DeadlineTooFar,
    DefaultResponseForbidden,
    RelayError,
    ReplySessionMismatch,
    ResponderIsWaiter,
    ResponderNotListed,
    SubjectDigestMismatch,
    WaitpointAlreadyActive,
    WaitpointExpired,
    WaitpointResolved,
)

ERRORS: dict[str, type[RelayError]] = {
    "waitpoint_one_active_per_waiter_and_key": WaitpointAlreadyActive,
    "waitpoint_deadline_within_30_days": DeadlineTooFar,
    "waitpoint_deadline_after_creation": DeadlinePassed,
    "waitpoint_resolved_before_deadline": WaitpointExpired,
    "waitpoint_terminal_is_immutable": WaitpointResolved,
    "waitpoint_responder_is_not_waiter": ResponderIsWaiter,
    "responder_is_not_waiter": ResponderIsWaiter,
    "held_reply_is_not_from_the_waiter": ResponderIsWaiter,
    "waitpoint_responder_is_listed": ResponderNotListed,
    "reply_session_is_of_a_responder": ResponderNotListed,
    "waitpoint_reply_has_its_session": ReplySessionMismatch,
    "waitpoint_session_is_completed_by_its_identity": ReplySessionMismatch,
    "waitpoint_reply_is_bound_to_subject": SubjectDigestMismatch,
    "waitpoint_silence_is_not_consent": DefaultResponseForbidden,
}


def error_of(violation: psycopg.IntegrityError) -> RelayError | None:
    """Return the error for a violated rule, None when the rule is not the caller's to break."""
    found = ERRORS.get(violation.diag.constraint_name or "")
    return found() if found else None
