"""Why an event was recorded as it was: one rule per event (spec, Matching; design D9)."""

from enum import IntEnum


class Rule(IntEnum):
    """The rule that decided about an event when it arrived; `matcher.rule` holds the same list."""

    exact_key = 0  # taken by at least one waitpoint on its exact key
    no_waitpoint = 1  # no active event waitpoint waits on this key
    recipient_other = 2  # those that wait are not the recipient it names
    condition_false = 3  # a condition did not come out as exactly true
    condition_error = 4  # a condition could not be evaluated; the reason says why
    deadline_passed = 5  # those that wait were overdue


# When several waitpoints refuse one event, the refusal that a person can act upon is recorded.
WEIGHT = {
    Rule.exact_key: 5,
    Rule.condition_error: 4,
    Rule.condition_false: 3,
    Rule.recipient_other: 2,
    Rule.deadline_passed: 1,
    Rule.no_waitpoint: 0,
}


def weightier(left: Rule, right: Rule) -> Rule:
    """Return the one of two rules that is recorded."""
    return left if WEIGHT[left] >= WEIGHT[right] else right
