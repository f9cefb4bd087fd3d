"""When everything has drained: no outbox row, no hint held back, every position at an end."""

from typing import Any

from confluent_kafka import KafkaException
from psycopg import Connection
from relay_common.testing.wait import until

from tests.integration.deployment import SERVICES, Deployment
from tests.integration.tap import Tap

READERS = {"matcher": "relay.events", "mailbox": "relay.mailbox", "escalation": "relay.waitpoints"}


def until_drained(stack: Deployment, tap: Tap, seconds: float = 60) -> None:
    """Wait until nothing is under way any more."""
    seen: list[str] = []

    def drained() -> bool:
        seen[:] = under_way(stack, tap)
        return not seen

    until(drained, seconds, lambda: "; ".join(seen))


def under_way(stack: Deployment, tap: Tap) -> list[str]:
    """Return what has not drained yet, in words.

    What is unpublished is read before the ends of the logs, as a row that left in between counts
    there, and after the positions, as what was read in between may have left rows of its own.
    """
    with stack.database() as conn:
        if waiting := unpublished(conn):
            return waiting
        try:
            ends = tap.ends()
        except KafkaException as error:
            return [f"kafka: {error}"]
        waiting = [*unread(conn, ends), *unpublished(conn)]
    behind = tap.behind(ends)
    return waiting + ([f"the tap is {behind} records behind"] if behind else [])


def unpublished(conn: Connection[tuple[Any, ...]]) -> list[str]:
    """Return the outboxes that hold rows, and the hints that are held back for a second."""
    held_back = "mailbox.mailbox where hint_due_at is not null and state <> 'deleted'"
    places = [*(f"{service}.outbox" for service in SERVICES), held_back]
    counts = [(conn.execute(f"select count(*) from {place}").fetchone(), place) for place in places]
    return [f"{row[0]} rows in {place}" for row, place in counts if row and row[0]]


def unread(conn: Connection[tuple[Any, ...]], ends: dict[tuple[str, int], int]) -> list[str]:
    """Return the partitions whose end the services have not reached."""
    waiting: list[str] = []
    for service, topic in READERS.items():
        rows = conn.execute(
            f"select partition, next_offset from {service}.position where topic = %s", (topic,)
        ).fetchall()
        known = dict(rows)
        waiting += [
            f"{service} at {known.get(number)} of {end} in {topic}/{number}"
            for (name, number), end in ends.items()
            if name == topic and end > known.get(number, 0)
        ]
    return waiting
