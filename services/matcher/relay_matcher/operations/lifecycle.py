"""Lifecycle events of waitpoints, built from values; both sides announce by these."""

from collections.abc import Sequence
from datetime import datetime

import msgspec.structs
import orjson
from relay_common.errors import Json
from relay_common.ids import derive_id, encode_id
from relay_common.match_key import MatchKey
from relay_common.outbox import OutMessage

from relay_matcher.announcement import Announcer, Body, Record, Subject, early_event_id, stamp
from relay_matcher.domain.event import Event
from relay_matcher.domain.rendering import (
    data_member,
    event_head,
    reply_resolution,
    slim_part,
    slim_value,
    waitpoint_head,
)
from relay_matcher.domain.reply import Reply
from relay_matcher.domain.waitpoint import Active, Responder

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
    times = (stamp(at), None)
    return waitpoint_head(waitpoint.opened, waitpoint.kind, waitpoint.profile, state, counts, times)


def closed_head(waitpoint: Active, state: str, at: datetime) -> bytes:
    """Return a waitpoint closed at `at`, one revision on, up to and without its resolution."""
    counts = (waitpoint.revision + 1, waitpoint.activation)
    times = (stamp(at), stamp(at))
    return waitpoint_head(waitpoint.opened, waitpoint.kind, waitpoint.profile, state, counts, times)


def location_of(waitpoint: Active) -> str:
    """Return where a waitpoint is read."""
    return "/v1/waitpoints/" + encode_id("wp_", waitpoint.id.bytes)


def slim(waitpoint: Active) -> Active:
    """Return `waitpoint` as records carry it: its large members by reference."""
    opened = slim_part(waitpoint.opened, location_of(waitpoint))
    if opened is waitpoint.opened:
        return waitpoint
    return msgspec.structs.replace(waitpoint, opened=opened)


def created(announcer: Announcer, waitpoint: Active, at: datetime) -> list[OutMessage]:
    """Return `waitpoint.created` for a waitpoint at its first revision."""
    body = Body(open_head(slim(waitpoint), "open", at) + b"null}")
    return announcer.lifecycle(subject_of(waitpoint, "open", 1), "waitpoint.created", at, body)


def expired(announcer: Announcer, waitpoint: Active, at: datetime) -> list[OutMessage]:
    """Return `waitpoint.expired`; a default response stands beside the waitpoint (design D10)."""
    default = waitpoint.default_response
    tail = b"null}" + (b',"default_response":' + default if default is not None else b"")
    subject = subject_of(waitpoint, "expired", waitpoint.revision + 1)
    body = Body(closed_head(slim(waitpoint), "expired", at) + tail)
    return announcer.lifecycle(subject, "waitpoint.expired", at, body)


def cancelled(
    announcer: Announcer, waitpoint: Active, at: datetime, reason: bytes | None
) -> list[OutMessage]:
    """Return `waitpoint.cancelled`; `reason` is JSON text."""
    tail = b"null}" + (b',"reason":' + reason if reason is not None else b"")
    subject = subject_of(waitpoint, "cancelled", waitpoint.revision + 1)
    body = Body(closed_head(slim(waitpoint), "cancelled", at) + tail)
    return announcer.lifecycle(subject, "waitpoint.cancelled", at, body)


def resolution_tail(at: datetime) -> bytes:
    """Return what follows the event in a waitpoint resolved by an event at `at`."""
    return f',"responded_at":"{stamp(at)}"}}}}'.encode()


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
    head = event_head(event.external_id, attributes, stamp(received_at))
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


def resolved_by_reply(
    announcer: Announcer, waitpoint: Active, reply: Reply, at: datetime, held: bytes | None = None
) -> list[OutMessage]:
    """Return `waitpoint.resolved`; `held` is the record that showed an early reply."""
    head = closed_head(slim(waitpoint), "resolved", at)
    value = slim_value(orjson.dumps(reply.value))
    body = Body(head + resolution_of(waitpoint, reply, value, at) + b"}")
    subject = subject_of(waitpoint, "resolved", waitpoint.revision + 1)
    return announcer.lifecycle(subject, "waitpoint.resolved", at, body, supersedes=held)


def resolution_of(waitpoint: Active, reply: Reply, value: bytes, at: datetime) -> bytes:
    """Return the resolution that `reply` (its value as JSON) makes."""
    who = reply.identity
    identity = (who.responder, who.channel, who.evidence_level)
    return reply_resolution(waitpoint.kind, identity, value, stamp(at), reply.subject_digest)


