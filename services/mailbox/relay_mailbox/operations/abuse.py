"""Abuse reports: a recipient says that a message is abuse."""

from dataclasses import dataclass

import orjson
from relay_common import outbox
from relay_common.avro import Codec
from relay_common.combiner import Answer
from relay_common.db import AsyncConnection
from relay_common.errors import NotFound, RelayError
from relay_common.idempotency import Call
from relay_common.ids import derive_id, encode_id
from relay_common.match_key import prefixed
from relay_common.outbox import OutMessage
from relay_common.wire import rfc3339

from relay_mailbox.operations.rendering import rendered
from relay_mailbox.store import contacts
from relay_mailbox.store.contacts import AbuseReport
from relay_mailbox.store.mailboxes import Mailbox, Tenancy

ABUSE_REPORTED = "mailbox.abuse_reported"


@dataclass(frozen=True, slots=True)
class AbuseGiven:
    """The message that is abuse, and why."""

    owner: str
    seq: int
    reason: str | None


class AbuseDesk:
    """Keeps reports and announces each once on the topic `mailbox.abuse_reported`."""

    def __init__(self, codec: Codec, topics_topic: str, shards: int) -> None:
        """Announce on `topics_topic`, spread over `shards` outbox shards."""
        self.codec = codec
        self.topics_topic = topics_topic
        self.shards = shards

    async def report(
        self, conn: AsyncConnection, box: Mailbox, call: Call[AbuseGiven]
    ) -> Answer | RelayError:
        """Keep a report on a message of the owner; the same again changes nothing.

        The announcement names record and sender, never the content; the sender is not told.
        """
        within, given = Tenancy.of(call.caller), call.given
        found = await contacts.report_abuse(conn, within, box.id, given.seq, given.reason)
        if found is None:
            return NotFound("There is no message with this seq in the mailbox.")
        if found.fresh:
            message = self.announcement(within, box.owner, found)
            await conn.execute(outbox.INSERT, outbox.pack([message], self.shards))
        view = {"seq": found.seq, "reported_at": rfc3339(found.reported_at)}
        return rendered(201 if found.fresh else 200, view)

    def announcement(self, within: Tenancy, owner: str, found: AbuseReport) -> OutMessage:
        """Return the event of the catalog on the tenant's topic of the same name."""
        record_id = encode_id("ms_", found.message_id.bytes)
        body = {
            "type": ABUSE_REPORTED,
            "owner": owner,
            "seq": found.seq,
            "record": record_id,
            "sender": found.sender,
            "occurred_at": rfc3339(found.reported_at),
        }
        value = self.codec.encode(
            "relay.topics.v1",
            {
                "tenant": within.tenant,
                "environment": within.environment,
                "topic": ABUSE_REPORTED,
                "publisher": "relay",
                "type": ABUSE_REPORTED,
                "message_id": derive_id("abuse-report", within.tenant, owner, record_id),
                "occurred_at": found.reported_at,
                "body": orjson.dumps(body),
            },
        )
        key = prefixed(within.tenant, within.environment, ABUSE_REPORTED)
        return OutMessage(self.topics_topic, key, value)
