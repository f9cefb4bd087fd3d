"""Appending: records, and the hints that wake their owners with the same commit."""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from relay_common.avro import Codec
from relay_common.db import Connection
from relay_common.match_key import owner_key
from relay_common.outbox import OutMessage
from relay_common.positions import Place
from relay_common.telemetry import counter

from relay_mailbox.domain.record import NewRecord, Owner
from relay_mailbox.store import appends
from relay_mailbox.store.appends import Appended

HINT_SCHEMA = "relay.hints.v1"


class Appending:
    """Appends records and announces hints: topic, schema and shards are the installation's."""

    def __init__(self, codec: Codec, hints_topic: str, shards: int) -> None:
        """Announce hints on `hints_topic`, spread over `shards` outbox shards."""
        self.codec = codec
        self.hints_topic = hints_topic
        self.shards = shards

    def append(self, conn: Connection, records: Sequence[NewRecord]) -> list[Appended]:
        """Append `records` inside the open transaction; return the fresh ones.

        Their hints() have to be announced with the same commit.
        """
        if not records:
            return []
        fresh = appends.append_records(conn, records)
        for kind, records_of_kind in Counter(one.record.kind for one in fresh).items():
            counter("relay_mailbox_records_total").labels(kind).inc(records_of_kind)
        return fresh

    def hints(self, fresh: Sequence[Appended]) -> list[OutMessage]:
        """Return the hint for each owner who has to be woken for `fresh` records of his.

        It is one whatever their number, and at most one a second: others are held back for
        `announce_due` (ADR 14). It carries neither content nor sender (spec, Wake-up hints).
        """
        woken = {one.mailbox_id: one for one in fresh if one.hinted}
        return [self.hint(one.record.to, one.appended_at) for one in woken.values()]

    def announce_due(self, conn: Connection, wanted: int) -> int:
        """Announce up to `wanted` hints that were held back and are due, in a transaction of its
        own; return how many."""
        with conn.transaction():
            due = appends.due_hints(conn, wanted)
            hints = [self.hint(owner, at) for owner, at in due]
            appends.announce(conn, hints, self.shards)
        return len(hints)

    def hint(self, owner: Owner, occurred_at: datetime) -> OutMessage:
        """Return the hint that something waits for `owner` since `occurred_at`."""
        value = self.codec.encode(
            HINT_SCHEMA,
            {
                "tenant": owner.tenant,
                "environment": owner.environment,
                "owner": owner.owner,
                "occurred_at": occurred_at,
            },
        )
        key = owner_key(owner.tenant, owner.environment, owner.owner)
        return OutMessage(self.hints_topic, key, value)


def went_back(conn: Connection, behind: Mapping[Place, int]) -> None:
    """Start a new epoch inside the open transaction: Postgres has forgotten what Kafka was told
    was committed, so a copy of its disk was restored (design D12). Once for each such find.
    """
    if appends.note_witness(conn, behind):
        appends.raise_incarnation(conn, "topic_witness")
