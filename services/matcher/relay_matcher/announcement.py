"""What the matcher announces, packed by hand: Avro bytes around JSON that exists already.

A lifecycle event goes to `relay.waitpoints`, into the waiter's mailbox, and on the topic that the
waitpoint names; all three carry the same message id, derived from waitpoint and revision.
"""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import msgspec
from relay_common.events import INTERNAL
from relay_common.ids import derive_id, encode_id
from relay_common.match_key import MatchKey, owner_key, prefixed
from relay_common.outbox import OutMessage, Twin
from relay_common.wire import rfc3339

from relay_matcher.domain.rendering import lifecycle_head

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
KINDS = {"message": b"\0", "waitpoint_event": b"\2", "early_event": b"\4"}
STATES = {"available": b"\0", "held": b"\2", "acked": b"\4"}
NULL = b"\0"
Headers = tuple[tuple[str, bytes], ...]


class Subject(msgspec.Struct, frozen=True, gc=False):
    """The waitpoint that a lifecycle event is about, as it is after the change."""

    id: uuid.UUID
    key: MatchKey
    waiter: str
    kind: str
    state: str
    revision: int
    activation: int
    expires_at: datetime
    deliver_topic: str | None


class Told(msgspec.Struct, frozen=True, gc=False):
    """What a lifecycle event says of itself: the same on every topic, made once."""

    name: str
    message_id: bytes
    external_id: str
    waitpoint_id: str
    occurred_at: str
    micros: int


class Body(msgspec.Struct, frozen=True, gc=False):
    """JSON in up to three parts; `shared` is stored once per outbox row for all its messages."""

    head: bytes
    shared: bytes | None = None
    tail: bytes = b""

    def size(self) -> int:
        """Return the bytes of the whole."""
        return len(self.head) + len(self.shared or b"") + len(self.tail)


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record for a mailbox: `supersedes` is acknowledged in the same step."""

    owner: str
    message_id: bytes
    kind: str
    type: str
    state: str = "available"
    waitpoint_id: str | None = None
    supersedes: bytes | None = None
    wakes: bool = True
    relationship: str | None = None


class Announcer:
    """Packs announcements for the topics of this installation."""

    def __init__(self, prefix: Callable[[str], bytes], topic: Callable[[str], str]) -> None:
        """`prefix` gives the framing of a schema, `topic` the name of a topic here."""
        self.waitpoints = topic("relay.waitpoints")
        self.mailbox = topic("relay.mailbox")
        self.topics = topic("relay.topics")
        self.waitpoints_prefix = prefix("relay.waitpoints.v1")
        self.mailbox_prefix = prefix("relay.mailbox.v1")
        self.topics_prefix = prefix("relay.topics.v1")

    def lifecycle(
        self,
        subject: Subject,
        name: str,
        at: datetime,
        waitpoint: Body,
        *,
        supersedes: bytes | None = None,
        trace: Headers = (),
    ) -> list[OutMessage]:
        """Return the messages of the lifecycle event `name` (`waitpoint.resolved`, …).

        `waitpoint` is the rendered waitpoint; its tail may carry members that follow it.
        """
        told = told_of(subject, name, at)
        body = Body(
            lifecycle_head(name, told.external_id, subject.revision, told.occurred_at)
            + waitpoint.head,
            waitpoint.shared,
            waitpoint.tail + b"}",
        )
        headers = cloud_event(subject, told) + trace
        record = Record(
            subject.waiter,
            told.message_id,
            "waitpoint_event",
            name,
            waitpoint_id=told.waitpoint_id,
            supersedes=supersedes,
        )
        size = body.size()
        owner = self.owner(subject.key, record)
        twins = [Twin(self.mailbox, owner, self.record_head(subject.key, record, size))]
        if subject.deliver_topic is not None:
            twins.append(self.topic_twin(subject, told, size))
        message = OutMessage(
            self.waitpoints,
            subject.key.encoded(),
            self.waitpoint_head(subject, told, size),
            headers,
            body.shared,
            body.tail,
            own=body.head,
            twins=tuple(twins),
        )
        return [message]

    def internal(
        self, subject: Subject, name: str, at: datetime, waitpoint: Body
    ) -> list[OutMessage]:
        """Return the message of an event for Relay's own services only."""
        told = told_of(subject, name, at)
        head = lifecycle_head(name, told.external_id, subject.revision, told.occurred_at)
        own = head + waitpoint.head + b"}"
        return [
            OutMessage(
                self.waitpoints,
                subject.key.encoded(),
                self.waitpoint_head(subject, told, len(own)) + own,
                cloud_event(subject, told),
            )
        ]

    def waitpoint_head(self, subject: Subject, told: Told, size: int) -> bytes:
        """Return what stands before a body of `size` bytes on `relay.waitpoints`."""
        key = subject.key
        return b"".join(
            (
                self.waitpoints_prefix,
                again(key.tenant),
                again(key.environment),
                told.message_id,
                again(told.name),
                text(told.waitpoint_id),
                long(subject.revision),
                long(subject.activation),
                again(subject.waiter),
                again(subject.kind),
                again(subject.state),
                again(key.event_type),
                text(key.correlation_key),
                long(told.micros),
                long(micros(subject.expires_at)),
                b"\1" if told.name in INTERNAL else b"\0",
                long(size),
            )
        )

    def record(self, key: MatchKey, record: Record, body: Body, headers: Headers) -> OutMessage:
        """Return the message that appends `record` to its owner's mailbox.

        It keeps its place among the lifecycle events of the match key, whose twins go there too.
        """
        return OutMessage(
            self.mailbox,
            self.owner(key, record),
            self.record_head(key, record, body.size()),
            headers,
            body.shared,
            body.tail,
            own=body.head,
            beside=(self.waitpoints, key.encoded()),
        )

    def owner(self, key: MatchKey, record: Record) -> bytes:
        """Return the key of a mailbox on its topic."""
        return mailbox_key(key.tenant, key.environment, record.owner)

    def record_head(self, key: MatchKey, record: Record, size: int) -> bytes:
        """Return what stands before a body of `size` bytes on `relay.mailbox`."""
        return b"".join(
            (
                self.mailbox_prefix,
                again(key.tenant),
                again(key.environment),
                again(record.owner),
                record.message_id,
                KINDS[record.kind],
                again(record.type),
                STATES[record.state],
                NULL,
                optional(record.relationship),
                optional(record.waitpoint_id),
                NULL if record.supersedes is None else b"\2" + record.supersedes,
                b"\1" if record.wakes else b"\0",
                long(size),
            )
        )

    def topic_twin(self, subject: Subject, told: Told, size: int) -> Twin:
        """Return the twin for the Relay topic that the waitpoint delivers to."""
        key = subject.key
        topic = subject.deliver_topic or ""
        head = b"".join(
            (
                self.topics_prefix,
                again(key.tenant),
                again(key.environment),
                again(topic),
                again(subject.waiter),
                again(told.name),
                told.message_id,
                long(told.micros),
                long(size),
            )
        )
        return Twin(self.topics, prefixed(key.tenant, key.environment, topic), head)


