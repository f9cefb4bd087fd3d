"""The job for Temporal, in its own environment: N workflows wait, N signals come, N results.

`python job.py SERVER N`; prints one JSON object of rates. Worker and client are one process.
"""

import asyncio
import itertools
import json
import sys
import time
from collections.abc import Awaitable, Callable

from temporalio import workflow
from temporalio.client import Client
from temporalio.worker import Worker

QUEUE = "waits"
CALLERS = 32


@workflow.defn
class Wait:
    """A workflow that ends with the event it was sent."""

    def __init__(self) -> None:
        self.event: str | None = None

    @workflow.run
    async def run(self) -> str:
        """Wait for the event, durably."""
        await workflow.wait_condition(lambda: self.event is not None)
        return self.event

    @workflow.signal
    def deliver(self, event: str) -> None:
        """Take the event."""
        self.event = event


async def each(count: int, work: Callable[[int], Awaitable[object]]) -> None:
    """Do `work` for every number below `count`, 32 at a time."""
    numbers = itertools.count()

    async def caller() -> None:
        while (number := next(numbers)) < count:
            await work(number)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))


async def measure(client: Client, count: int) -> dict[str, float]:
    """Open, deliver, see; time each."""
    handle = lambda number: client.get_workflow_handle(f"wait-{number}")  # noqa: E731
    seen: dict[int, str] = {}

    async def see(number: int) -> None:
        seen[number] = await handle(number).result()

    begun = time.perf_counter()
    await each(count, lambda n: client.start_workflow(Wait.run, id=f"wait-{n}", task_queue=QUEUE))
    opened = time.perf_counter()
    await each(count, lambda n: handle(n).signal(Wait.deliver, f"event-{n}"))
    delivered = time.perf_counter()
    await each(count, see)
    done = time.perf_counter()
    if seen != {number: f"event-{number}" for number in range(count)}:
        raise SystemExit("a waiter saw another event than its own")
    return {
        "open": count / (opened - begun),
        "deliver": count / (delivered - opened),
        "seen": count / (done - opened),
    }


async def main(server: str, count: int) -> None:
    """Run a worker beside the client."""
    client = await Client.connect(server)
    async with Worker(client, task_queue=QUEUE, workflows=[Wait]):
        print(json.dumps(await measure(client, count)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
