"""The only door to Kafka: the consumer loop and the client configuration (design §3.2, D12).

The loop's position is a row in Postgres, moved in the transaction of the batch. What Kafka knows
about offsets is a witness for lag tools, written afterwards; a refusal or loss changes nothing.
"""
# The client's stubs leave its configuration dictionary untyped.
# pyright: reportUnknownMemberType=false

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, cast

import psycopg
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from relay_common import failpoints, positions
from relay_common.db import UNAVAILABLE, Connection
from relay_common.errors import Busy, Poison
from relay_common.positions import LogView, Place, PositionFenced
from relay_common.records import BatchHandler, DeadLetter, Record, write_dead_letters
from relay_common.telemetry import counter, gauge, histogram, logger

POLL_SECONDS = 0.1
WITNESS_SECONDS = 1.0
INSPECT_SECONDS = 5.0
ANSWER_SECONDS = 3.0
LONGEST_REST_SECONDS = 1.0
FAILURES_ALONE = 3

log = logger(__name__)


@dataclass(frozen=True, slots=True)
class ConsumerSettings:
    """One loop: where, as which group, what, and how much at once."""

    bootstrap: str
    group: str
    topics: tuple[str, ...]
    max_records: int = 2000
    max_bytes: int = 8 << 20
    group_protocol: str = "classic"
    outbox_shards: int = 2
    session_timeout_ms: int = 10_000
    max_poll_interval_ms: int = 120_000
    queued_kbytes: int = 32_768

    def client(self) -> dict[str, str | int | float | bool]:
        """Return the client's configuration; the reasons are in reference measurements."""
        chosen: dict[str, str | int | float | bool] = {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "group.protocol": self.group_protocol,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "max.poll.interval.ms": self.max_poll_interval_ms,
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 20,
            "queued.min.messages": 100_000,
            "queued.max.messages.kbytes": self.queued_kbytes,
            "reconnect.backoff.max.ms": 1_000,
        }
        if self.group_protocol == "classic":
            # With the newer protocol both are the broker's to say.
            chosen["partition.assignment.strategy"] = "cooperative-sticky"
            chosen["session.timeout.ms"] = self.session_timeout_ms
        return chosen


class HasTopicId(Protocol):
    """What the admin client tells about a topic, as far as it is read here."""

    topic_id: object


def nothing() -> None:
    """Do nothing: nobody waits for the commits of this loop."""