def message_id_of(waitpoint: uuid.UUID, revision: int) -> bytes:
    """Return the id of a lifecycle event, the same wherever it is delivered."""
    return derive_id("waitpoint-event", waitpoint.bytes, str(revision))


def early_event_id(event_id: bytes, owner: str) -> bytes:
    """Return the id of the record that shows an early event to `owner`."""
    return derive_id("early-event", event_id, owner)


def told_of(subject: Subject, name: str, at: datetime) -> Told:
    """Return what the event `name` at `at` says of itself everywhere."""
    message_id = message_id_of(subject.id, subject.revision)
    return Told(
        name,
        message_id,
        encode_id("ms_", message_id),
        encode_id("wp_", subject.id.bytes),
        stamp(at),
        micros(at),
    )


def cloud_event(subject: Subject, told: Told) -> Headers:
    """Return the CloudEvents attributes of a lifecycle event as Kafka headers."""
    key = subject.key
    return (
        ("ce_specversion", b"1.0"),
        ("ce_id", told.external_id.encode()),
        ("ce_source", f"/tenants/{key.tenant}/environments/{key.environment}".encode()),
        ("ce_type", told.name.encode()),
        ("ce_subject", told.waitpoint_id.encode()),
        ("ce_time", told.occurred_at.encode()),
    )


@lru_cache(maxsize=16)
def stamp(at: datetime) -> str:
    """Return `at` as RFC 3339; what happens in one transaction happens at one time."""
    return rfc3339(at)


def micros(at: datetime) -> int:
    """Return `at` in microseconds since 1970."""
    return (at - EPOCH) // MICROSECOND


@lru_cache(maxsize=4096)
def long(number: int) -> bytes:
    """Return `number` as Avro writes it: zigzag, seven bits a byte."""
    rest = number << 1 if number >= 0 else ~(number << 1)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def text(value: str) -> bytes:
    """Return an Avro string."""
    raw = value.encode()
    return long(len(raw)) + raw


# For what many messages say alike.
again = lru_cache(maxsize=4096)(text)
mailbox_key = lru_cache(maxsize=4096)(owner_key)


def optional(value: str | None) -> bytes:
    """Return an Avro string or null, null being the first branch."""
    return NULL if value is None else b"\2" + text(value)
