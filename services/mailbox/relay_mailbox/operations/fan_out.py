"""Fan-out: one message of a topic becomes a record in every subscriber's mailbox.

The partition of the topic never waits for it: the consumer only keeps the message, and this goes
through the subscribers page by page, each page one transaction.
"""

from collections.abc import Sequence

import orjson
from relay_common.avro import Codec
from relay_common.db import Connection
from relay_common.match_key import owner_key
from relay_common.outbox import OutMessage

from relay_mailbox.store import appends, fan_out
from relay_mailbox.store.fan_out import FanningOut, TopicMessage

PAGE_SUBSCRIBERS = 1000
MAILBOX_SCHEMA = "relay.mailbox.v1"
MORE, SEVEN_BITS = 0x80, 0x7F


class FanOut:
    """Announces a record for each subscriber on `relay.mailbox`."""

    def __init__(self, codec: Codec, mailbox_topic: str, shards: int) -> None:
        """Announce on `mailbox_topic`, spread over `shards` outbox shards."""
        self.codec = codec
        self.mailbox_topic = mailbox_topic
        self.shards = shards

    def accept(self, conn: Connection, messages: Sequence[TopicMessage]) -> int:
        """Keep `messages` that have subscribers, inside the open transaction; return how many."""
        return fan_out.accept_messages(conn, messages) if messages else 0

    def run_page(self, conn: Connection) -> int | None:
        """Fan the next message out to one page of subscribers, in a transaction of its own.

        Messages take turns, so a topic with very many subscribers holds up no other. Returns how
        many got it, None when there is no message.
        """
        with conn.transaction():
            work = fan_out.next_message(conn)
            if work is None:
                return None
            owners = fan_out.next_subscribers(conn, work, PAGE_SUBSCRIBERS)
            appends.announce(conn, self.copies(work, owners), self.shards)
            if len(owners) < PAGE_SUBSCRIBERS:
                fan_out.finish(conn, work)
            else:
                fan_out.move_on(conn, work, owners[-1])
            return len(owners)

    def copies(self, work: FanningOut, owners: Sequence[str]) -> list[OutMessage]:
        """Return the record for each of `owners`; its body is shared, so it is stored once.

        All copies have the message's id: a reader who subscribes twice sees one message.
        """
        message = work.message
        body = length_prefixed(body_of(message))
        return [
            OutMessage(
                topic=self.mailbox_topic,
                key=owner_key(message.tenant, message.environment, owner),
                head=self.head(message, owner),
                shared=body,
            )
            for owner in owners
        ]

    def head(self, message: TopicMessage, owner: str) -> bytes:
        """Return the Avro bytes of the record up to its body, which is its last field."""
        whole = self.codec.encode(
            MAILBOX_SCHEMA,
            {
                "tenant": message.tenant,
                "environment": message.environment,
                "owner": owner,
                "message_id": message.message_id.bytes,
                "kind": "message",
                "type": message.type,
                "state": "available",
                "trust": None,
                "relationship": None,
                "waitpoint_id": None,
                "supersedes": None,
                "wakes": True,
                "body": b"",
            },
        )
        return whole[:-1]  # without the length of the empty body


def body_of(message: TopicMessage) -> bytes:
    """Return what a subscriber reads: the topic, its publisher as the sender, the content.

    The publisher is what its token said, so nobody can be made the sender by what a content claims,
    and a blocked publisher is a blocked sender (spec, First contact).
    """
    content = orjson.Fragment(message.body)
    return orjson.dumps({"topic": message.topic, "sender": message.publisher, "content": content})


def length_prefixed(body: bytes) -> bytes:
    """Return `body` as an Avro value of type bytes."""
    number = len(body) << 1
    prefix = bytearray()
    while number > SEVEN_BITS:
        prefix.append(number & SEVEN_BITS | MORE)
        number >>= 7
    prefix.append(number)
    return bytes(prefix) + body
