"""Matching, the protocol table, deadlines and digests: pure rules."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from relay_common.errors import DeadlinePassed, DeadlineTooFar
from relay_common.match_key import MatchKey
from relay_matcher.domain.digest import subject_digest
from relay_matcher.domain.event import Event
from relay_matcher.domain.matching import CONDITION_SECONDS, SlowConditions, Verdicts, match
from relay_matcher.domain.protocol_state import protocol_state
from relay_matcher.domain.rules import Rule, weightier
from relay_matcher.domain.waitpoint import TRANSITIONS, Active, deadline_fault

AT = datetime(2026, 11, 30, 12, tzinfo=UTC)
KEY = MatchKey("acme", "test", "t", "k")


def waiting(waiter: str = "agent:a", condition: str | None = None, **given: Any) -> Active:
    """Return an active event waitpoint."""
    fields: dict[str, Any] = {
        "id": uuid.uuid4(),
        "key": KEY,
        "key_hash": 1,
        "waiter": waiter,
        "kind": "event",
        "profile": None,
        "condition": condition,
        "expires_at": AT + timedelta(hours=1),
        "revision": 1,
        "activation": 1,
        "deliver_topic": None,
        "default_response": None,
        "opened": b"{",
        **given,
    }
    return Active(**fields)


def event(data: bytes = b"{}", recipient: str | None = None, key: MatchKey = KEY) -> Event:
    """Return an event."""
    return Event(key, 1, recipient, None, None, uuid.uuid4().bytes, True, None, 0, len(data), data)


def test_each_waitpoint_takes_the_first_event_that_fits() -> None:
    events = [event(b'{"n":1}'), event(b'{"n":2}'), event(b'{"n":3}', "agent:b")]
    waits = [
        waiting("agent:a"),
        waiting("agent:b", "event.n >= 2"),
        waiting("agent:c", "event.n > 2"),
    ]
    outcome = match(waits, events, AT)
    assert outcome.taken == {0: 0, 1: 1}
    rules = [outcome.rule(place) for place in range(3)]
    assert rules == [Rule.exact_key, Rule.exact_key, Rule.recipient_other]


def test_overdue_waitpoint_takes_nothing() -> None:
    outcome = match([waiting(expires_at=AT)], [event()], AT)
    assert (outcome.taken, outcome.rule(0)) == ({}, Rule.deadline_passed)


def test_refused_pair_gives_the_next_event() -> None:
    outcome = match([waiting()], [event(), event()], AT, refused={(0, 0)})
    assert outcome.taken == {0: 1}


def test_another_key_is_no_match() -> None:
    other = MatchKey("acme", "test", "t", "other")
    outcome = match([waiting()], [event(key=other)], AT)
    assert (outcome.taken, outcome.rule(0)) == ({}, Rule.no_waitpoint)


def test_slow_conditions_cut_a_batch_and_fail_a_lone_event() -> None:
    waiters = [waiting(f"agent:{n}", f"event.n >= {n}") for n in range(3)]
    used = iter([0.0, CONDITION_SECONDS + 1, CONDITION_SECONDS + 1])
    lone = [event(b'{"n": 5}')]
    outcome = match(waiters, lone, AT, verdicts=Verdicts(lone, lambda: next(used)))
    assert outcome.taken == {0: 0}, "the first was judged in time, the others were not"
    assert "took more than 5 s" in outcome.reasons[0]

    two = [event(b'{"n": 5}'), event(b'{"n": 6}')]
    with pytest.raises(SlowConditions):
        match(waiters, two, AT, verdicts=Verdicts(two, lambda: CONDITION_SECONDS + 1))
    assert match(waiters, two, AT, verdicts=Verdicts(two)).taken == {0: 0, 1: 0, 2: 0}


def test_the_rule_that_helps_most_is_recorded() -> None:
    assert weightier(Rule.condition_false, Rule.condition_error) is Rule.condition_error
    assert weightier(Rule.exact_key, Rule.condition_error) is Rule.exact_key
    assert weightier(Rule.deadline_passed, Rule.no_waitpoint) is Rule.deadline_passed


@pytest.mark.spec(
    "WP-PROTOCOL-OPEN",
    "WP-PROTOCOL-AUTH",
    "WP-PROTOCOL-STALLED",
    "WP-PROTOCOL-RESOLVED",
    "WP-PROTOCOL-CLOSED",
    "WP-PROTOCOL-OWNER",
)
@pytest.mark.parametrize(
    ("kind", "profile", "state", "a2a", "mcp"),
    [
        ("question", None, "open", "TASK_STATE_INPUT_REQUIRED", "input_required"),
        ("review", None, "open", "TASK_STATE_INPUT_REQUIRED", "input_required"),
        ("review", "access_approval", "open", "TASK_STATE_AUTH_REQUIRED", "input_required"),
        ("review", "guardian_approval", "open", "TASK_STATE_AUTH_REQUIRED", "input_required"),
        ("event", None, "open", None, None),
        ("question", None, "stalled", None, None),
        ("event", None, "resolved", "TASK_STATE_WORKING", "working"),
        ("review", None, "resolved", "TASK_STATE_WORKING", "working"),
        ("review", None, "expired", None, None),
        ("review", None, "cancelled", None, None),
    ],
)
def test_protocol_table(
    kind: str, profile: str | None, state: str, a2a: str | None, mcp: str | None
) -> None:
    assert protocol_state(kind, profile, state) == {"a2a": a2a, "mcp": mcp}


@pytest.mark.spec("WP-LIMIT-WAIT")
def test_deadline_rule() -> None:
    assert deadline_fault(AT + timedelta(days=30), AT) is None
    assert isinstance(deadline_fault(AT + timedelta(days=30, microseconds=1), AT), DeadlineTooFar)
    assert isinstance(deadline_fault(AT, AT), DeadlinePassed)


@pytest.mark.spec("WP-EDGE-OPEN", "WP-EDGE-STALLED")
def test_transitions_are_the_specs() -> None:
    assert TRANSITIONS["open"] == {"resolved", "expired", "cancelled", "stalled"}
    assert TRANSITIONS["stalled"] == {"open", "resolved", "expired", "cancelled"}
    assert not any(TRANSITIONS[state] for state in ("resolved", "expired", "cancelled"))


@pytest.mark.spec("WP-OBJ-DIGEST")
def test_digest_is_of_the_canonical_form() -> None:
    assert subject_digest({"a": 1.0, "b": [True, "é"]}) == subject_digest(
        {"b": [True, "é"], "a": 1}
    )
    assert subject_digest({"a": "é"}) != subject_digest({"a": "e\u0301"})
    assert subject_digest({}) == "sha-256:RBNvo1WzZ4oRRq0W9-hknpT7T8If536DEMBg9hyq_4o"
