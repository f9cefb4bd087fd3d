"""Lifecycle events of waitpoints, built from values; both sides announce by these."""

from datetime import datetime

from relay_common.outbox import OutMessage
from relay_common.wire import rfc3339

from relay_matcher.announcement import Announcer, Body, Record, Subject, early_event_id
from relay_matcher.domain.event import Event
from relay_matcher.domain.rendering import data_member, event_head, waitpoint_head
from relay_matcher.domain.waitpoint import Active

JSON_TYPE = {"content-type": "application/json"}


def subject_of(waitpoint: Active, state: str, revision: int) -> Subject:
    """Return `waitpoint` as it is in `state` at `revision`."""
    return Subject(
        waitpoint.id,
        waitpoint.key,
        waitpoint.waiter,
        waitpoint.kind,
        state,
        revision,
        waitpoint.activation,
        waitpoint.expires_at,
        waitpoint.deliver_topic,
    )


def open_head(waitpoint: Active, state: str, at: datetime) -> bytes:
    """Return an active waitpoint as of now, up to and without its resolution."""
    counts = (waitpoint.revision, waitpoint.activation)
    times = (rfc3339(at), None)
    return waitpoint_head(waitpoint.opened, waitpoint.kind, waitpoint.profile, state, counts, times)


def closed_head(waitpoint: Active, state: str, at: datetime) -> bytes:
    """Return a waitpoint closed at `at`, one revision on, up to and without its resolution."""
    counts = (waitpoint.revision + 1, waitpoint.activation)
    stamp = rfc3339(at)
    return waitpoint_head(
        waitpoint.opened, waitpoint.kind, waitpoint.profile, state, counts, (stamp, stamp)
    )


def created(announcer: Announcer, waitpoint: Active, at: datetime) -> list[OutMessage]:
    """Return `waitpoint.created` for a waitpoint at its first revision."""
    body = Body(open_head(waitpoint, "open", at) + b"null}")
    return announcer.lifecycle(subject_of(waitpoint, "open", 1), "waitpoint.created", at, body)


def expired(announcer: Announcer, waitpoint: Active, at: datetime) -> list[OutMessage]:
    """Return `waitpoint.expired`; a default response stands beside the waitpoint (design D10)."""
    default = waitpoint.default_response
    tail = b"null}" + (b',"default_response":' + default if default is not None else b"")
    subject = subject_of(waitpoint, "expired", waitpoint.revision + 1)
    body = Body(closed_head(waitpoint, "expired", at) + tail)
    return announcer.lifecycle(subject, "waitpoint.expired", at, body)


def cancelled(
    announcer: Announcer, waitpoint: Active, at: datetime, reason: bytes | None
) -> list[OutMessage]:
    """Return `waitpoint.cancelled`; `reason` is JSON text."""
    tail = b"null}" + (b',"reason":' + reason if reason is not None else b"")
    subject = subject_of(waitpoint, "cancelled", waitpoint.revision + 1)
    body = Body(closed_head(waitpoint, "cancelled", at) + tail)
    return announcer.lifecycle(subject, "waitpoint.cancelled", at, body)


def resolution_tail(at: datetime) -> bytes:
    """Return what follows the event in a waitpoint resolved by an event at `at`."""
    return f',"responded_at":"{rfc3339(at)}"}}}}'.encode()


def resolved_by_event(
    announcer: Announcer, waitpoint: Active, event: Event, shown: bytes, at: datetime
) -> list[OutMessage]:
    """Return `waitpoint.resolved`; `shown` is the event's JSON, one object for all its takers."""
    body = Body(closed_head(waitpoint, "resolved", at) + b'{"event":', shown, resolution_tail(at))
    subject = subject_of(waitpoint, "resolved", waitpoint.revision + 1)
    held = early_event_id(event.event_id, waitpoint.waiter) if event.recipient else None
    return announcer.lifecycle(
        subject, "waitpoint.resolved", at, body, supersedes=held, trace=event.trace
    )


def event_json(event: Event, received_at: datetime, *, whole: bool = False) -> bytes:
    """Return `event` as resolutions and records show it; `whole` has large data in it as well."""
    attributes = {
        "source": event.source,
        "source_id": event.source_id,
        "event_type": event.key.event_type,
        "correlation_key": event.key.correlation_key,
        "recipient": event.recipient,
    }
    head = event_head(event.external_id, attributes, rfc3339(received_at))
    return head + data_member(event, whole) + b"}"


def early_event(
    announcer: Announcer, event: Event, owner: str, shown: bytes, state: str
) -> OutMessage:
    """Return the record that shows an early event in its owner's mailbox (design D1)."""
    record = Record(
        owner,
        early_event_id(event.event_id, owner),
        "early_event",
        event.key.event_type,
        state=state,
        wakes=False,
    )
    body = Body(b'{"type":"early_event","event":', shown, b"}")
    return announcer.record(event.key, record, body, event.trace)
