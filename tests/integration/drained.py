"""When everything has drained: no outbox row, every position at the end of its log."""

from confluent_kafka import KafkaException
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

    Outboxes are read before the ends of the logs: a row that left in between counts there.
    """
    with stack.database() as conn:
        waiting = [
            f"{count} rows in {service}.outbox"
            for service in SERVICES
            for (count,) in conn.execute(f"select count(*) from {service}.outbox").fetchall()
            if count
        ]
        if waiting:
            return waiting
        try:
            ends = tap.ends()
        except KafkaException as error:
            return [f"kafka: {error}"]
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
    behind = tap.behind(ends)
    return waiting + ([f"the tap is {behind} records behind"] if behind else [])
