"""`relay.events` → waitpoints: records in, one transaction a batch (design §3)."""

from collections.abc import Sequence

import msgspec
from relay_common import failpoints
from relay_common.avro import Codec
from relay_common.db import Connection
from relay_common.errors import Poison
from relay_common.records import DeadLetter, Record
from relay_common.telemetry import carried_trace, counter

from relay_matcher.announcement import Announcer
from relay_matcher.domain.event import Event, Origin, read_event
from relay_matcher.operations import matching
from relay_matcher.store.matching import BatchContext, TakenBefore, batch_context

SCHEMA = "relay.events.v1"


class Ahead(msgspec.Struct, frozen=True, gc=False):
    """An event that was read before its batch, and by what context."""

    context: BatchContext
    event: Event


class EventConsumer:
    """The handler of `relay.events`; headers and record key are never read for matching (D21)."""

    def __init__(self, codec: Codec, seed: int, announcer: Announcer, shards: int) -> None:
        """`seed` is the installation's, `shards` the number of outbox shards."""
        self.codec = codec
        self.seed = seed
        self.announcer = announcer
        self.shards = shards
        self.framing = codec.prefix(SCHEMA)
        self.context = BatchContext({}, {})
        self.look_first = False

    def __call__(self, conn: Connection, records: Sequence[Record], /) -> Sequence[DeadLetter]:
        """Match and record the batch inside the loop's transaction; return what is poison."""
        self.learn(batch_context(conn))
        letters: list[DeadLetter] = []
        events: list[Event] = []
        for record in records:
            try:
                events.append(self.event_of(record))
            except Poison as poison:
                letters.append(DeadLetter(record, poison.reason, poison.detail))
        if events:
            count(self.match(conn, events))
        failpoints.hit("matcher.before_commit")
        return letters

    def match(self, conn: Connection, events: Sequence[Event]) -> matching.Matched:
        """Match `events`. Raises TakenBefore: the next try looks who took what before."""
        look_first, self.look_first = self.look_first, False
        try:
            return matching.match_events(
                conn, events, self.announcer, self.shards, look_first=look_first
            )
        except TakenBefore:
            self.look_first = True
            raise

    def learn(self, context: BatchContext) -> None:
        """Go by `context` from now on; what was read by another one is read again."""
        if context != self.context:
            self.context = context

    def read_ahead(self, record: Record) -> None:
        """Read `record` before its batch. Raises Poison."""
        record.ahead = Ahead(self.context, self.read(record))

    def event_of(self, record: Record) -> Event:
        """Return the event of `record`, read now unless it was read ahead. Raises Poison."""
        ahead = record.ahead
        if isinstance(ahead, Ahead) and ahead.context is self.context:
            return ahead.event
        return self.read(record)

    def read(self, record: Record) -> Event:
        """Return the event of `record`. Raises Poison."""
        context = self.context
        value, offset = self.body(record)
        topic_id = context.topic_ids.get(record.topic, record.topic)
        trace = carried_trace(record.headers) if record.headers else ()
        origin = Origin(topic_id, record.partition, record.offset, trace)
        event = read_event(value, offset, self.seed, origin)
        if event.direct and context.sources:
            check_source(event, context)
        return event

    def body(self, record: Record) -> tuple[bytes, int]:
        """Return the value in the layout of SCHEMA and where its body begins."""
        if record.value is not None and record.value.startswith(self.framing):
            return record.value, len(self.framing)
        writer, offset = self.codec.locate(record.value)
        if writer.schema is self.codec.known[SCHEMA].parsed and record.value is not None:
            return record.value, offset
        name, fields = self.codec.decode(record.value)
        if not name.startswith("relay.events.v"):
            raise Poison("unknown_schema", "another record than an event")
        value = self.codec.encode(SCHEMA, fields)
        return value, self.codec.split(value)[1]


def count(found: matching.Matched) -> None:
    """Add one batch to the metrics."""
    for rule, events in found.rules.items():
        counter("relay_matcher_events_total").labels(rule.name).inc(events)
    counter("relay_waitpoints_total").labels("waitpoint.resolved").inc(found.resolved)
    counter("relay_waitpoints_total").labels("waitpoint.expired").inc(found.expired)


def check_source(event: Event, context: BatchContext) -> None:
    """Raise Poison when the tenant does not accept this source from the topic (design D21)."""
    accepted = context.sources.get((event.key.tenant, event.key.environment))
    if accepted is not None and not (event.source or "").startswith(accepted):
        raise Poison("source_not_allowed")
