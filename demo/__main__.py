"""`make demo`: start everything, play the story on real parts, show what happened, stop.

Exits with 1 when one of the sums is off.
"""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import httpx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from demo import plan, producer, report
from demo.generate import Event, read
from demo.waiters import SCOPES, Json, Waiters

QUIET_EVENTS, QUIET_PER_SECOND = 3_000, 1_000
STATE_DIR = Path(__file__).parents[1] / ".relay" / "demo"


def main() -> int:
    """Play the story on a stack of its own; return the exit code."""
    console = Console()
    os.environ["RELAY_STATE_DIR"] = str(STATE_DIR)
    devstack("reset")  # every telling begins with an empty shop
    try:
        devstack("up")
        story = asyncio.run(play(console))
    finally:
        devstack("down")
    report.show(story, console)
    report.show_timeline(story, console)
    off = report.faults(story)
    for sentence in off:
        console.print(f"[red]off:[/red] {sentence}")
    console.print("" if off else "\n[green]All sums are right.[/green]")
    return 1 if off else 0


def devstack(verb: str) -> None:
    """Start or stop the stack, which says itself what is wrong. Raises SystemExit then."""
    command = [sys.executable, "-m", "relay_devstack", verb]
    code = subprocess.run(command, check=False).returncode
    if code != 0:
        raise SystemExit(code)


def relay(*words: str) -> str:
    """Return what the `relay` command prints."""
    command = [str(Path(sys.executable).with_name("relay")), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


async def play(console: Console) -> report.Story:
    """Play the story against the running stack and return all it has seen."""
    address = dict(line.split("=", 1) for line in relay("env").split())
    events, waits = read(), plan.waits(read())
    async with httpx.AsyncClient(base_url=address["RELAY_URL"], timeout=60) as http:
        tokens = Tokens()
        for who in owners(waits):
            tokens.of(who)  # runs a command, so before anything waits
        waiters = Waiters(http, tokens.of)
        with progress_bars(console) as bars:
            push = await scenes(waiters, address["RELAY_KAFKA_BOOTSTRAP"], events, waits, bars)
        return await gather(waiters, push, events)


class Tokens:
    """Development tokens, one for each identity."""

    def __init__(self) -> None:
        self.known: dict[str, str] = {}

    def of(self, identity: str) -> str:
        """Return the token of `identity`."""
        if identity not in self.known:
            self.known[identity] = relay(
                "token",
                "--sub",
                identity,
                "--tenant",
                plan.TENANT,
                "--environment",
                plan.ENVIRONMENT,
                "--scope",
                SCOPES,
            ).strip()
        return self.known[identity]


class Push:
    """When each event was handed to the broker, and how long the rush took."""

    def __init__(self) -> None:
        self.sent: dict[tuple[str, str], float] = {}
        self.rush_began = 0.0
        self.rush_seconds = 0.0


async def scenes(
    waiters: Waiters,
    bootstrap: str,
    events: Sequence[Event],
    waits: Sequence[plan.Wait],
    bars: Progress,
) -> Push:
    """Open before the events, push quietly, rush while more waits open, open the rest after."""
    push = Push()
    moments = {m: [w for w in waits if w.moment == m] for m in ("before", "during", "after")}
    readers = [asyncio.create_task(reader(waiters, who, waits, bars)) for who in owners(waits)]
    opening = bars.add_task("waitpoints opened", total=len(waits))
    pushing = bars.add_task("events pushed to Kafka", total=len(events))

    def opened(count: int) -> None:
        bars.advance(opening, count)

    def pushed(count: int) -> None:
        bars.advance(pushing, count)

    async def produce(part: Sequence[Event], per_second: int | None) -> None:
        where = (plan.TENANT, plan.ENVIRONMENT)
        push.sent |= await asyncio.to_thread(
            producer.push, bootstrap, where, part, per_second, pushed
        )

    await waiters.open_all(moments["before"], opened)
    await produce(events[:QUIET_EVENTS], QUIET_PER_SECOND)
    push.rush_began = time.time_ns() / 1e9
    await asyncio.gather(
        produce(events[QUIET_EVENTS:], None), waiters.open_all(moments["during"], opened)
    )
    push.rush_seconds = time.time_ns() / 1e9 - push.rush_began
    await waiters.open_all(moments["after"], opened)
    await asyncio.wait_for(asyncio.gather(*readers), timeout=120)
    return push


def owners(waits: Sequence[plan.Wait]) -> list[str]:
    """Return the waiters of the story."""
    return sorted({wait.waiter for wait in waits})


async def reader(waiters: Waiters, who: str, waits: Sequence[plan.Wait], bars: Progress) -> None:
    """Read the mailbox of `who` until each of its waits was announced and closed."""
    expected = 2 * sum(1 for wait in waits if wait.waiter == who)
    task = bars.add_task(f"mailbox of {who}", total=expected)
    await waiters.read_mailbox(who, expected, lambda count: bars.advance(task, count))


async def gather(waiters: Waiters, push: Push, events: Sequence[Event]) -> report.Story:
    """Ask the API how everything stands at the end."""
    recorded = await every_event(waiters, len(events))
    found = {}
    early = 0
    for who in owners(list(waiters.waits.values())):
        async for waitpoint in waiters.pages(
            who, "/v1/waitpoints", {"waiter": who, "limit": "200"}
        ):
            found[str(waitpoint["id"])] = waitpoint
        early += await early_events(waiters, who)
    last = max(report.seconds(event["received_at"]) for event in recorded)
    quiet = frozenset(
        (str(e["event_type"]), str(e["correlation_key"])) for e in events[:QUIET_EVENTS]
    )
    return report.Story(
        waits=waiters.waits,
        answers=waiters.opened,
        waitpoints=found,
        events=recorded,
        pushed=push.sent,
        acked=waiters.acked,
        early=early,
        push_seconds=push.rush_seconds,
        record_seconds=last - push.rush_began,
        rush_events=len(events) - QUIET_EVENTS,
        quiet=quiet,
    )


async def every_event(waiters: Waiters, expected: int) -> list[Json]:
    """Return the recorded events, once all of them are there."""
    window = {"received_after": "2026-01-01T00:00:00Z", "received_before": "2100-01-01T00:00:00Z"}
    window["limit"] = "1000"
    for _ in range(60):
        found = [event async for event in waiters.pages(plan.CHECKOUT, "/v1/events", window)]
        if len(found) >= expected:
            return found
        await asyncio.sleep(0.5)
    return found


async def early_events(waiters: Waiters, who: str) -> int:
    """Return how many early_event records the mailbox of `who` shows, reading it from the start."""
    count, since, epoch = 0, 0, None
    while True:
        params = {"since": str(since), "limit": "500"} | ({"epoch": str(epoch)} if epoch else {})
        page = await waiters.get(who, "/v1/mailboxes/me/records", params)
        count += sum(1 for record in page["records"] if record["kind"] == "early_event")
        epoch, since = page["epoch"], page["next_since"]
        if since >= page["head"]:
            return count


def progress_bars(console: Console) -> Progress:
    """Return the bars of the story."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


if __name__ == "__main__":
    sys.exit(main())