def rejected(
    announcer: Announcer,
    waitpoint: Active,
    state: str,
    rejection: dict[str, Json],
    at: datetime,
    held: bytes | None = None,
) -> list[OutMessage]:
    """Return `waitpoint.response_rejected`: who and why, never the value."""
    head = open_head(
        msgspec.structs.replace(slim(waitpoint), revision=waitpoint.revision + 1), state, at
    )
    body = Body(head + b'null},"rejection":' + orjson.dumps(rejection))
    subject = subject_of(waitpoint, state, waitpoint.revision + 1)
    return announcer.lifecycle(subject, "waitpoint.response_rejected", at, body, supersedes=held)


def stalled(announcer: Announcer, waitpoint: Active, at: datetime) -> list[OutMessage]:
    """Return `waitpoint.stalled`: the waiter's heartbeat has stopped."""
    changed = msgspec.structs.replace(slim(waitpoint), revision=waitpoint.revision + 1)
    body = Body(open_head(changed, "stalled", at) + b"null}")
    subject = subject_of(waitpoint, "stalled", waitpoint.revision + 1)
    return announcer.lifecycle(subject, "waitpoint.stalled", at, body)


def reopened(announcer: Announcer, waitpoint: Active, at: datetime) -> list[OutMessage]:
    """Return the internal `waitpoint.reopened`; `waitpoint` is open again already (design D7)."""
    body = Body(open_head(slim(waitpoint), "open", at) + b"null}")
    subject = subject_of(waitpoint, "open", waitpoint.revision)
    return announcer.internal(subject, "waitpoint.reopened", at, body)


def invitations(
    announcer: Announcer, waitpoint: Active, responders: Sequence[Responder], at: datetime
) -> list[OutMessage]:
    """Return the message that asks each responder to reply (design D14)."""
    head = open_head(slim(waitpoint), "open", at) + b"null}"
    return [
        to_responder(announcer, waitpoint, responder, "waitpoint.invitation", head, at)
        for responder in responders
    ]


def no_reply_needed(
    announcer: Announcer, waitpoint: Active, responders: Sequence[Responder], at: datetime
) -> list[OutMessage]:
    """Return what turns each responder's copy to "no reply needed"."""
    shown = orjson.dumps({"id": encode_id("wp_", waitpoint.id.bytes), "kind": waitpoint.kind})
    return [
        to_responder(announcer, waitpoint, responder, "waitpoint.no_reply_needed", shown, at)
        for responder in responders
    ]


def to_responder(
    announcer: Announcer,
    waitpoint: Active,
    responder: Responder,
    name: str,
    shown: bytes,
    at: datetime,
) -> OutMessage:
    """Return one message to a responder about `waitpoint`, which `shown` renders.

    It says what its sender, the waiter, is to the responder: an unknown one asks in the request
    box (spec, First contact).
    """
    invited = name == "waitpoint.invitation"
    message_id = derive_id(name, waitpoint.id.bytes, responder.identity)
    invitation = derive_id("waitpoint.invitation", waitpoint.id.bytes, responder.identity)
    record = Record(
        responder.identity,
        message_id,
        "message",
        name,
        waitpoint_id=encode_id("wp_", waitpoint.id.bytes),
        supersedes=None if invited else invitation,
        wakes=invited,
        relationship=responder.relationship,
    )
    members: dict[str, Json] = {
        "type": name,
        "id": encode_id("ms_", message_id),
        "message_class": "action_required" if invited else "notice",
        "sender": waitpoint.waiter,
        "occurred_at": stamp(at),
    }
    head = orjson.dumps(members)[:-1] + b',"waitpoint":'
    return announcer.record(waitpoint.key, record, Body(head, shown, b"}"), ())


def held_reply_id(held: bytes) -> bytes:
    """Return the id of the record that shows a held reply, without its value (design D19)."""
    return derive_id("early-reply", held)


def held_reply(
    announcer: Announcer, waiter: str, key: MatchKey, held: bytes, shown: dict[str, Json]
) -> OutMessage:
    """Return the record that shows the waiter that a reply is held; `shown` has no value in it."""
    record = Record(
        waiter, held_reply_id(held), "early_event", "early_reply", state="held", wakes=False
    )
    return announcer.record(key, record, Body(orjson.dumps({"type": "early_reply", **shown})), ())
