"""Stage 1 found the waitpoints of each key; here they are given their events (spec, Matching)."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from relay_common.match_key import MatchKey

from relay_matcher.domain.condition import Verdict, compiled, view_of
from relay_matcher.domain.event import Event
from relay_matcher.domain.rules import Rule, weightier
from relay_matcher.domain.waitpoint import Active

# Far below the poll limit of the consumer and the server's limit on an idle transaction.
CONDITION_SECONDS = 5.0
OUT_OF_TIME = Verdict(
    False, f"the conditions on one event took more than {CONDITION_SECONDS:.0f} s"
)
Pair = tuple[int, int]  # a waitpoint by its place among those that wait, an event by its own


def unhurried() -> float:
    """Return no seconds: nobody waits for this batch."""
    return 0.0


@dataclass(slots=True)
class Outcome:
    """What a batch decides: who takes which event, and a rule for each; all by place."""

    taken: dict[int, int] = field(default_factory=dict[int, int])
    rules: dict[int, Rule] = field(default_factory=dict[int, Rule])
    reasons: dict[int, str] = field(default_factory=dict[int, str])

    def rule(self, place: int) -> Rule:
        """Return the rule that is recorded for the event at `place`."""
        return self.rules.get(place, Rule.no_waitpoint)

    def refuse(self, place: int, rule: Rule, reason: str | None = None) -> None:
        """Note why a waitpoint did not take the event at `place`."""
        self.rules[place] = weightier(self.rule(place), rule)
        if reason is not None:
            self.reasons.setdefault(place, reason)

    def take(self, waiting: int, place: int) -> None:
        """Note that the waitpoint at `waiting` takes the event at `place`."""
        self.taken[waiting] = place
        self.rules[place] = Rule.exact_key


class SlowConditions(Exception):
    """The conditions of a batch take too long for one transaction: try a smaller batch."""


class Verdicts:
    """The verdicts of one batch: each condition meets each event once, however many wait."""

    def __init__(self, events: Sequence[Event], spent: Callable[[], float] = unhurried) -> None:
        """`spent` tells the seconds since the batch began."""
        self.events = events
        self.spent = spent
        self.views: dict[int, dict[str, object] | str] = {}
        self.known: dict[tuple[str, int], Verdict] = {}

    def of(self, condition: str, place: int) -> Verdict:
        """Return what `condition` says of the event at `place`.

        Raises SlowConditions when a batch of several events has used up its time (design D9). A
        lone event cannot be cut: what is left of its conditions fails, visibly.
        """
        verdict = self.known.get((condition, place))
        if verdict is None:
            if self.spent() > CONDITION_SECONDS:
                if len(self.events) > 1:
                    raise SlowConditions
                return OUT_OF_TIME
            view = self.views.get(place)
            if view is None:
                view = self.views[place] = view_of(self.events[place])
            verdict = self.known[condition, place] = compiled(condition).evaluate(view)
        return verdict


def match(
    waiting: Sequence[Active],
    events: Sequence[Event],
    at: datetime,
    refused: Collection[Pair] = (),
    verdicts: Verdicts | None = None,
) -> Outcome:
    """Give each waitpoint the first event, in order, that recipient and condition allow.

    `at` is the database's clock, read after the locks: an overdue waitpoint takes nothing (design
    D5). `refused` are pairs of waitpoint and place whose waiter took that event before (design D2).
    """
    by_key = places_by_key(events, {waitpoint.key for waitpoint in waiting})
    verdicts = verdicts or Verdicts(events)
    outcome = Outcome()
    for number, waitpoint in enumerate(waiting):
        for place in by_key.get(waitpoint.key, ()):
            if waitpoint.expires_at <= at:
                outcome.refuse(place, Rule.deadline_passed)
            elif (number, place) not in refused and accepts(waitpoint, place, verdicts, outcome):
                outcome.take(number, place)
                break
    return outcome


def accepts(waitpoint: Active, place: int, verdicts: Verdicts, outcome: Outcome) -> bool:
    """Tell whether `waitpoint` takes the event at `place`; note in `outcome` why it does not."""
    recipient = verdicts.events[place].recipient
    if recipient is not None and recipient != waitpoint.waiter:
        outcome.refuse(place, Rule.recipient_other)
        return False
    if waitpoint.condition is None:
        return True
    verdict = verdicts.of(waitpoint.condition, place)
    if verdict.error is not None:
        outcome.refuse(place, Rule.condition_error, verdict.error)
    elif not verdict.matches:
        outcome.refuse(place, Rule.condition_false)
    return verdict.matches


def places_by_key(
    events: Sequence[Event], keys: Collection[MatchKey]
) -> Mapping[MatchKey, Sequence[int]]:
    """Return the places of the events of each of `keys`, in the order of the batch."""
    found: defaultdict[MatchKey, list[int]] = defaultdict(list)
    if keys:
        for place, event in enumerate(events):
            if event.key in keys:
                found[event.key].append(place)
    return found
