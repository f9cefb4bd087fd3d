"""A topic, a group and the loops of a test, on a service's schema with a table of effects."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import LiteralString

from psycopg.rows import TupleRow

from relay_common import db
from relay_common.kafka import ConsumerLoop, ConsumerSettings
from relay_common.overlap import OverlappingConnection
from relay_common.records import BatchHandler, DeadLetter, Record
from relay_common.testing import wait
from relay_common.testing.brokers import Topics
from relay_common.testing.databases import Database

ROLE = "relay_matcher_stream"
EFFECTS: LiteralString = """
create table matcher.effect (
  topic text, partition int, record_offset bigint, value bytea,
  primary key (topic, partition, record_offset)
);
"""
INSERT_EFFECTS: LiteralString = """
insert into effect select * from
unnest(%s::text[], %s::int[], %s::bigint[], %s::bytea[])
"""


def record_effects(conn: db.Connection, records: Sequence[Record]) -> list[DeadLetter]:
    """Write one row a record: the primary key refuses an effect that happens twice."""
    conn.execute(
        INSERT_EFFECTS,
        (
            [r.topic for r in records],
            [r.partition for r in records],
            [r.offset for r in records],
            [r.value for r in records],
        ),
    )
    return []


@dataclass
class Stream:
    """One topic, one group and the loops a test starts on them."""

    database: Database
    topics: Topics
    topic: str
    protocol: str = "classic"
    stop: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list[threading.Thread])

    def settings(self, **changes: object) -> ConsumerSettings:
        """Return the settings of a loop, with `changes`."""
        plain = ConsumerSettings(
            self.topics.bootstrap,
            f"{self.topics.prefix}group",
            (self.topic,),
            group_protocol=self.protocol,
            session_timeout_ms=6_000,
        )
        return replace(plain, **changes)  # pyright: ignore[reportArgumentType] -- a test's own words

    def connect(self) -> OverlappingConnection:
        """Return a connection of the stream role."""
        return db.connect(self.database.conninfo(ROLE), "loop")

    def loop(self, handle: BatchHandler = record_effects, **changes: object) -> ConsumerLoop:
        """Return a loop, not started."""
        return ConsumerLoop(self.settings(**changes), self.connect, handle)

    def start(
        self, run: Callable[[threading.Event], None], stop: threading.Event | None = None
    ) -> threading.Thread:
        thread = threading.Thread(target=run, args=(stop or self.stop,))
        self.threads.append(thread)
        thread.start()
        return thread

    def produce(self, *values: bytes | None, key: bytes | None = b"key") -> None:
        """Write `values` and return when the broker has them."""
        for value in values:
            self.topics.produce(self.topic, key, value)
        self.topics.flush()

    def rows(self, statement: LiteralString) -> list[TupleRow]:
        """Return what the owner sees."""
        return self.database.owner.execute(statement).fetchall()

    def effects(self) -> list[bytes]:
        """Return the values that had their effect, by partition and offset."""
        found = self.rows("select value from matcher.effect order by partition, record_offset")
        return [row[0] for row in found]

    def until_effects(self, count: int, timeout_s: float = 20) -> None:
        wait.until(
            lambda: len(self.effects()) >= count,
            timeout_s,
            lambda: f"{len(self.effects())} of {count} effects",
        )

    def finish(self) -> None:
        """Stop every loop; one that does not end fails the test."""
        self.stop.set()
        for thread in self.threads:
            thread.join(15)
            assert not thread.is_alive()
