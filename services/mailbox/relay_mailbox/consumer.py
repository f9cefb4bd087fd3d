"""The topics the mailbox reads: decoded batch → operation. Plain loops, one connection."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from relay_common.avro import Codec
from relay_common.db import Connection
from relay_common.errors import Poison
from relay_common.failpoints import hit
from relay_common.records import DeadLetter, Leaving, Record
from relay_common.telemetry import histogram

from relay_mailbox.domain import packed
from relay_mailbox.domain.record import NewRecord, Owner, check_json, checked_name, sender_of
from relay_mailbox.operations.append import Appending
from relay_mailbox.operations.fan_out import FanOut
from relay_mailbox.store.fan_out import TopicMessage

Fields = Mapping[str, Any]


class MailboxConsumer:
    """Appends what `relay.mailbox` carries, and keeps what `relay.topics` carries to fan it out."""

    def __init__(self, codec: Codec, appending: Appending, fan_out: FanOut) -> None:
        """Read with `codec`, append with `appending`, fan out with `fan_out`."""
        self.codec = codec
        self.appending = appending
        self.fan_out = fan_out
        self.framing = codec.prefix(packed.SCHEMA)

    def __call__(self, conn: Connection, records: Sequence[Record]) -> Sequence[Leaving]:
        """Take a batch inside the loop's transaction; return the hints, and what is poison."""
        fresh: list[NewRecord] = []
        published: list[TopicMessage] = []
        dead: list[DeadLetter] = []
        for record in records:
            try:
                found = record.ahead or self.read(record.value)
            except Poison as poison:
                dead.append(DeadLetter(record, poison.reason, poison.detail))
            else:
                if isinstance(found, NewRecord):
                    fresh.append(found)
                elif isinstance(found, TopicMessage):
                    published.append(found)
        self.fan_out.accept(conn, published)
        appended = self.appending.append(conn, fresh)
        if appended:
            lag = appended[-1].appended_at.timestamp() - records[0].timestamp_ms / 1000
            histogram("relay_mailbox_append_lag_seconds").observe(max(0.0, lag))
        hit("mailbox.before_commit")
        return [*dead, *self.appending.hints(appended)]

    def read_ahead(self, record: Record) -> None:
        """Read `record` before its batch. Raises Poison."""
        record.ahead = self.read(record.value)

    def read(self, value: bytes | None) -> NewRecord | TopicMessage:
        """Return what is in `value`. Raises Poison when it is neither."""
        if value is not None and value.startswith(self.framing):
            return packed.read_record(value, len(self.framing))
        schema, fields = self.codec.decode(value)
        match schema:
            case packed.SCHEMA:
                return new_record(fields)
            case "relay.topics.v1":
                return topic_message(fields)
            case _:
                raise Poison("unexpected_schema", f"found {schema}")


def topic_message(fields: Fields) -> TopicMessage:
    """Return the message that the Avro `fields` say. Raises Poison when its body is no JSON."""
    check_json(fields["body"])
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
        message_id=fields["message_id"],
        kind=kind,
        type=name(fields, "type"),
        state=fields["state"],
        body=body,
        wakes=fields["wakes"],
        trust=optional(fields, "trust"),
        relationship=optional(fields, "relationship"),
        sender=sender_of(kind, body),
        waitpoint_id=optional(fields, "waitpoint_id"),
        supersedes=fields.get("supersedes"),
    )


def name(fields: Fields, field: str) -> str:
    """Return a text field that is a name. Raises Poison for one out of bounds."""
    return checked_name(fields[field])


def optional(fields: Fields, field: str) -> str | None:
    """Return a text field that may be null. Raises Poison like `name`."""
    return None if fields.get(field) is None else name(fields, field)
