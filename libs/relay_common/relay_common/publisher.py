"""The publisher: outbox rows to Kafka in id order, deleted after the acknowledgement (design §3.3).

One publisher a shard, by a session-level advisory lock. What happens to a message:
    acknowledged                    its row is deleted
    refused for good (too large)    tried once more alone, then moved to outbox_dead
    no topic, no right, no broker   its row stays for its topic, which rests, until it works; others
                                    go on, those of the same row too. A missing topic is a mistake
                                    to mend, no reason to lose messages
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from relay_common import failpoints, outbox, queries
from relay_common.db import UNAVAILABLE, Connection
from relay_common.pace import Pace
from relay_common.producer import Outcome, Outgoing, Producer
from relay_common.telemetry import counter, gauge, logger

ROWS = 32  # a shard and round: at most 32 MiB
SMALL_ROUND = 500  # messages
SHORTEST_WAIT_SECONDS = 0.005
LONGEST_WAIT_SECONDS = 0.25
LOCK_SECONDS = 1.0
TOPIC_REST_SECONDS = 5.0
REPORT_SECONDS = 5.0
UNANSWERED_SECONDS = 5.0
RESTS = Outcome("retry", "its topic rests")


SQL = queries.load("relay_common", "outbox")

log = logger(__name__)


@dataclass(slots=True)
class Sent:
    """One row under way: its messages and what became of each."""

    id: int
    shard: int
    topic: str
    messages: list[Outgoing]
    left: list[str] | None
    outcomes: list[Outcome]

    def waits_for(self) -> list[str]:
        """Return the topics it waits for as it stands, the one that may rest for it first."""
        return self.left or list(dict.fromkeys([self.topic, *(m.topic for m in self.messages)]))


class PublisherLoop:
    """Publishes one schema's outbox. wake(), age() and ready() are for any thread."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        producer: Producer,
        shards: int,
        expand: outbox.Expand = outbox.expand,
    ) -> None:
        """`expand` turns topic and payload of a row into its messages."""
        self.connect = connect
        self.producer = producer
        self.shards = shards
        self.expand = expand
        self.conn: Connection | None = None
        self.held: list[int] = []
        self.resting: dict[str, float] = {}
        self.woken = threading.Event()
        self.wait_seconds = SHORTEST_WAIT_SECONDS
        self.pace = Pace()
        self.problem: str | None = "not connected yet"
        self.waiting_since: float | None = None
        self.beat = self.locked_at = self.reported_at = time.monotonic()

    def wake(self) -> None:
        """Say that a transaction with outbox rows has committed. For any thread."""
        self.woken.set()

    def ready(self) -> str | None:
        """Return what is missing, None when rows flow (or would)."""
        since = self.waiting_since
        if since is not None and time.monotonic() - since > UNANSWERED_SECONDS:
            return "kafka: no acknowledgement"
        return self.problem

    def age(self) -> float:
        """Return the seconds since the loop last turned; to wait for Kafka is no fault of it."""
        return 0.0 if self.waiting_since is not None else time.monotonic() - self.beat

    def run(self, stop: threading.Event) -> None:
        """Publish until `stop` is set. A lost database or broker is waited out."""
        while not stop.is_set():
            self.beat = time.monotonic()
            try:
                self.pace.begin()
                messages = self.turn(stop)
                self.pace.end()
                if messages:
                    self.wait_seconds = SHORTEST_WAIT_SECONDS
                    if messages < SMALL_ROUND:
                        stop.wait(self.pace.wait_seconds())
                    continue
            except UNAVAILABLE as error:
                self.disconnect(type(error).__name__)
            self.woken.wait(self.wait_seconds)
            self.woken.clear()
            self.wait_seconds = min(LONGEST_WAIT_SECONDS, self.wait_seconds * 2)
        self.disconnect("stopped")

    def turn(self, stop: threading.Event) -> int:
        """Publish one round of rows; return how many messages they had."""
        conn = self.connection()
        now = time.monotonic()
        if len(self.held) < self.shards and now - self.locked_at > LOCK_SECONDS:
            self.lock_shards(conn)
        if now - self.reported_at > REPORT_SECONDS:
            self.report(conn)
        rows = self.next_rows(conn)
        if rows:
            self.waiting_since = time.monotonic()
            self.publish(rows, stop)
            self.waiting_since = None
            self.settle(conn, rows)
        return sum(len(row.messages) for row in rows)

    def connection(self) -> Connection:
        """Return the connection, made and its shards locked if there was none."""
        if self.conn is None:
            self.conn = self.connect()
            self.problem = None
            self.lock_shards(self.conn)
        return self.conn

    def disconnect(self, problem: str) -> None:
        """Close the connection, and with it give up the shards."""
        log.info("publisher_disconnected", problem=problem)
        self.problem = f"database: {problem}"
        self.held = []
        if self.conn is not None:
            self.conn.close()
        self.conn = None

    def lock_shards(self, conn: Connection) -> None:
        """Take the shards that nobody holds; another process may hold the rest."""
        self.locked_at = time.monotonic()
        for shard in range(self.shards):
            if shard not in self.held:
                row = conn.execute(SQL["lock_shard"], {"shard": shard}).fetchone()
                if row is not None and row[0]:
                    self.held.append(shard)

    def next_rows(self, conn: Connection) -> list[Sent]:
        """Return the oldest rows of the held shards, without the topics that rest."""
        now = time.monotonic()
        self.resting = {topic: until for topic, until in self.resting.items() if until > now}
        found = conn.execute(
            SQL["next_rows"], {"shards": self.held, "resting": list(self.resting), "rows": ROWS}
        ).fetchall()
        return [
            Sent(number, shard, topic, outgoing(self.expand(topic, payload), left), left, [])
            for number, shard, topic, payload, left in found
        ]

    def publish(self, rows: Sequence[Sent], stop: threading.Event) -> None:
        """Produce all messages of `rows` in order and note what became of each."""
        messages = [m for row in rows for m in row.messages if m.topic not in self.resting]
        outcomes = iter(self.producer.produce_all(messages, stop))
        for row in rows:
            row.outcomes = [
                RESTS if message.topic in self.resting else next(outcomes)
                for message in row.messages
            ]
            for place, outcome in enumerate(row.outcomes):
                if outcome.state == "refused":
                    # A batch is refused for one message: only alone it is its own fault.
                    row.outcomes[place] = self.producer.produce_all([row.messages[place]], stop)[0]

    def settle(self, conn: Connection, rows: Sequence[Sent]) -> None:
        """Delete what is acknowledged, bury what is refused, let the other topics rest."""
        failpoints.hit("publisher.after_ack_before_delete")
        if all(outcome.state == "delivered" for row in rows for outcome in row.outcomes):
            conn.execute(SQL["delete_rows"], {"ids": [row.id for row in rows]})
        else:
            self.settle_each(conn, rows)
        for row in rows:
            delivered = sum(o.state == "delivered" for o in row.outcomes)
            counter("relay_outbox_published_total").labels(row.topic).inc(delivered)

    def settle_each(self, conn: Connection, rows: Sequence[Sent]) -> None:
        """Settle rows of which not all is acknowledged."""
        settled: list[int] = []
        with conn.transaction():
            for row in rows:
                left = self.left_topics(row)
                self.bury(conn, row, left)
                if not left:
                    settled.append(row.id)
                elif left != row.waits_for():
                    conn.execute(SQL["leave_topics"], {"topics": left, "id": row.id})
            conn.execute(SQL["delete_rows"], {"ids": settled})

    def left_topics(self, row: Sent) -> list[str]:
        """Return the topics that have not acknowledged all of `row`; each of them rests."""
        left: list[str] = []
        for message, outcome in zip(row.messages, row.outcomes, strict=True):
            if outcome.state == "retry" and message.topic not in left:
                left.append(message.topic)
                if message.topic not in self.resting:
                    self.rest(message.topic, outcome.reason)
        return left

    def rest(self, topic: str, reason: str) -> None:
        """Leave the messages of `topic` for a while; the other topics of the shard go on."""
        self.resting[topic] = time.monotonic() + TOPIC_REST_SECONDS
        log.warning("topic_rests", topic=topic, reason=reason)

    def bury(self, conn: Connection, row: Sent, left: Sequence[str]) -> None:
        """Keep the refused messages of `row` in outbox_dead, in the layout of an outbox row.

        Those of topics that are `left` are tried again, and refused again.
        """
        refused = [
            place
            for place, outcome in enumerate(row.outcomes)
            if outcome.state == "refused" and row.messages[place].topic not in left
        ]
        for topic in sorted({row.messages[place].topic for place in refused}):
            places = [place for place in refused if row.messages[place].topic == topic]
            reason = row.outcomes[places[0]].reason
            messages = [row.messages[place] for place in places]
            payload = outbox.repack([(m.key, m.value, m.headers) for m in messages])
            parameters = {"id": row.id, "topic": topic, "payload": payload, "reason": reason}
            conn.execute(SQL["bury_refused"], parameters)
            counter("relay_outbox_dead_total").labels(topic).inc(len(places))
            log.error("messages_refused", topic=topic, reason=reason, messages=len(places))

    def report(self, conn: Connection) -> None:
        """Measure how old the oldest row of each held shard is."""
        self.reported_at = time.monotonic()
        for shard, age in conn.execute(SQL["ages"], {"shards": self.held}).fetchall():
            gauge("relay_outbox_age_seconds").labels(str(shard)).set(age)


def outgoing(messages: Sequence[outbox.Addressed], left: Sequence[str] | None) -> list[Outgoing]:
    """Return the messages of one row that go to the topics `left`, as the producer takes them."""
    wanted = messages if left is None else [one for one in messages if one[0] in left]
    return [Outgoing(topic, *message) for topic, message in wanted]
