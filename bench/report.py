"""What a run prints and writes: a table, JSON, a page and a plot."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from relay_devstack.layout import ROOT
from rich.console import Console
from rich.table import Table

from bench.figures import Figure
from bench.profile import Profile

FOLDER = ROOT / "docs" / "benchmarks"
CONSOLE = Console(width=150)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Everything a run found."""

    profile: Profile
    machine: Mapping[str, object]
    settings: Mapping[str, str]
    figures: Sequence[Figure]
    failed: Mapping[str, str]


def say(text: str) -> None:
    """Print progress."""
    CONSOLE.print(text, highlight=False, markup=False)


def show(figures: Sequence[Figure], title: str) -> None:
    """Print figures, the ratios first."""
    table = Table(title=title, title_justify="left")
    for column in ("ratio", "value", "unit", "what", "note"):
        table.add_column(column, justify="right" if column == "value" else "left")
    for figure in figures:
        table.add_row(ratios(figure), number(figure.value), figure.unit, figure.what, figure.note)
    CONSOLE.print(table)


def ratios(figure: Figure) -> str:
    """Return the ratios of a figure as text."""
    return " · ".join(f"{ratio:.2f} of {name}" for name, ratio in figure.ratios.items())


def number(value: float) -> str:
    """Return a value with the digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"


def write(outcome: Outcome) -> None:
    """Write `latest.json`, `latest.md` and `latest.png`."""
    from bench import plot  # noqa: PLC0415 - matplotlib takes a second to load

    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "latest.json").write_text(json.dumps(as_json(outcome), indent=1) + "\n")
    (FOLDER / "latest.md").write_text(page(outcome))
    plot.draw(outcome.figures, FOLDER / "latest.png")
    say(f"Wrote {FOLDER.relative_to(ROOT)}/latest.json, .md and .png")


def as_json(outcome: Outcome) -> dict[str, object]:
    """Return the run for `latest.json`."""
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),  # noqa: TID251 - a report
        "profile": outcome.profile.name,
        "machine": dict(outcome.machine),
        "postgres": dict(outcome.settings),
        "figures": [figure.as_json() for figure in outcome.figures],
        "failed": dict(outcome.failed),
    }


def page(outcome: Outcome) -> str:
    """Return the run as a page."""
    facts = {**outcome.machine, **{f"postgres {k}": v for k, v in outcome.settings.items()}}
    lines = [
        "# Benchmarks",
        "",
        f"Written by `make bench` (profile `{outcome.profile.name}`). Everything, producers and",
        "broker included, runs on this one machine. Compare figures of one run only; ratios hold",
        "better than rates. Values are medians.",
        "",
        "C1 is full Avro decode + COPY of the same events into a table of the same shape with the",
        "same durability; C2 the same with only the routing fields decoded. Both read from Kafka",
        "and store their positions in the transaction of the batch, as the matcher does.",
        "",
        "![the figures of this run](latest.png)",
        "",
        *sections(outcome.figures),
        *(f"**{name} failed**: {reason}\n" for name, reason in outcome.failed.items()),
        "## Measured on",
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
    ]
    return "\n".join(lines) + "\n"


def sections(figures: Sequence[Figure]) -> list[str]:
    """Return one table for each section."""
    lines: list[str] = []
    for section in dict.fromkeys(figure.section for figure in figures):
        lines += [
            f"## {section.replace('_', ' ')}",
            "",
            "| what | ratio | value | unit | note |",
            "|---|---|---:|---|---|",
        ]
        lines += [
            f"| {f.what} | {ratios(f)} | {number(f.value)} | {f.unit} | {f.note} |"
            for f in figures
            if f.section == section
        ]
        lines.append("")
    return lines
