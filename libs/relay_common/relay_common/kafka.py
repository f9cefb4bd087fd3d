"""The only door to Kafka: the consumer loop and the client configuration (design §3.2, D12).

The loop's position is a row in Postgres, moved in the transaction of the batch. What Kafka knows
about offsets is a witness for lag tools, written afterwards; a refusal or loss changes nothing.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import cast

import psycopg
from confluent_kafka import Message

from relay_common import failpoints, positions
from relay_common.assignment import Assignment, WentBack
from relay_common.db import UNAVAILABLE
from relay_common.errors import Busy, Poison
from relay_common.overlap import OverlappingConnection
from relay_common.pace import Pace
from relay_common.positions import Place, PositionFenced
from relay_common.records import BatchHandler, DeadLetter, Record, write_leaving
from relay_common.telemetry import counter, histogram, logger

POLL_SECONDS = 0.1
CHECK_SECONDS = 2.0
LONGEST_REST_SECONDS = 1.0
FAILURES_ALONE = 3
READ_AHEAD = 16  # records between two looks at the connection
TOPIC = attrgetter("topic")

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


def nothing() -> None:
    """Do nothing: nobody waits for the commits of this loop."""


class ConsumerLoop:
    """Reads topics in batches and gives each to one handler in one transaction.

    All methods but ready(), age() and the constructor belong to the thread that runs run().
    """

    def __init__(
        self,
        settings: ConsumerSettings,
        connect: Callable[[], OverlappingConnection],
        handle: BatchHandler,
        committed: Callable[[], None] = nothing,
        went_back: WentBack | None = None,
        read_ahead: Callable[[Record], None] | None = None,
    ) -> None:
        """`connect` may refuse a database with an error of its own, which ends the loop;
        psycopg.OperationalError is waited out. `committed` is called after each commit,
        `went_back` when Postgres is behind what it once acknowledged (design D12). `read_ahead`
        may prepare a record while the database works on those before it."""
        self.settings = settings
        self.connect = connect
        self.handle = handle
        self.committed = committed
        self.conn: OverlappingConnection | None = None
        self.partitions = Assignment(
            settings.client(), settings.topics, self.live, self.drop, went_back
        )
        self.stop = threading.Event()
        self.fetched: deque[Message] = deque()
        self.backlog: deque[Record] = deque()  # comes before what is fetched
        self.read_ahead = read_ahead
        self.pace = Pace()
        self.limit = settings.max_records
        self.failures = self.rests = 0
        self.verdict: DeadLetter | None = None
        self.database_problem: str | None = "not connected yet"
        self.beat = self.checked_at = time.monotonic()

    def ready(self) -> str | None:
        """Return what is missing, None when records flow (or would)."""
        if self.database_problem is not None:
            return f"database: {self.database_problem}"
        return self.partitions.ready()

    def age(self) -> float:
        """Return the seconds since the loop last turned: liveness."""
        return time.monotonic() - self.beat

    def run(self, stop: threading.Event) -> None:
        """Consume until `stop` is set; then leave the group from this thread and return.

        Raises KafkaException when the client is beyond repair; everything else is waited out.
        """
        self.stop = stop
        self.partitions.join()
        try:
            while not stop.is_set():
                self.beat = time.monotonic()
                self.turn()
        finally:
            self.partitions.leave()
            self.disconnect("stopped")

    def turn(self) -> None:
        """Do one round: connect, place, fetch, work, report."""
        try:
            if self.conn is None and not self.connected():
                self.rest()
                return
            self.partitions.place()
            self.fetch()
            if self.waiting():
                self.gather()
                self.work()
            elif time.monotonic() - self.checked_at > CHECK_SECONDS:
                self.check()
            self.partitions.report()
        except UNAVAILABLE as error:
            self.database_failed(error)

    def check(self) -> None:
        """Ask the database for a sign of life while there is nothing to do."""
        self.checked_at = time.monotonic()
        self.live().execute("select 1")
        self.database_problem = None

    def drop(self, places: Set[Place]) -> None:
        """Drop waiting records of partitions that are gone or have to be read anew."""
        self.fetched = deque(m for m in self.fetched if (m.topic(), m.partition()) not in places)
        self.backlog = deque(r for r in self.backlog if (r.topic, r.partition) not in places)
        self.failures = 0
        self.verdict = None

    def waiting(self) -> int:
        """Return how many records are there to be processed, at most."""
        return len(self.backlog) + len(self.fetched)

    def fetch(self) -> None:
        """Take whatever is there; wait only when there is nothing at all to do."""
        first = self.partitions.poll(0 if self.waiting() else POLL_SECONDS)
        if first is None:
            return
        self.receive(first)
        wanted = 2 * self.settings.max_records - self.waiting()
        if wanted > 0:
            for message in self.partitions.take(wanted):
                self.receive(message)

    def gather(self) -> None:
        """Let a small batch grow for as long as the pace asks."""
        seconds = self.pace.wait_seconds()
        if seconds and self.waiting() < self.limit:
            self.stop.wait(seconds)
            self.fetch()

    def prepare(self) -> bool:
        """Read a few records ahead; say whether there were any."""
        some = min(len(self.fetched), READ_AHEAD)
        for _ in range(some):
            if self.unpack() and self.read_ahead is not None:
                with suppress(Exception):  # it is met again, and told, in its batch
                    self.read_ahead(self.backlog[-1])
        return some > 0

    def receive(self, message: Message) -> None:
        """Put one message behind the others, or see to the error that it is."""
        error = message.error()
        if error is None:
            self.fetched.append(message)
        else:
            self.partitions.failed(error, message)

    def unpack(self) -> bool:
        """Make a record of the first message fetched, unless it is older than the position."""
        record = record_of(self.fetched.popleft())
        expected = self.partitions.expected.get((record.topic, record.partition))
        if expected is None or record.offset < expected:
            return False
        self.backlog.append(record)
        return True

    def take(self) -> list[Record]:
        """Return the next batch: as many as the limit and max_bytes allow, at least one, unless
        all that was fetched is older than the positions."""
        while self.fetched and len(self.backlog) < self.limit:
            self.unpack()
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
        if not batch:
            return
        self.pace.begin()
        try:
            self.process(batch)
        except Busy:
            self.rest()
        except PositionFenced:
            self.failed_by("fenced", batch)
            self.partitions.displace({(r.topic, r.partition) for r in batch})
        except UNAVAILABLE as error:
            self.failed_by("database", batch)
            self.database_failed(error)
        except Exception as error:
            self.failed_by("handler", batch)
            self.judge(batch, error)
        else:
            self.done(batch)
        self.pace.end(len(batch))

    def process(self, batch: Sequence[Record]) -> None:
        """Hand `batch` over and store its positions, in one transaction."""
        conn = self.live()
        self.partitions.fetched()
        moves = {(r.topic, r.partition): r.offset + 1 for r in batch}
        with histogram("relay_consumer_batch_seconds").time(), conn.begun():
            leaving = self.judged(batch) or self.handle(conn, batch)
            with positions.fence(), conn.committed():
                if leaving:
                    write_leaving(conn, leaving, self.settings.outbox_shards)
                self.partitions.advance(conn, moves)
        failpoints.hit("consumer.after_commit_before_kafka")
        self.partitions.moved(moves)

    def judged(self, batch: Sequence[Record]) -> list[DeadLetter]:
        """Return the verdict on the only record of `batch`, if there is one."""
        if self.verdict is None or len(batch) > 1 or self.verdict.record is not batch[0]:
            return []
        return [self.verdict]

    def done(self, batch: Sequence[Record]) -> None:
        """Forget what is committed and dare a larger batch again."""
        for topic, records in Counter(map(TOPIC, batch)).items():
            counter("relay_consumer_records_total").labels(topic).inc(records)
        for _ in batch:
            self.backlog.popleft()
        self.database_problem = None
        self.limit = min(self.settings.max_records, self.limit * 2)
        self.failures = self.rests = 0
        self.verdict = None
        self.committed()

    def judge(self, batch: Sequence[Record], error: Exception) -> None:
        """Try a smaller batch after an error of the handler; a lone record has three tries."""
        self.limit = max(1, len(batch) // 2)
        if len(batch) > 1:
            return
        log.exception("record_failed", partition=batch[0].partition, offset=batch[0].offset)
        self.failures += 1
        if isinstance(error, Poison):
            self.verdict = DeadLetter(batch[0], error.reason, error.detail)
        elif self.failures >= FAILURES_ALONE:
            self.verdict = DeadLetter(batch[0], "handler_failed", type(error).__name__)
        else:
            self.rest()

    def connected(self) -> bool:
        """Connect to Postgres. The last connection may have broken within a commit: compare."""
        try:
            self.conn = self.connect()
        except psycopg.OperationalError as error:
            self.database_problem = type(error).__name__
            return False
        self.database_problem = None
        self.conn.meanwhile = self.prepare
        self.partitions.compare()
        return True

    def database_failed(self, error: Exception) -> None:
        """Drop a broken connection, or rest and try less after a refusal that may pass."""
        log.warning("database_failed", error=type(error).__name__)
        if self.conn is None or self.conn.closed:
            self.disconnect(type(error).__name__)
            return
        self.database_problem = type(error).__name__
        self.limit = max(1, self.limit // 2)
        self.rest()

    def live(self) -> OverlappingConnection:
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
        if seconds < LONGEST_REST_SECONDS:
            self.stop.wait(seconds)
            message = self.partitions.poll(0)
        else:
            message = self.partitions.poll_paused(seconds)
        if message is not None:
            self.receive(message)


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