class ConsumerLoop:
    """Reads topics in batches and gives each to one handler in one transaction.

    All methods but ready(), age() and the constructor belong to the thread that runs run().
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        connect: Callable[[], Connection],
        handle: BatchHandler,
        committed: Callable[[], None] = nothing,
    ) -> None:
        """`connect` may raise its own errors to refuse a database: they end the loop, except
        psycopg.OperationalError. `committed` is called after each commit (wakes the publisher)."""
        self.settings = settings
        self.connect = connect
        self.handle = handle
        self.committed = committed
        self.conn: Connection | None = None
        self.expected: dict[Place, int] = {}
        self.unplaced: set[Place] = set()
        self.stopped: dict[Place, str] = {}
        self.topic_ids: dict[str, str] = {}
        self.backlog: deque[Record] = deque()
        self.limit = settings.max_records
        self.failures = 0
        self.verdict: DeadLetter | None = None
        self.rests = 0
        self.unwitnessed: set[Place] = set()
        self.joined = False
        self.database_problem: str | None = "not connected yet"
        self.kafka_problem: str | None = None
        self.beat = self.witnessed_at = self.inspected_at = time.monotonic()

    def ready(self) -> str | None:
        """Return what is missing, None when records flow (or would)."""
        if self.database_problem is not None:
            return f"database: {self.database_problem}"
        if self.kafka_problem is not None:
            return f"kafka: {self.kafka_problem}"
        for (topic, partition), reason in list(self.stopped.items()):
            return f"partition {topic}/{partition} stopped: {reason}"
        return None if self.joined else "waiting for partitions"

    def age(self) -> float:
        """Return the seconds since the loop last turned: liveness."""
        return time.monotonic() - self.beat

    def run(self, stop: threading.Event) -> None:
        """Consume until `stop` is set; then leave the group from this thread and return.

        Raises KafkaException when the client is beyond repair; everything else is waited out.
        """
        settings = self.settings
        self.stop = stop
        self.consumer = Consumer(settings.client(), logger=logging.getLogger("relay.kafka"))
        self.admin = AdminClient({"bootstrap.servers": settings.bootstrap})
        self.consumer.subscribe(
            list(settings.topics), on_assign=self.assigned, on_revoke=self.gone, on_lost=self.gone
        )
        try:
            while not stop.is_set():
                self.beat = time.monotonic()
                self.turn()
        finally:
            self.witness()
            self.consumer.close()
            self.disconnect("stopped")

    def turn(self) -> None:
        """Do one round: connect, place, fetch, work, report."""
        try:
            if self.conn is None and not self.connected():
                self.rest()
                return
            if self.unplaced:
                self.place()
            self.fetch()
            if self.backlog:
                self.work()
            self.report()
        except UNAVAILABLE as error:
            self.database_failed(error)

    # ---- partitions -------------------------------------------------------------------------

    def assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Take over `partitions` at their stored positions.

        What cannot be placed now (no database, no answer, a stopped partition) is paused; its
        offset is then only a number that asks the broker nothing, and place() seeks later.
        """
        self.unplaced.update((p.topic, p.partition) for p in partitions)
        self.joined = True
        try:
            starts = self.look_up() if self.conn is not None else {}
        except UNAVAILABLE:
            starts = {}
        consumer.incremental_assign(
            [
                TopicPartition(p.topic, p.partition, starts.get((p.topic, p.partition), 0))
                for p in partitions
            ]
        )
        consumer.pause([p for p in partitions if (p.topic, p.partition) not in starts])
        for place in {(p.topic, p.partition) for p in partitions} & set(starts):
            self.started(place, starts[place])
        log.info("partitions_assigned", partitions=[f"{p.topic}/{p.partition}" for p in partitions])

    def gone(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Forget `partitions`, revoked or lost: what is not committed belongs to the next owner."""
        places = {(p.topic, p.partition) for p in partitions}
        self.forget(places)
        self.unplaced -= places
        for place in places:
            self.stopped.pop(place, None)
        consumer.incremental_unassign(partitions)
        log.info("partitions_gone", partitions=[f"{p.topic}/{p.partition}" for p in partitions])

    def forget(self, places: Iterable[Place]) -> None:
        """Drop the positions of `places` and the records of theirs that wait."""
        dropped = set(places)
        for place in dropped:
            self.expected.pop(place, None)
        self.unwitnessed -= dropped
        self.backlog = deque(r for r in self.backlog if (r.topic, r.partition) not in dropped)

    def displace(self, places: Iterable[Place]) -> None:
        """Pause `places` until their positions are read again."""
        moved = [place for place in places if place in self.expected]
        self.consumer.pause([TopicPartition(*place) for place in moved])
        self.forget(moved)
        self.unplaced.update(moved)

    def place(self) -> None:
        """Seek every unplaced partition to its stored position and resume it.

        A client not ready for that yet is asked again next turn.
        """
        for place, next_offset in self.look_up().items():
            where = TopicPartition(*place, next_offset)
            try:
                self.consumer.seek(where)
                self.consumer.resume([where])
            except KafkaException:
                continue
            self.started(place, next_offset)

    def started(self, place: Place, next_offset: int) -> None:
        """Note that records of `place` flow from `next_offset` on."""
        self.unplaced.discard(place)
        self.stopped.pop(place, None)
        self.expected[place] = next_offset

    def look_up(self) -> dict[Place, int]:
        """Return the next offset of each unplaced partition that may go on; stop the others.

        Empty while Kafka does not answer.
        """
        conn = self.live()
        try:
            self.topic_ids = self.read_topic_ids()
            logs = {place: self.view(place) for place in sorted(self.unplaced)}
        except KafkaException as error:
            self.kafka_problem = describe(error)
            return {}
        self.kafka_problem = None
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
        return starts

    def stop_partition(self, place: Place, reason: str) -> None:
        """Leave one partition paused and say so; it is looked at again, never reset."""
        if self.stopped.get(place) != reason:
            log.error("partition_stopped", topic=place[0], partition=place[1], reason=reason)
        self.unplaced.discard(place)
        self.stopped[place] = reason

    def read_topic_ids(self) -> dict[str, str]:
        """Return topic → id as the broker has them. Raises KafkaException."""
        futures = cast(
            dict[str, Future[HasTopicId]],
            self.admin.describe_topics(
                TopicCollection(list(self.settings.topics)), request_timeout=ANSWER_SECONDS
            ),
        )
        return {topic: str(future.result().topic_id) for topic, future in futures.items()}

    def view(self, place: Place) -> LogView:
        """Return one partition as the broker shows it. Raises KafkaException."""
        low, high = self.consumer.get_watermark_offsets(TopicPartition(*place), ANSWER_SECONDS)
        return LogView(self.topic_ids[place[0]], low, high)

    # ---- records ----------------------------------------------------------------------------

    def fetch(self) -> None:
        """Take whatever is there; wait only when there is nothing at all to do."""
        first = self.consumer.poll(0 if self.backlog else POLL_SECONDS)
        if first is None:
            return
        self.receive(first)
        if len(self.backlog) < self.settings.max_records:
            for message in self.consumer.consume(self.settings.max_records, 0):
                self.receive(message)

    def receive(self, message: Message) -> None:
        """Put one message behind the others, unless it is older than the position or an error."""
        error = message.error()
        if error is not None:
            self.client_failed(error, message)
            return
        record = record_of(message)
        expected = self.expected.get((record.topic, record.partition))
        if expected is not None and record.offset >= expected:
            self.backlog.append(record)

    def client_failed(self, error: KafkaError, message: Message) -> None:
        """React to an error the client reports instead of a record. Raises when it is fatal."""
        if error.fatal():
            raise KafkaException(error)
        code = error.code()
        if code == KafkaError._MAX_POLL_EXCEEDED:
            # The lost callback does not always come: forget everything here as well.
            self.displace(list(self.expected))
        elif code == KafkaError._AUTO_OFFSET_RESET:
            self.displace([(message.topic() or "", message.partition() or 0)])
        self.kafka_problem = error.name()
        self.inspected_at = 0.0
        log.warning("kafka_error", error=error.name())

    def take(self) -> list[Record]:
        """Return the next batch: as many as the limit and max_bytes allow, at least one."""
        batch: list[Record] = []
        size = 0
        for record in islice(self.backlog, self.limit):
            size += record.size()
            if batch and size > self.settings.max_bytes:
                break
            batch.append(record)
        return batch

    def work(self) -> None:
        """Process one batch; whatever goes wrong is rolled back and decided here."""
        batch = self.take()
        try:
            self.process(batch)
        except Busy:
            self.rest()
        except PositionFenced:
            self.failed_by("fenced", batch)
            self.displace({(r.topic, r.partition) for r in batch})
        except UNAVAILABLE as error:
            self.failed_by("database", batch)
            self.database_failed(error)
        except Exception as error:
            self.failed_by("handler", batch)
            self.judge(batch, error)
        else:
            self.done(batch)

    def process(self, batch: Sequence[Record]) -> None:
        """Hand `batch` over and store its positions, in one transaction."""
        conn = self.live()
        moves = {(r.topic, r.partition): r.offset + 1 for r in batch}
        with histogram("relay_consumer_batch_seconds").time(), conn.transaction():
            letters = [self.verdict] if self.verdict else self.handle(conn, batch)
            if letters:
                write_dead_letters(conn, letters, self.settings.outbox_shards)
            positions.advance(
                conn, [(p, self.expected[p], following) for p, following in moves.items()]
            )
        failpoints.hit("consumer.after_commit_before_kafka")
        self.expected.update(moves)
        self.unwitnessed.update(moves)

    def done(self, batch: Sequence[Record]) -> None:
        """Forget what is committed and dare a larger batch again."""
        for record in batch:
            counter("relay_consumer_records_total").labels(record.topic).inc()
            self.backlog.popleft()
        self.limit = min(self.settings.max_records, self.limit * 2)
        self.failures = self.rests = 0
        self.verdict = None
        self.committed()

    def judge(self, batch: Sequence[Record], error: Exception) -> None:
        """Try a smaller batch after an error of the handler; a lone record has three tries."""
        log.exception("batch_failed", records=len(batch), error=type(error).__name__)
        if len(batch) > 1:
            self.limit = len(batch) // 2
            return
        self.failures += 1
        if isinstance(error, Poison):
            self.verdict = DeadLetter(batch[0], error.reason, error.detail)
        elif self.failures >= FAILURES_ALONE:
            self.verdict = DeadLetter(batch[0], "handler_failed", type(error).__name__)
        else:
            self.rest()

    # ---- trouble and reports ----------------------------------------------------------------

    def connected(self) -> bool:
        """Connect to Postgres; a commit under way when the last connection broke is read anew."""
        try:
            self.conn = self.connect()
        except psycopg.OperationalError as error:
            self.database_problem = type(error).__name__
            return False
        self.database_problem = None
        self.displace(list(self.expected))
        return True

    def database_failed(self, error: Exception) -> None:
        """Drop a broken connection, or rest and try less after a refusal that may pass."""
        log.warning("database_failed", error=type(error).__name__)
        if self.conn is None or self.conn.closed:
            self.disconnect(type(error).__name__)
            return
        self.limit = max(1, self.limit // 2)
        self.rest()

    def live(self) -> Connection:
        """Return the connection. Raises psycopg.InterfaceError when there is none."""
        if self.conn is None:
            raise psycopg.InterfaceError("not connected")
        return self.conn

    def disconnect(self, problem: str) -> None:
        """Close the connection, if there is one."""
        self.database_problem = problem
        if self.conn is not None:
            self.conn.close()
        self.conn = None

    def failed_by(self, cause: str, batch: Sequence[Record]) -> None:
        """Count one batch rolled back."""
        counter("relay_consumer_failures_total").labels(cause).inc()
        log.warning("batch_rolled_back", cause=cause, records=len(batch))

    def rest(self) -> None:
        """Wait a growing while, still a living member of the group.

        Short rests keep the prefetched records; only long ones pause, because a resumed partition
        takes the client up to a second to fetch again.
        """
        seconds = min(LONGEST_REST_SECONDS, 0.02 * 2**self.rests)
        self.rests += 1
        long = seconds == LONGEST_REST_SECONDS
        if long:
            self.consumer.pause([TopicPartition(*place) for place in self.expected])
        else:
            self.stop.wait(seconds)
        message = self.consumer.poll(seconds if long else 0)
        if message is not None:
            self.receive(message)
        if long:
            self.consumer.resume([TopicPartition(*place) for place in self.expected])

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
        offsets = [TopicPartition(*p, self.expected[p]) for p in self.unwitnessed]
        self.unwitnessed.clear()
        try:
            if offsets:
                self.consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            log.info("witness_refused", error=describe(error))

    def inspect(self) -> None:
        """See whether the broker answers, topics are still the same ones, and measure the lag."""
        try:
            found = self.read_topic_ids()
        except KafkaException as error:
            self.kafka_problem = describe(error)
            return
        self.kafka_problem = None
        changed = {t for t, topic_id in found.items() if self.topic_ids.get(t) != topic_id}
        self.displace([place for place in self.expected if place[0] in changed])
        self.unplaced.update(self.stopped)
        for place, expected in self.expected.items():
            _, high = self.consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            lag = gauge("relay_consumer_lag_records").labels(place[0], str(place[1]))
            lag.set(max(0, high - expected))


def record_of(message: Message) -> Record:
    """Return one fetched message as a Record. A header without value becomes an empty one."""
    headers = cast(Sequence[tuple[str, bytes | None]], message.headers() or ())
    return Record(
        cast(str, message.topic()),
        cast(int, message.partition()),
        cast(int, message.offset()),
        message.timestamp()[1],
        message.key(),
        message.value(),
        tuple((name, value or b"") for name, value in headers),
    )


def describe(error: KafkaException) -> str:
    """Return the name of the Kafka error inside `error`."""
    cause = error.args[0] if error.args else None
    return cause.name() if isinstance(cause, KafkaError) else type(error).__name__
