"""Where a consumer stands: in Postgres, moved in its batch's transaction, fenced (D12)."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg

from relay_common import queries
from relay_common.db import Connection

SQL = queries.load("relay_common", "position")
FENCED = "RC001"
Place = tuple[str, int]  # topic, partition


class PositionFenced(Exception):
    """Somebody else has moved on from here: this consumer lost its partition and did not know."""


@dataclass(frozen=True, slots=True)
class LogView:
    """One partition as the broker shows it: its topic's id and the ends of its log."""

    topic_id: str
    low: int
    high: int

    def refuses(self, topic_id: str, next_offset: int) -> str | None:
        """Return why a stored position cannot be continued in this log, None when it can."""
        if topic_id != self.topic_id:
            return f"position belongs to topic id {topic_id}, the log has {self.topic_id}"
        if not self.low <= next_offset <= self.high:
            return f"position {next_offset} is outside the log, {self.low} to {self.high}"
        return None


def read_or_create(conn: Connection, logs: Mapping[Place, LogView]) -> dict[Place, tuple[str, int]]:
    """Return topic id and next offset per partition; a new one begins at its log's low end."""
    places = list(logs)
    parameters = {
        "topics": [topic for topic, _ in places],
        "partitions": [partition for _, partition in places],
        "topic_ids": [logs[place].topic_id for place in places],
        "lows": [logs[place].low for place in places],
    }
    conn.execute(SQL["create_positions"], parameters)
    return read(conn, places)


def read(conn: Connection, places: Sequence[Place]) -> dict[Place, tuple[str, int]]:
    """Return topic id and next offset of those of `places` that have a stored position."""
    parameters = {"topics": [p[0] for p in places], "partitions": [p[1] for p in places]}
    rows = conn.execute(SQL["read_positions"], parameters).fetchall()
    return {(topic, partition): (topic_id, offset) for topic, partition, topic_id, offset in rows}


def advance(conn: Connection, moves: Iterable[tuple[Place, int, int]]) -> None:
    """Move each (partition, expected, next) in the caller's transaction.

    The server refuses when a stored position is not the expected one: see fence().
    """
    ordered = sorted(moves)
    conn.execute(
        SQL["advance_positions"],
        {
            "topics": [place[0] for place, _, _ in ordered],
            "partitions": [place[1] for place, _, _ in ordered],
            "expected": [expected for _, expected, _ in ordered],
            "nexts": [following for _, _, following in ordered],
        },
    )


@contextmanager
def fence() -> Generator[None]:
    """Raise PositionFenced when the server refused inside to move a position."""
    try:
        yield
    except psycopg.DatabaseError as error:
        if error.sqlstate != FENCED:
            raise
        raise PositionFenced(error.diag.message_primary) from error
