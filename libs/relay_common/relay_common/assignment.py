"""The partitions a consumer has: placed at the position in Postgres, or stopped (design D12)."""
# The client's stubs leave its configuration dictionary untyped.
# pyright: reportUnknownMemberType=false

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol, cast

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from relay_common import positions
from relay_common.db import UNAVAILABLE, Connection
from relay_common.positions import LogView, Place, PositionFenced
from relay_common.telemetry import gauge, logger

WITNESS_SECONDS = 1.0
INSPECT_SECONDS = 5.0
ANSWER_SECONDS = 3.0
ASK_SECONDS = 0.25
SPARE_SECONDS = 12.0  # longer than a broker that does not answer stays unnoticed

log = logger(__name__)


# Gets the partitions whose stored position is behind the offset once committed to Kafka, and that
# offset; called in a transaction, before the first record of them is handed over.
WentBack = Callable[[Connection, Mapping[Place, int]], None]


class HasTopicId(Protocol):
    """What the admin client tells about a topic, as far as it is read here."""

    topic_id: object


class Assignment:
    """One client in its group and the partitions it was given. All but ready(): one thread only.

    A partition is placed (`expected` holds its next offset), unplaced (paused until its position
    is read) or stopped (paused, with a reason, looked at again every few seconds).
    """

    def __init__(
        self,
        client: Mapping[str, str | int | float | bool],
        topics: Sequence[str],
        connection: Callable[[], Connection],
        dropped: Callable[[Set[Place]], None],
        went_back: WentBack | None = None,
    ) -> None:
        """`connection` raises psycopg.InterfaceError while there is none; `dropped` hears which
        partitions' records are void, `went_back` where Postgres is behind its own witness."""
        self.client = dict(client)
        self.topics = list(topics)
        self.connection = connection
        self.dropped = dropped
        self.went_back = went_back
        self.expected: dict[Place, int] = {}
        self.unplaced: set[Place] = set()
        self.stopped: dict[Place, str] = {}
        self.topic_ids: dict[str, str] = {}
        self.unwitnessed: set[Place] = set()
        self.joined = False
        self.begun = time.monotonic()
        self.problem: str | None = None
        self.asked: dict[str, Future[HasTopicId]] = {}
        self.witnessed_at = self.inspected_at = self.asked_at = time.monotonic()

    def ready(self) -> str | None:
        """Return what is missing on Kafka's side, None when records flow (or would)."""
        if self.problem is not None:
            return f"kafka: {self.problem}"
        for (topic, partition), reason in list(self.stopped.items()):
            return f"partition {topic}/{partition} stopped: {reason}"
        # With more members than partitions, the newer protocol tells a spare one nothing.
        spare = time.monotonic() - self.begun > SPARE_SECONDS
        return None if self.joined or spare else "waiting for partitions"

    def join(self) -> None:
        """Make the client and join the group."""
        self.begun = time.monotonic()
        self.consumer = Consumer(self.client, logger=logging.getLogger("relay.kafka"))
        self.admin = AdminClient({"bootstrap.servers": self.client["bootstrap.servers"]})
        self.consumer.subscribe(
            self.topics, on_assign=self.assigned, on_revoke=self.gone, on_lost=self.gone
        )

    def leave(self) -> None:
        """Leave the group and close the client, from the thread that polls."""
        self.witness()
        self.consumer.close()

    def poll(self, seconds: float) -> Message | None:
        """Return one message or error, waiting up to `seconds`. Rebalances happen in here."""
        return self.consumer.poll(seconds)

    def poll_paused(self, seconds: float) -> Message | None:
        """Wait `seconds` as a living member of the group, with all partitions paused.

        The prefetched records go; a resumed partition needs up to a second to flow again.
        """
        self.consumer.pause([TopicPartition(*place) for place in self.expected])
        message = self.consumer.poll(seconds)
        self.consumer.resume([TopicPartition(*place) for place in self.expected])
        return message

    def take(self, most: int) -> list[Message]:
        """Return up to `most` messages that are there already."""
        return self.consumer.consume(most, 0)

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Take over `partitions` at their stored positions.

        What cannot be placed now (no database, no answer, a stopped partition) is paused; its
        offset is then only a number that asks the broker nothing, and place() seeks later.
        """
        places = [(p.topic, p.partition) for p in partitions]
        self.unplaced.update(places)
        self.joined = True
        starts: dict[Place, int] = {}
        with suppress(*UNAVAILABLE):
            starts = self.look_up()
        consumer.incremental_assign([TopicPartition(*p, starts.get(p, 0)) for p in places])
        consumer.pause([TopicPartition(*p) for p in places if p not in starts])
        # The client remembers a pause even of a partition that was lost in between.
        consumer.resume([TopicPartition(*p) for p in places if p in starts])
        for place in starts.keys() & set(places):
            self.started(place, starts[place])
        log.info("partitions_assigned", partitions=named(places))

    def gone(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget `partitions`, revoked or lost: what is not committed belongs to the next owner."""
        places = {(p.topic, p.partition) for p in partitions}
        self.forget(places)
        self.unplaced -= places
        for place in places:
            self.stopped.pop(place, None)
            with suppress(KeyError):
                gauge("relay_consumer_lag_records").remove(place[0], str(place[1]))
        consumer.incremental_unassign(partitions)
        log.info("partitions_gone", partitions=named(places))

    def forget(self, places: Set[Place]) -> None:
        """Drop the positions of `places` and the records of theirs that wait."""
        for place in places:
            self.expected.pop(place, None)
        self.unwitnessed -= places
        self.dropped(places)

    def displace(self, places: Set[Place]) -> None:
        """Pause those of `places` that are placed until their positions are read again."""
        moved = places & self.expected.keys()
        self.consumer.pause([TopicPartition(*place) for place in moved])
        self.forget(moved)
        self.unplaced.update(moved)

    def compare(self) -> None:
        """Displace the partitions whose stored position is not the one held here."""
        stored = positions.read(self.connection(), list(self.expected))
        held = {p: (self.topic_ids[p[0]], offset) for p, offset in self.expected.items()}
        self.displace({place for place in held if stored.get(place) != held[place]})

    def place(self) -> None:
        """Seek every unplaced partition to its stored position and resume it, or stop it.

        A client not ready for a seek yet is asked again next turn.
        """
        starts = self.look_up() if self.unplaced else {}
        for place, next_offset in starts.items():
            where = TopicPartition(*place, next_offset)
            with suppress(KafkaException):
                self.consumer.seek(where)
                self.consumer.resume([where])
                self.started(place, next_offset)

    def started(self, place: Place, next_offset: int) -> None:
        """Note that records of `place` flow from `next_offset` on."""
        self.unplaced.discard(place)
        self.stopped.pop(place, None)
        self.expected[place] = next_offset

    def look_up(self) -> dict[Place, int]:
        """Return the next offset of each unplaced partition that may go on; stop the others.

        Those of which Kafka says nothing now stay unplaced. Raises psycopg errors.
        """
        logs = self.view()
        conn = self.connection()
        with conn.transaction():
            stored = positions.read_or_create(conn, logs)
        starts: dict[Place, int] = {}
        for place, (topic_id, next_offset) in stored.items():
            reason = logs[place].refuses(topic_id, next_offset)
            if reason is None:
                starts[place] = next_offset
            else:
                self.stop_partition(place, reason)
        gauge("relay_consumer_stopped_partitions").set(len(self.stopped))
        return starts if self.went_back is None else self.witnessed(conn, starts, self.went_back)

    def witnessed(
        self, conn: Connection, starts: dict[Place, int], went_back: WentBack
    ) -> dict[Place, int]:
        """Compare `starts` with what Kafka was told was committed before any record flows.

        Only Postgres going back in time leaves a position behind that (design D12). Without an
        answer of the broker nothing starts.
        """
        try:
            asked = [TopicPartition(*place) for place in starts]
            told = self.consumer.committed(asked, ANSWER_SECONDS) if asked else []
        except KafkaException as error:
            self.problem = name_of(error)
            return {}
        committed = {(p.topic, p.partition): p.offset for p in told}
        behind = {p: at for p, at in committed.items() if at > starts[p]}
        if behind:
            log.error("database_went_back", partitions=named(behind))
            with conn.transaction():
                went_back(conn, behind)
        return starts

    def view(self) -> dict[Place, LogView]:
        """Return the unplaced partitions as the broker shows them, those it does show."""
        found: dict[Place, LogView] = {}
        known = self.ids_now()
        self.topic_ids.update(known)
        try:
            for place in sorted(place for place in self.unplaced if place[0] in known):
                ends = self.consumer.get_watermark_offsets(TopicPartition(*place), ANSWER_SECONDS)
                found[place] = LogView(known[place[0]], *ends)
        except KafkaException as error:
            self.problem = name_of(error)
        return found

    def stop_partition(self, place: Place, reason: str) -> None:
        """Leave one partition paused and say so; it is looked at again, never reset."""
        if self.stopped.get(place) != reason:
            log.error("partition_stopped", partition=named([place]), reason=reason)
        self.unplaced.discard(place)
        self.stopped[place] = reason

    def ids_now(self) -> dict[str, str]:
        """Return topic → id of the topics the broker knows now, waiting for its answer."""
        self.ask()
        return self.answer()

    def ask(self) -> None:
        """Ask the broker for the topics' ids, without waiting."""
        self.asked_at = time.monotonic()
        self.asked = cast(
            dict[str, Future[HasTopicId]],
            self.admin.describe_topics(
                TopicCollection(self.topics), request_timeout=ANSWER_SECONDS
            ),
        )

    def answer(self) -> dict[str, str]:
        """Return topic → id of the topics the broker knows; note whether it answered at all."""
        found: dict[str, str] = {}
        self.problem = None
        for topic, future in self.asked.items():
            try:
                found[topic] = str(future.result().topic_id)
            except KafkaException as error:
                self.problem = f"{topic}: {name_of(error)}"
        self.asked = {}
        return found

    def fetched(self) -> None:
        """Ask again whose records these are: a topic may have been made anew since the last time.

        The answer comes while the batch is processed and is read before its position is stored.
        """
        if time.monotonic() - self.asked_at > ASK_SECONDS:
            self.ask()

    def advance(self, conn: Connection, moves: Mapping[Place, int]) -> None:
        """Store the new positions in the caller's transaction.

        Raises PositionFenced when somebody else has moved them, or the log is another one.
        """
        known = self.answer() if self.asked else {}
        if any(self.topic_ids.get(topic, now) != now for topic, now in known.items()):
            raise PositionFenced("the topic was made anew")
        positions.advance(conn, [(p, self.expected[p], offset) for p, offset in moves.items()])

    def moved(self, moves: Mapping[Place, int]) -> None:
        """Note positions that are committed."""
        self.expected.update(moves)
        self.unwitnessed.update(moves)

    def failed(self, error: KafkaError, message: Message) -> None:
        """React to an error the client reports instead of a record. Raises when it is fatal."""
        if error.fatal():
            raise KafkaException(error)
        code = error.code()
        if code == KafkaError._MAX_POLL_EXCEEDED:
            # The lost callback does not always come: forget everything here as well.
            self.displace(set(self.expected))
        elif code == KafkaError._AUTO_OFFSET_RESET:
            self.displace({(message.topic() or "", message.partition() or 0)})
        self.problem = error.name()
        self.inspected_at = 0.0
        log.warning("kafka_error", error=error.name())

    def report(self) -> None:
        """Tell Kafka how far we are and look at the topics again, both now and then."""
        now = time.monotonic()
        if self.unwitnessed and now - self.witnessed_at > WITNESS_SECONDS:
            self.witnessed_at = now
            self.witness()
        if now - self.inspected_at > INSPECT_SECONDS:
            self.inspected_at = now
            self.inspect()

    def witness(self) -> None:
        """Commit the positions to Kafka, for lag tools only; a refusal changes nothing."""
        offsets = [TopicPartition(*place, self.expected[place]) for place in self.unwitnessed]
        self.unwitnessed.clear()
        try:
            if offsets:
                self.consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            log.info("witness_refused", error=name_of(error))

    def inspect(self) -> None:
        """See whether the broker answers, topics are still the same ones, and measure the lag."""
        known = self.ids_now()
        changed = {topic for topic in known if known[topic] != self.topic_ids.get(topic)}
        self.displace({place for place in self.expected if place[0] in changed})
        self.unplaced.update(self.stopped)
        for place, expected in self.expected.items():
            _, high = self.consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            lag = gauge("relay_consumer_lag_records").labels(place[0], str(place[1]))
            lag.set(max(0, high - expected))


def named(places: Collection[Place]) -> list[str]:
    """Return `places` for a log line."""
    return [f"{topic}/{partition}" for topic, partition in sorted(places)]


def name_of(error: KafkaException) -> str:
    """Return the name of the Kafka error inside `error`."""
    cause = error.args[0] if error.args else None
    return cause.name() if isinstance(cause, KafkaError) else type(error).__name__
