"""What happened, as a table, and whether the sums are right."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.console import Console
from rich.table import Table

from demo.plan import Wait
from demo.waiters import Json


@dataclass(frozen=True, slots=True)
class Story:
    """Everything the story has seen, gathered at its end."""

    waits: dict[str, Wait]  # by waitpoint id
    answers: dict[str, Json]  # by waitpoint id: the answer to the opening
    waitpoints: dict[str, Json]  # by id: as they stand at the end
    events: Sequence[Json]  # as GET /v1/events lists them
    pushed: dict[tuple[str, str], float]  # when each event was handed to the broker
    acked: dict[str, list[Json]]  # leased and acknowledged records by waiter
    early: int  # early_event records in the waiters' mailboxes
    push_seconds: float
    record_seconds: float  # from the first event pushed in the rush to the last one recorded
    rush_events: int
    quiet: frozenset[tuple[str, str]]  # events of the quiet morning

    def state(self, name: str) -> int:
        """Return how many waitpoints ended in the state `name`."""
        return sum(1 for w in self.waitpoints.values() if w["state"] == name)

    def resolved_at_open(self) -> int:
        """Return how many openings answered `resolved` because their event was there already."""
        return sum(1 for answer in self.answers.values() if answer["state"] == "resolved")

    def early_events(self) -> int:
        """Return how many early_event records there must be.

        One for each addressed event, at once, in the mailbox it names; one for each other event
        that was there before its waitpoint, when the waitpoint takes it.
        """
        came_first = [w for i, w in self.waits.items() if self.answers[i]["state"] == "resolved"]
        unaddressed = sum(1 for wait in came_first if wait.event_type != "shipment.dispatched")
        return unaddressed + sum(1 for event in self.events if event.get("recipient"))

    def records(self) -> int:
        """Return how many records were leased and acknowledged."""
        return sum(len(records) for records in self.acked.values())


def latencies(story: Story, quiet: bool) -> list[float]:
    """Return milliseconds from handing an event to the broker to its record in the mailbox."""
    found: list[float] = []
    for record in (r for records in story.acked.values() for r in records):
        waitpoint = record["body"]["waitpoint"]
        key = (waitpoint["match"]["event_type"], waitpoint["match"]["correlation_key"])
        live = story.answers[waitpoint["id"]]["state"] == "open"
        if record["type"] == "waitpoint.resolved" and live and (key in story.quiet) == quiet:
            found.append((seconds(record["appended_at"]) - story.pushed[key]) * 1000)
    return sorted(found)


def seconds(text: str) -> float:
    """Return seconds since 1970 of an RFC 3339 time."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which `share` of the sorted `values` lie; 0 of none."""
    return values[min(len(values) - 1, int(len(values) * share))] if values else 0.0


def rows(story: Story) -> list[tuple[str, str]]:
    """Return the table's rows: what, how many."""
    at_open = story.resolved_at_open()
    rules = Counter(str(e["rule_id"]) for e in story.events if e["disposition"] != "matched")
    return [
        ("events pushed to Kafka", f"{len(story.pushed):,}"),
        ("events recorded", f"{len(story.events):,}"),
        ("  matched", f"{sum(e['disposition'] == 'matched' for e in story.events):,}"),
        (
            "  held for whoever opens next",
            f"{sum(e['disposition'] == 'held' for e in story.events):,}",
        ),
        *((f"    because {rule}", f"{count:,}") for rule, count in sorted(rules.items())),
        ("waitpoints opened", f"{len(story.waitpoints):,}"),
        ("  resolved at open (the event came first)", f"{at_open:,}"),
        (
            "  resolved by event (the waitpoint came first)",
            f"{story.state('resolved') - at_open:,}",
        ),
        ("  expired", f"{story.state('expired'):,}"),
        ("  cancelled", f"{story.state('cancelled'):,}"),
        ("mailbox records leased and acknowledged", f"{story.records():,}"),
        *speed(story),
    ]


def speed(story: Story) -> list[tuple[str, str]]:
    """Return the rows about time."""
    shown: list[tuple[str, str]] = []
    for name, quiet in (("quiet, 1,000 events/s", True), ("rush, as fast as it goes", False)):
        found = latencies(story, quiet)
        p50, p99 = percentile(found, 0.5), percentile(found, 0.99)
        shown.append((f"event to mailbox, p50 / p99 ({name})", f"{p50:,.0f} / {p99:,.0f} ms"))
    rate = story.rush_events / story.record_seconds
    return [*shown, ("events per second recorded in the rush", f"{rate:,.0f}")]


def faults(story: Story) -> list[str]:
    """Return every sum that is off, as sentences; none when the story is right."""
    wanted = Counter(wait.ends for wait in story.waits.values())
    sums = {
        "events recorded": (len(story.pushed), len(story.events)),
        "waitpoints": (len(story.waits), len(story.waitpoints)),
        **{f"waitpoints {s}": (n, story.state(s)) for s, n in wanted.items()},
        "records leased and acknowledged": (2 * len(story.waits), story.records()),
        "distinct records": (story.records(), len(distinct(story))),
        "early events in mailboxes": (story.early_events(), story.early),
    }
    off = [f"expected {e:,} {name}, found {f:,}" for name, (e, f) in sums.items() if e != f]
    wrong = [
        i for i, w in story.waits.items() if story.waitpoints.get(i, {}).get("state") != w.ends
    ]
    return off + [f"expected {story.waits[i].ends}: {story.waitpoints.get(i)}" for i in wrong[:3]]


def distinct(story: Story) -> set[tuple[str, str]]:
    """Return the record ids each waiter has acknowledged."""
    return {(owner, str(r["id"])) for owner, records in story.acked.items() for r in records}


def show(story: Story, console: Console) -> None:
    """Print the table."""
    table = Table(title="What happened", title_justify="left", show_header=False)
    table.add_column("what")
    table.add_column("how many", justify="right")
    for row in rows(story):
        table.add_row(*row)
    console.print(table)


def show_timeline(story: Story, console: Console) -> None:
    """Print the life of one waitpoint that was open when its event came."""
    chosen = next(
        i
        for i, w in story.waits.items()
        if w.condition and w.ends == "resolved" and story.answers[i]["state"] == "open"
    )
    waitpoint, wait = story.waitpoints[chosen], story.waits[chosen]
    records = [r for r in story.acked[wait.waiter] if r["body"]["waitpoint"]["id"] == chosen]
    event = waitpoint["resolution"]["event"]
    moments = [
        (waitpoint["created_at"], f"{wait.waiter} opens it for {wait.event_type}"),
        (event["received_at"], f"the event is recorded; {wait.condition} is true"),
        (waitpoint["resolution"]["responded_at"], "resolved"),
        *((r["appended_at"], f"{r['type']} is record {r['seq']} of the mailbox") for r in records),
    ]
    console.print(f"\n[bold]One waitpoint's timeline[/bold]  {chosen}")
    for at, what in sorted(moments, key=lambda moment: seconds(moment[0])):
        console.print(f"  {at}  {what}", highlight=False, soft_wrap=True)
