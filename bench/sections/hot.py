"""One hot mailbox and one hot key: what they do to the rate, and to the latency of the others."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

from bench import runs
from bench.database import WAITERS, Database, add_waitpoints, open_database, remove_waitpoints
from bench.events import Batch, Message, make, message
from bench.figures import Figure, percentile
from bench.pipeline import Pipeline, running_pipeline
from bench.processes import running
from bench.sections.pipeline import paced
from bench.stage import Stage

PROCESSES = 2
HOT = "agent:hot"
KEY = "hot-key"
MAILBOXES = f"all events for {WAITERS:,} mailboxes"
MAILBOX = "all events for one mailbox"
KEYS = "half of the events for many keys that nobody waits on"
ONE_KEY = "half of the events for one key that nobody waits on"
SPREAD = {MAILBOX: MAILBOXES, ONE_KEY: KEYS}
LIVE_RATE = 100.0  # events a second of the others, each for a waiter
HOT_RATE = 900.0  # beside them, on what is hot or, for comparison, spread


def measure(stage: Stage) -> list[Figure]:
    """Return the rates of two matchers, then how long the others' events take beside it."""
    database = open_database(stage, stage.profile.open_default)
    remove_waitpoints(database, "hot-")
    found = rates(stage, database)
    with two_matchers(stage, database) as pipeline:
        found += latencies(stage, database, pipeline)
    remove_waitpoints(database, "hot-")
    return found


def rates(stage: Stage, database: Database) -> list[Figure]:
    """Return events per second of two matchers, what is spread and what is hot in turn."""
    batches = batches_of(stage, database)
    samples: dict[str, list[float]] = {what: [] for what in batches}
    with runs.matchers(stage, database, PROCESSES) as bank:
        for _ in range(stage.profile.repetitions):
            for what, batch in batches.items():
                samples[what].append(runs.drive(stage, database, bank, batch).rate)
                runs.verify(database, batch)
    note = f"{PROCESSES} matcher processes"
    return [
        Figure("hot", what, "events/s", tuple(values), rate_of(samples, SPREAD.get(what)), note)
        for what, values in samples.items()
    ]


def rate_of(samples: dict[str, list[float]], what: str | None) -> dict[str, float]:
    """Return the rate of `what` to set a hot one beside, nothing for one that is spread."""
    return {} if what is None else {"spread": Figure("", "", "", tuple(samples[what])).value}


def batches_of(stage: Stage, database: Database) -> dict[str, Batch]:
    """Return the events of each run; those for one mailbox get their waitpoints here."""
    count = min(stage.profile.events, database.open_waitpoints)
    hot = [f"hot-{number}" for number in range(count)]
    add_waitpoints(database, ((name, HOT) for name in hot))
    spread = make(count, 1.0, database.open_waitpoints, "spread")
    half = [f"quiet-{number}" for number in range(count // 2)]
    found = (
        spread,
        Batch(events_of(hot), count),
        mixed_half(spread, events_of(half)),
        mixed_half(spread, on_all_partitions(count // 2)),
    )
    return dict(zip((MAILBOXES, MAILBOX, KEYS, ONE_KEY), found, strict=True))


def mixed_half(batch: Batch, others: list[Message]) -> Batch:
    """Return `batch` with every second event replaced by one of `others`, which nobody awaits."""
    kept = batch.messages[: len(others)]
    return Batch([one for pair in zip(kept, others, strict=True) for one in pair], len(kept))


def on_all_partitions(count: int) -> list[Message]:
    """Return events of one key, as a producer writes them that partitions by nothing."""
    return [(None, value) for _, value in events_of([KEY] * count)]


def events_of(names: list[str]) -> list[Message]:
    """Return one event for each correlation key."""
    chance = random.Random(len(names))
    return [message(name, f"hot{n}", chance) for n, name in enumerate(names)]


@contextmanager
def two_matchers(stage: Stage, database: Database) -> Iterator[Pipeline]:
    """Run the pipeline with a second matcher that consumes beside the first."""
    with running_pipeline(stage, database) as pipeline:
        child, url = runs.service(stage, database, "matcher", "consumer", {}, 1)
        with running([child]):
            runs.until(lambda: runs.ready(child, url), "the second matcher to be ready")
            group = f"bench.{database.name}.matcher"
            runs.until(lambda: runs.balanced(stage, group, PROCESSES), "partitions to settle")
            yield pipeline


def latencies(stage: Stage, database: Database, pipeline: Pipeline) -> list[Figure]:
    """Return how long the others' events take beside spread and beside hot ones of one rate."""
    count = int(HOT_RATE * stage.profile.latency_seconds)
    quiet = events_of([f"quiet-{number}" for number in range(count)])
    beside = {
        "of many keys": quiet,
        "of one key": on_all_partitions(count),
        f"for {WAITERS:,} mailboxes": make(count, 1.0, database.open_waitpoints, "beside").messages,
        "for one mailbox": events_of([f"hot-{number}" for number in range(count)]),
    }
    rate = LIVE_RATE + HOT_RATE
    paced(stage, database, pipeline, mixed("warm", quiet[: int(HOT_RATE)]), rate)
    spans = {
        what: paced(stage, database, pipeline, mixed(what, events), rate)
        for what, events in beside.items()
    }
    spread = dict(zip(list(beside)[1::2], list(beside)[::2], strict=True))
    return [
        latency(what, step, values, spans[spread[what]][step] if what in spread else None)
        for what, found in spans.items()
        for step, values in found.items()
        if step != "leased"
    ]


def mixed(label: str, events: list[Message]) -> list[tuple[str, Message]]:
    """Return `events` with the others' between them, in the proportion of the rates."""
    chance = random.Random(label)
    every = int(HOT_RATE / LIVE_RATE)
    named: list[tuple[str, Message]] = []
    for number, event in enumerate(events):
        if number % every == 0:
            name = f"live-{label}-{number}"
            named.append((name, message(name, name, chance)))
        named.append(("", event))
    return named


def latency(what: str, step: str, values: list[float], spread: list[float] | None) -> Figure:
    """Return the figure of one stage of the others' events beside `what`."""
    p99 = percentile(values, 0.99) * 1000
    note = f"p50; p99 {p99:,.1f} ms, {len(values)} events"
    if spread is not None:
        note += f", {percentile(values, 0.99) / percentile(spread, 0.99):.2f} of spread"
    ratio = {} if spread is None else {"spread": percentile(spread, 0.5) * 1000}
    label = f"event → {step}, {LIVE_RATE:.0f}/s of others beside {HOT_RATE:.0f}/s {what}"
    value = (percentile(values, 0.5) * 1000,)
    return Figure("hot", label, "ms", value, ratio, note, higher_is_better=False)
