"""Messages of topics on their way to the subscribers (stream side)."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from relay_common import queries
from relay_common.db import Connection

SQL = queries.load("relay_mailbox", "subscription")


@dataclass(frozen=True, slots=True)
class TopicMessage:
    """A message published to a Relay topic; `body` is JSON."""

    tenant: str
    environment: str
    topic: str
    message_id: uuid.UUID
    publisher: str
    type: str
    body: bytes


@dataclass(frozen=True, slots=True)
class FanningOut:
    """A message and how far its fan-out is: owners up to `after_owner` have their copy."""

    id: int
    message: TopicMessage
    after_owner: str


def accept_messages(conn: Connection, messages: Sequence[TopicMessage]) -> int:
    """Keep `messages` that have subscribers; return how many were kept."""
    given = {
        "tenants": [m.tenant for m in messages],
        "environments": [m.environment for m in messages],
        "topics": [m.topic for m in messages],
        "message_ids": [m.message_id for m in messages],
        "publishers": [m.publisher for m in messages],
        "types": [m.type for m in messages],
        "bodies": [m.body for m in messages],
    }
    return conn.execute(SQL["accept_messages"], given, binary=True).rowcount


def next_message(conn: Connection) -> FanningOut | None:
    """Return the message whose turn it is and that nobody fans out now, held to the end of the
    transaction."""
    row = conn.execute(SQL["next_message"]).fetchone()
    return None if row is None else FanningOut(row[0], TopicMessage(*row[1:8]), row[8])


def next_subscribers(conn: Connection, work: FanningOut, limit: int) -> list[str]:
    """Return up to `limit` subscribers who have no copy of `work` yet."""
    given = {
        "tenant": work.message.tenant,
        "environment": work.message.environment,
        "topic": work.message.topic,
        "after_owner": work.after_owner,
        "limit": limit,
    }
    return [row[0] for row in conn.execute(SQL["next_subscribers"], given)]


def move_on(conn: Connection, work: FanningOut, after_owner: str) -> None:
    """Remember that everybody up to `after_owner` has a copy; other messages have their turn."""
    conn.execute(SQL["move_on"], {"id": work.id, "after_owner": after_owner})


def finish(conn: Connection, work: FanningOut) -> None:
    """Forget a message that everybody has."""
    conn.execute(SQL["finish"], {"id": work.id})
