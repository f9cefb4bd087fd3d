"""The job for JetStream, in its own environment: N events published and acked, pulled and acked.

`python job.py SERVER N`; prints one JSON object of rates. There is nothing to open: one durable
consumer reads all events, and nobody is matched to anybody.
"""

import asyncio
import itertools
import json
import sys
import time

import nats
from nats.js.api import AckPolicy, ConsumerConfig, StorageType

SERVER, COUNT = sys.argv[1], int(sys.argv[2])
CALLERS = 32
PULLED = 500
BODY = b'{"order":"order-%010d","amount_cents":12345,"currency":"EUR","note":"captured"}'


async def publish(stream: nats.js.JetStreamContext) -> None:
    """Publish the events, 32 at a time, each acked by the server."""
    numbers = itertools.count()

    async def caller() -> None:
        while (number := next(numbers)) < COUNT:
            await stream.publish("event.settled", BODY % number)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def pull(waiter: nats.js.JetStreamContext.PullSubscription) -> set[bytes]:
    """Pull and ack until all events have been seen."""
    seen: set[bytes] = set()
    while len(seen) < COUNT:
        found = await waiter.fetch(PULLED, timeout=60)
        seen.update(message.data for message in found)
        await asyncio.gather(*(message.ack() for message in found))
    return seen


async def main() -> None:
    """Deliver and see at the same time; time each."""
    sender, reader = await nats.connect(SERVER), await nats.connect(SERVER)
    stream = sender.jetstream()
    await stream.add_stream(name="events", subjects=["event.*"], storage=StorageType.FILE)
    own = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=100_000)
    waiter = await reader.jetstream().pull_subscribe("event.*", "waiters", config=own)
    begun = time.perf_counter()
    pulled = asyncio.create_task(pull(waiter))
    await publish(stream)
    delivered = time.perf_counter()
    seen = await pulled
    await reader.flush()
    done = time.perf_counter()
    if seen != {BODY % number for number in range(COUNT)}:
        raise SystemExit("an event was lost")
    rates = {"deliver": COUNT / (delivered - begun), "seen": COUNT / (done - begun)}
    print(json.dumps(rates), flush=True)
    await sender.close()
    await reader.close()


asyncio.run(main())
