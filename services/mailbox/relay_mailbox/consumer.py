"""The topics the mailbox reads: decoded batch → operation. Plain loops, one connection."""

import uuid
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec
from relay_common.avro import Codec
from relay_common.db import Connection
from relay_common.errors import Poison
from relay_common.failpoints import hit
from relay_common.records import DeadLetter, Record

from relay_mailbox.domain.record import AppendedState, NewRecord, Owner, RecordKind
from relay_mailbox.operations.append import Appending
from relay_mailbox.operations.fan_out import FanOut
from relay_mailbox.store.fan_out import TopicMessage


class Sender(msgspec.Struct):
    """What a mailbox has to know of a message's content: who sent it."""

    sender: str | None = None


SENDER = msgspec.json.Decoder(Sender)
JSON = msgspec.json.Decoder()


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


def topic_message(fields: Mapping[str, object]) -> TopicMessage:
    """Return the message that the Avro `fields` say. Raises Poison when its body is no JSON."""
    body = cast(bytes, fields["body"])
    sender_of("message", body)
    return TopicMessage(
        tenant=name(fields, "tenant"),
        environment=name(fields, "environment"),
        topic=name(fields, "topic"),
        message_id=uuid.UUID(bytes=cast(bytes, fields["message_id"])),
        publisher=name(fields, "publisher"),
        type=name(fields, "type"),
        body=body,
    )


def new_record(fields: Mapping[str, object]) -> NewRecord:
    """Return the record that the Avro `fields` say. Raises Poison when its body is no JSON."""
    body = cast(bytes, fields["body"])
    kind = cast(RecordKind, fields["kind"])
    return NewRecord(
        to=Owner(
            tenant=name(fields, "tenant"),
            environment=name(fields, "environment"),
            owner=name(fields, "owner"),
        ),
        message_id=uuid.UUID(bytes=cast(bytes, fields["message_id"])),
        kind=kind,
        type=name(fields, "type"),
        state=cast(AppendedState, fields["state"]),
        body=body,
        wakes=cast(bool, fields["wakes"]),
        trust=optional(fields, "trust"),
        relationship=optional(fields, "relationship"),
        sender=sender_of(kind, body),
        waitpoint_id=optional(fields, "waitpoint_id"),
        supersedes=superseded(fields),
    )


def sender_of(kind: RecordKind, body: bytes) -> str | None:
    """Return who sent a message; other kinds have no sender. Raises Poison for broken JSON."""
    try:
        if kind == "message":
            return SENDER.decode(body).sender
        JSON.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Poison("invalid_body", str(error)) from error
    return None


def name(fields: Mapping[str, object], field: str) -> str:
    """Return a text field of 1 to 512 bytes. Raises Poison for another length, or a NUL."""
    value = cast(str, fields[field])
    if not 1 <= len(value.encode()) <= 512 or "\x00" in value:
        raise Poison("invalid_field", f"expected 1 to 512 bytes without NUL in {field}")
    return value


def optional(fields: Mapping[str, object], field: str) -> str | None:
    """Return a text field that may be null. Raises Poison like `name`."""
    return None if fields.get(field) is None else name(fields, field)


def superseded(fields: Mapping[str, object]) -> uuid.UUID | None:
    """Return the held record that this one acknowledges."""
    raw = cast(bytes | None, fields.get("supersedes"))
    return None if raw is None else uuid.UUID(bytes=raw)
