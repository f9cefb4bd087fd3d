"""What a run of the peers comes to: rates side by side, the targets, and what makes it unfair."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.figures import Figure
from bench.peers.systems import DBOS, RELAY, RELAY_DURABILITY, RESTATE, Peer
from bench.report import number

Samples = Mapping[str, Sequence[float]]
STEPS = {
    "open": "waits opened /s",
    "deliver": "events delivered /s",
    "seen": "delivered and seen by the waiter /s",
}
OWN = {
    "resolved": "waitpoints resolved from the topic, matcher alone, 1 process",
    "leased": "resolved, leased and acknowledged by the waiters, 1 process each",
    "reply": "synchronous HTTP replies, 32 callers, publisher stopped",
    "reply_through": "the same with publisher and mailbox beside it",
    "opens": "openings over HTTP, 32 callers, publisher stopped",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A rate of Relay over what a peer's waiters see, and how large that ought to be."""

    own: str
    peer: str
    floor: float
    aim: float


TARGETS = (
    Target("resolved", DBOS, 50, 130),
    Target("leased", DBOS, 25, 60),
    Target("leased", RESTATE, 3, 8),
    Target("reply", DBOS, 10, 24),
    Target("reply", RESTATE, 1, 2.5),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a run found: per system the samples of each rate, or why there are none."""

    waits: int
    machine: Mapping[str, object]
    settings: Mapping[str, str]
    peers: Sequence[Peer]
    versions: Mapping[str, Sequence[str]]
    rates: Mapping[str, Samples]
    left_out: Mapping[str, str]

    def rate(self, system: str, what: str) -> float | None:
        """Return the median of one rate, None when it was not measured."""
        samples = self.rates.get(system, {}).get(what)
        return statistics.median(samples) if samples else None

    def figures(self) -> list[Figure]:
        """Return Relay's own rates, each beside the peers that it has a target against."""
        return [
            Figure("peers", what, "1/s", tuple(samples), self.beside(own))
            for own, what in OWN.items()
            if (samples := self.rates.get(RELAY, {}).get(own))
        ]

    def beside(self, own: str) -> dict[str, float]:
        """Return what the waiters of the peers see, for those with a target."""
        found = {t.peer: self.rate(t.peer, "seen") for t in TARGETS if t.own == own}
        return {peer: rate for peer, rate in found.items() if rate is not None}

    def ratio(self, target: Target) -> float | None:
        """Return what was reached of `target`, None when one side was not measured."""
        own, other = self.rate(RELAY, target.own), self.rate(target.peer, "seen")
        return own / other if own and other else None


def as_json(outcome: Outcome, measured_at: str) -> dict[str, object]:
    """Return the run for `peers.json`."""
    return {
        "measured_at": measured_at,
        "waits": outcome.waits,
        "machine": dict(outcome.machine),
        "postgres": dict(outcome.settings),
        "versions": {name: list(found) for name, found in outcome.versions.items()},
        "rates": {
            system: {what: list(samples) for what, samples in found.items()}
            for system, found in outcome.rates.items()
        },
        "targets": [
            {
                "what": OWN[t.own],
                "over": t.peer,
                "floor": t.floor,
                "aim": t.aim,
                "ratio": outcome.ratio(t),
            }
            for t in TARGETS
        ],
        "left_out": dict(outcome.left_out),
    }


def page(outcome: Outcome) -> str:
    """Return the run for `peers.md`."""
    facts = {**outcome.machine, **{f"postgres {k}": v for k, v in outcome.settings.items()}}
    repetitions = max((len(s) for f in outcome.rates.values() for s in f.values()), default=0)
    lines = [
        "# Peers at the same job",
        "",
        f"Written by `make bench-peers`: open {outcome.waits:,} waits, deliver as many events, each"
        " waiter sees its own.",
        f"Medians of {repetitions}, the systems in turn, clients included, on this one machine."
        " Compare figures of one run only.",
        "",
        *same_job(outcome),
        *own_rates(outcome),
        *targets(outcome),
        *fairness(outcome),
        "## Measured on",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
    ]
    return "\n".join(lines) + "\n"


def same_job(outcome: Outcome) -> list[str]:
    """Return the table of the job's steps, one row for each system."""
    rows = [
        f"| {system} | " + " | ".join(shown(outcome.rate(system, step)) for step in STEPS) + " |"
        for system in outcome.rates
    ]
    rows += [f"| {system} | left out: {why} | | |" for system, why in outcome.left_out.items()]
    head = f"| system | {' | '.join(STEPS.values())} |"
    return ["## The same job", "", head, "|---|---:|---:|---:|", *rows, ""]


def own_rates(outcome: Outcome) -> list[str]:
    """Return the table of Relay's rates when events do not come one job at a time."""
    rows = [f"| {figure.what} | {number(figure.value)} |" for figure in outcome.figures()]
    return ["## Relay at full speed", "", "| what | /s |", "|---|---:|", *rows, ""]


def targets(outcome: Outcome) -> list[str]:
    """Return the table of targets and what was reached."""
    rows = [
        f"| {OWN[t.own]} | {t.peer} | {t.floor:g} | {t.aim:g} | {times(outcome.ratio(t))} |"
        for t in TARGETS
    ]
    head = "| Relay's rate | over what the waiters see of | floor | aim | found |"
    return ["## Targets", "", head, "|---|---|---:|---:|---:|", *rows, ""]


def fairness(outcome: Outcome) -> list[str]:
    """Return what the systems promise and do for their rates, durability first."""
    rows = [
        f"| {p.title} | {p.durability} | {p.default} | {p.besides} |"
        f" {', '.join(outcome.versions[p.name])} |"
        for p in outcome.peers
    ]
    own = "stops at a durable record that the waiter leases and acknowledges; runs no code of his"
    return [
        "## What makes it unfair",
        "",
        "| system | durability in this run | durability as it comes | what else | version |",
        "|---|---|---|---|---|",
        f"| {RELAY} | {RELAY_DURABILITY} | the same | {own} | this commit |",
        *rows,
        "",
    ]


def shown(rate: float | None) -> str:
    """Return a rate as the page shows it."""
    return "" if rate is None else number(rate)


def times(ratio: float | None) -> str:
    """Return a ratio as the page shows it."""
    return "not measured" if ratio is None else f"{ratio:.1f}"
