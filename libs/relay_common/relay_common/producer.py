"""Producing to Kafka: idempotent, acknowledged by all in-sync replicas, an outcome for each."""
# The client's stubs leave its configuration dictionary untyped.
# pyright: reportUnknownMemberType=false

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, cast

import confluent_kafka
import msgspec
from confluent_kafka import KafkaError, KafkaException, Message

from relay_common.telemetry import logger

# The broker says no to this very message, and will say it again.
FOR_GOOD = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.INVALID_RECORD,
        KafkaError.TOPIC_EXCEPTION,
    }
)
QUEUE_FULL_SECONDS = 0.005
log = logger(__name__)


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """One message to produce."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one message: delivered, refused for good, or worth another try."""

    state: Literal["delivered", "refused", "retry"]
    reason: str = ""


DELIVERED = Outcome("delivered")
UNKNOWN = Outcome("retry", "no answer")


class Sending:
    """The outcomes of one call. Only the poll thread and the producing thread write to it."""

    def __init__(self, count: int, finished: Callable[[], None]) -> None:
        self.outcomes = [UNKNOWN] * count
        self.left = count
        self.finished = finished
        self.lock = threading.Lock()

    def report(self, place: int, error: KafkaError | None, _message: Message | None = None) -> None:
        """Note the outcome of one message; the last one ends the waiting. Never raises."""
        self.outcomes[place] = DELIVERED if error is None else outcome_of(error)
        with self.lock:
            self.left -= 1
            last = self.left == 0
        if last:
            self.finished()


def outcome_of(error: KafkaError) -> Outcome:
    """Return what `error` means for its message."""
    return Outcome("refused" if error.code() in FOR_GOOD else "retry", error.name())


class Producer:
    """One client with its poll thread. Make it after any fork, close it at the end.

    With `message_timeout_ms=0` the client keeps trying for as long as it lives, in order; else a
    message without an answer in that time is reported as worth another try.
    """

    def __init__(self, bootstrap: str, client_id: str, message_timeout_ms: int = 0) -> None:
        self.configuration: dict[str, str | int | float | bool] = {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "enable.idempotence": True,
            "acks": "all",
            "compression.type": "lz4",
            # The same partition as the Java client's for the same key.
            "partitioner": "murmur2_random",
            "linger.ms": 2,
            "message.timeout.ms": message_timeout_ms,
            # The topic's own limit decides what is too large.
            "message.max.bytes": 64 << 20,
            # A missing topic must not hold up the others for the default half minute.
            "topic.metadata.propagation.max.ms": 2_000,
            "reconnect.backoff.max.ms": 1_000,
        }
        self.lock = threading.Lock()
        self.closed = threading.Event()
        self.client = self.new_client()
        self.poller = threading.Thread(target=self.poll, name="producer-poll", daemon=True)
        self.poller.start()

    def new_client(self) -> confluent_kafka.Producer:
        """Return a fresh client of this configuration."""
        return confluent_kafka.Producer(self.configuration, logger=logging.getLogger("relay.kafka"))

    def poll(self) -> None:
        """Serve delivery reports until close(). They only set outcomes: nothing can fail here."""
        while not self.closed.is_set():
            self.client.poll(0.1)

    def produce_all(
        self, messages: Sequence[Outgoing], stop: threading.Event | None = None
    ) -> list[Outcome]:
        """Produce `messages` and return the outcome of each, once all are known or `stop` is set.

        After `stop` what is not acknowledged is withdrawn and reported as worth another try.
        """
        done = threading.Event()
        sending = Sending(len(messages), done.set)
        place = 0
        while (place := self.enqueue(messages, sending, place)) < len(messages):
            done.wait(QUEUE_FULL_SECONDS)
        while messages and not done.wait(0.1):
            if stop is not None and stop.is_set():
                self.client.purge()
                done.wait(2.0)
                break
        return sending.outcomes

    async def send(self, messages: Sequence[Outgoing]) -> list[Outcome]:
        """Produce `messages` and return the outcome of each, without blocking the event loop.

        With the client's queue full the rest is worth another try: the caller answers 503.
        """
        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def finished() -> None:
            with suppress(RuntimeError):  # the event loop may be closed by now
                loop.call_soon_threadsafe(done.set)

        sending = Sending(len(messages), finished)
        taken = self.enqueue(messages, sending, 0)
        for place in range(taken, len(messages)):
            sending.report(place, KafkaError(KafkaError._QUEUE_FULL))
        if messages:
            await done.wait()
        return sending.outcomes

    def enqueue(self, messages: Sequence[Outgoing], sending: Sending, place: int) -> int:
        """Hand over messages from `place` on; return where the queue was full, or the end."""
        for position in range(place, len(messages)):
            message = messages[position]
            try:
                self.client.produce(
                    message.topic,
                    value=message.value,
                    key=message.key,
                    headers=list(message.headers) or None,
                    on_delivery=partial(sending.report, position),
                )
            except BufferError:
                return position
            except KafkaException as error:
                self.refused(sending, position, cast(KafkaError, error.args[0]))
        return len(messages)

    def refused(self, sending: Sending, place: int, error: KafkaError) -> None:
        """Note a message the client would not take; a client beyond repair is replaced."""
        if error.fatal() or error.code() == KafkaError._FATAL:
            self.renew(self.client)
        sending.report(place, error)

    def renew(self, broken: confluent_kafka.Producer) -> None:
        """Replace a client that reported a fatal error; its messages are worth another try."""
        with self.lock:
            if self.client is not broken:
                return
            log.error("producer_replaced")
            self.client = self.new_client()
        broken.purge()
        broken.flush(2.0)

    def close(self, seconds: float = 5.0) -> None:
        """Wait up to `seconds` for what is under way, then end the poll thread."""
        self.client.flush(seconds)
        self.closed.set()
        self.poller.join(seconds)
