"""The topics the mailbox reads: decoded batch → operation. Plain loops, one connection."""

import uuid
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from relay_common.avro import Codec
from relay_common.db import Connection
from relay_common.errors import Poison
from relay_common.failpoints import hit
from relay_common.records import DeadLetter, Record

from relay_mailbox.domain.record import NewRecord, Owner, RecordKind
from relay_mailbox.operations.append import Appending
from relay_mailbox.operations.fan_out import FanOut
from relay_mailbox.store.fan_out import TopicMessage


class Sender(msgspec.Struct):
    """What a mailbox has to know of a message's content: who sent it."""

    sender: str | None = None


Fields = Mapping[str, Any]
JSON = msgspec.json.Decoder()
SENDER = msgspec.json.Decoder(Sender)


class MailboxConsumer:
    """Appends what `relay.mailbox` carries, and keeps what `relay.topics` carries to fan it out."""

    def __init__(self, codec: Codec, appending: Appending, fan_out: FanOut) -> None:
        """Read with `codec`, append with `appending`, fan out with `fan_out`."""
        self.codec = codec
        self.appending = appending
        self.fan_out = fan_out

    def __call__(self, conn: Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        """Take a batch inside the loop's transaction; return what can never be taken."""
        fresh: list[NewRecord] = []
        published: list[TopicMessage] = []
        dead: list[DeadLetter] = []
        for record in records:
            try:
                found = self.read(record.value)
            except Poison as poison:
                dead.append(DeadLetter(record, poison.reason, poison.detail))
            else:
                if isinstance(found, NewRecord):
                    fresh.append(found)
                else:
                    published.append(found)
        self.fan_out.accept(conn, published)
        self.appending.append(conn, fresh)
        hit("mailbox.before_commit")
        return dead

    def read(self, value: bytes | None) -> NewRecord | TopicMessage:
        """Return what is in `value`. Raises Poison when it is neither."""
        schema, fields = self.codec.decode(value)
        match schema:
            case "relay.mailbox.v1":
                return new_record(fields)
            case "relay.topics.v1":
                return topic_message(fields)
            case _:
                raise Poison("unexpected_schema", f"found {schema}")


def topic_message(fields: Fields) -> TopicMessage:
    """Return the message that the Avro `fields` say. Raises Poison when its body is no JSON."""
    sender_of("message", fields["body"])
    return TopicMessage(
        tenant=name(fields, "tenant"),
        environment=name(fields, "environment"),
        topic=name(fields, "topic"),
        message_id=uuid.UUID(bytes=fields["message_id"]),
        publisher=name(fields, "publisher"),
        type=name(fields, "type"),
        body=fields["body"],
    )


def new_record(fields: Fields) -> NewRecord:
    """Return the record that the Avro `fields` say. Raises Poison when its body is no JSON."""
    kind, body = fields["kind"], fields["body"]
    return NewRecord(
        to=Owner(name(fields, "tenant"), name(fields, "environment"), name(fields, "owner")),
        message_id=uuid.UUID(bytes=fields["message_id"]),
        kind=kind,
        type=name(fields, "type"),
        state=fields["state"],
        body=body,
        wakes=fields["wakes"],
        trust=optional(fields, "trust"),
        relationship=optional(fields, "relationship"),
        sender=sender_of(kind, body),
        waitpoint_id=optional(fields, "waitpoint_id"),
        supersedes=superseded(fields),
    )


def sender_of(kind: RecordKind, body: bytes) -> str | None:
    """Return who sent a message; other kinds have no sender.

    Raises Poison for broken JSON, also where the sender's decoder would skip it: readers get the
    body as it is.
    """
    try:
        JSON.decode(body)
        sender = SENDER.decode(body).sender if kind == "message" else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Poison("invalid_body", str(error)) from error
    if sender is not None and not fits(sender):
        raise Poison("invalid_body", "expected a sender of 1 to 512 bytes without NUL")
    return sender


def name(fields: Fields, field: str) -> str:
    """Return a text field of 1 to 512 bytes. Raises Poison for another length, or a NUL."""
    value = fields[field]
    if not fits(value):
        raise Poison("invalid_field", f"expected 1 to 512 bytes without NUL in {field}")
    return value


@lru_cache(maxsize=10_000)
def fits(value: str) -> bool:
    """Return whether a text is a name. Cached: a batch has the same few thousands of times."""
    return 1 <= len(value.encode()) <= 512 and "\x00" not in value


def optional(fields: Fields, field: str) -> str | None:
    """Return a text field that may be null. Raises Poison like `name`."""
    return None if fields.get(field) is None else name(fields, field)


def superseded(fields: Fields) -> uuid.UUID | None:
    """Return the held record that this one acknowledges."""
    raw = fields.get("supersedes")
    return None if raw is None else uuid.UUID(bytes=raw)
