"""Events per second of the matcher alone at 0, 10 and 100 % match, beside C1 and C2."""

from collections import defaultdict

from bench import runs
from bench.database import Database, open_database
from bench.events import Batch, make
from bench.figures import Figure
from bench.stage import Stage

RATES = (0.0, 0.1, 1.0)
BATCH = 2000
Bank = tuple[int, int]  # processes, and consumers in each
BANKS: tuple[Bank, ...] = ((1, 1), (1, 2), (2, 1))
Samples = defaultdict[tuple[str, Bank], list[float]]


def measure(stage: Stage) -> list[Figure]:
    """Return events per second, matcher and ceilings in turn, for one and for two processes."""
    database = open_database(stage, stage.profile.open_default)
    batches = {rate: batch_of(stage, database, rate) for rate in RATES}
    samples: Samples = defaultdict(list)
    costs: Samples = defaultdict(list)
    for _ in range(stage.profile.repetitions):
        for processes, consumers in BANKS:
            which = (processes, consumers)
            for kind in ("c1", "c2") if consumers == 1 else ():
                with runs.ceilings(stage, database, kind, processes, BATCH) as bank:
                    run = runs.drive(stage, database, bank, batches[0.0])
                samples[kind, which].append(run.rate)
                costs[kind, which].append(run.cost)
            if consumers == 1:
                consumed = runs.raw_consume(stage, "bench.c1", len(batches[0.0]))
                samples["consume", which].append(consumed.rate)
            own = {runs.CONSUMERS: str(consumers)}
            with runs.matchers(stage, database, processes, own) as bank:
                for rate, batch in batches.items():
                    run = runs.drive(stage, database, bank, batch)
                    runs.verify(database, batch)
                    samples[f"{rate:.0%}", which].append(run.rate)
                    costs[f"{rate:.0%}", which].append(run.cost)
    return figures(database, samples, costs)


def batch_of(stage: Stage, database: Database, rate: float) -> Batch:
    """Return the events of one match rate; as many as there are waitpoints for them."""
    count = stage.profile.events
    if rate:
        count = min(count, int(database.open_waitpoints / rate))
    return make(count, rate, database.open_waitpoints, f"rate{rate}")


def figures(database: Database, samples: Samples, costs: Samples) -> list[Figure]:
    """Return one figure for each match rate and number of processes, and the ceilings.

    The note says the processor time an event cost: it holds on a busy machine too.
    """
    found: list[Figure] = []
    for (kind, (processes, consumers)), values in sorted(samples.items(), key=lambda i: i[0][1]):
        beside: dict[str, float] = {}
        plain = (processes, 1)
        if kind.endswith("%"):
            beside = {c.upper(): median(samples[c, plain]) for c in ("c1", "c2")}
            beside["raw consume"] = median(samples["consume", plain])
        what = f"matcher, {kind} match" if kind.endswith("%") else f"ceiling {kind}"
        label = f"{what}, {processes} process{'es' if processes > 1 else ''}"
        label += f" of {consumers} consumers" if consumers > 1 else ""
        note = f"{database.open_waitpoints:,} open, batch {BATCH}"
        if spent := costs[kind, (processes, consumers)]:
            note += f"; {median(spent):.0f} µs of processor an event"
            if beside:
                note += f" (C1 {median(costs['c1', plain]):.0f})"
        found.append(Figure("match_rate", label, "events/s", tuple(values), beside, note))
    return found


def median(values: list[float]) -> float:
    """Return the median of `values`."""
    return Figure("", "", "", tuple(values)).value
