"""Events to push: about 260 bytes of Avro with realistic fields, ready before any clock starts."""

import random
from dataclasses import dataclass
from datetime import UTC, datetime

from confluent_kafka import Producer
from relay_common.avro import Codec
from relay_common.match_key import MatchKey

TENANT = "acme"
ENVIRONMENT = "prod"
EVENT_TYPE = "payment.settled"
SOURCE = "shop/payments"
SCHEMA = "relay.events.v1"
CODEC = Codec()
HAPPENED = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)

Message = tuple[bytes | None, bytes]


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one run and how many of them have a waitpoint."""

    messages: list[Message]
    matching: int

    def __len__(self) -> int:
        return len(self.messages)


def waited_key(number: int) -> str:
    """Return the correlation key of waitpoint `number`."""
    return f"order-{number:010d}"


def make(count: int, rate: float, open_waitpoints: int, salt: str) -> Batch:
    """Return `count` events, a share `rate` of them for waitpoints 0..open-1, each for another one.

    `salt` makes the event ids of this batch its own.
    """
    matching = round(count * rate)
    if matching > open_waitpoints:
        raise ValueError(f"expected at most {open_waitpoints} matching events, found {matching}")
    chance = random.Random(f"{count}/{rate}/{open_waitpoints}")
    targets = iter(chance.sample(range(open_waitpoints), matching))
    hits = set(chance.sample(range(count), matching))
    keys = (waited_key(next(targets)) if n in hits else f"quiet-{n:010d}" for n in range(count))
    return Batch([message(key, f"{salt}{n}", chance) for n, key in enumerate(keys)], matching)


def message(correlation_key: str, name: str, chance: random.Random) -> Message:
    """Return Kafka key and value of one event."""
    key = MatchKey(TENANT, ENVIRONMENT, EVENT_TYPE, correlation_key)
    amount = chance.randrange(100, 90_000)
    data = (
        f'{{"order":"{correlation_key}","amount_cents":{amount},"currency":"EUR",'
        f'"method":"card","customer":"c-{chance.randrange(10**8):08d}","note":"captured"}}'
    )
    record = {
        "tenant": TENANT,
        "environment": ENVIRONMENT,
        "event_type": EVENT_TYPE,
        "correlation_key": correlation_key,
        "recipient": None,
        "source": SOURCE,
        "id": f"{chance.getrandbits(64):016x}{hash_of(name):016x}",
        "event_id": None,
        "occurred_at": HAPPENED,
        "accepted_by": None,
        "dataref_uri": None,
        "dataref_digest": None,
        "data": data.encode(),
    }
    return key.encoded(), CODEC.encode(SCHEMA, record)


def hash_of(name: str) -> int:
    """Return 64 bits of `name` that are the same in every process."""
    return random.Random(name).getrandbits(64)


def push(bootstrap: str, topic: str, messages: list[Message]) -> None:
    """Write `messages` to `topic` with acks=all and return when the broker has them all."""
    send(connected(bootstrap), topic, messages)


def connected(bootstrap: str) -> Producer:
    """Return a producer that waits for all acks and knows the broker."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 20,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1_000_000,
        }
    )
    producer.list_topics(timeout=10)
    return producer


def send(producer: Producer, topic: str, messages: list[Message]) -> None:
    """Write `messages` to `topic` and return when the broker has them all."""
    failures: list[str] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failures.append(str(error))

    for key, value in messages:
        producer.produce(topic, value, key, on_delivery=delivered)
    producer.flush(60)
    if failures:
        raise RuntimeError(f"{len(failures)} events were not taken by the broker: {failures[0]}")
