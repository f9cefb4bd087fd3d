"""Conditions: what is refused, what matches, and that nothing a tenant writes harms the matcher."""

import uuid
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_common.errors import ConditionInvalid
from relay_common.match_key import MatchKey
from relay_matcher.domain.condition import Condition, compiled, view_of
from relay_matcher.domain.event import Event


def event(data: Any, **given: Any) -> Event:
    """Return an event with `data`, which may be raw bytes."""
    raw = data if isinstance(data, bytes) else orjson.dumps(data)
    fields: dict[str, Any] = {
        "key": MatchKey("acme", "test", "order.paid", "o-1"),
        "key_hash": 1,
        "recipient": None,
        "source": "shop",
        "source_id": "e-1",
        "event_id": uuid.uuid4().bytes,
        "direct": True,
        "dataref": None,
        "data_at": 0,
        "data_size": len(raw),
        "value": raw,
        **given,
    }
    return Event(**fields)


@pytest.mark.spec("WP-OBJ-CONDITION", "WP-MATCH-CONDITION")
@pytest.mark.parametrize(
    ("source", "data", "matches", "errs"),
    [
        ("event.data.amount > 100", {"amount": 101}, True, False),
        ("event.amount > 100", {"amount": 101}, True, False),
        ("event.data.amount > 100", {"amount": 100}, False, False),
        ("event.data.amount > 100", {}, False, True),
        ("has(event.data.amount) && event.data.amount > 100", {}, False, False),
        ("event.source == 'shop' && event.correlation_key == 'o-1'", {}, True, False),
        ("event.id == 'e-1'", {"id": "another"}, True, False),
        ("event.data.id == 'another'", {"id": "another"}, True, False),
        ("event.data.items.exists(i, i.sku == 'x')", {"items": [{"sku": "x"}]}, True, False),
        ("event.data.ok", {"ok": 1}, False, True),
        ("event.data.ok", {"ok": "true"}, False, True),
        ("event.data.n == 1", {"n": 1.0}, True, False),
        ("event.data.n > 0", b'{"n": 1180591620717411303424}', True, False),
        ("1 / event.data.n == 1", {"n": 0}, False, True),
        ("timestamp(event.data.t) < timestamp('2027-01-01T00:00:00Z')", {"t": "x"}, False, True),
    ],
)
def test_only_exactly_true_matches(source: str, data: Any, matches: bool, errs: bool) -> None:
    verdict = compiled(source).evaluate(view_of(event(data)))
    assert (verdict.matches, verdict.error is not None) == (matches, errs), verdict.error


@pytest.mark.parametrize(
    "source",
    [
        "",
        "  ",
        "\n",
        "event.",
        "{}",
        "1",
        "'text'",
        "event.a == ",
        "unknown.a == 1",
        "x" * 1025,
        "event.l.map(i, i) == []",
        "event.l . filter (i, true) == []",
        "[1].map(i, i)[0] == 1",
    ],
)
def test_bad_empty_and_unbounded_conditions_are_refused(source: str) -> None:
    with pytest.raises(ConditionInvalid):
        Condition(source)


def test_a_word_in_a_text_is_no_macro() -> None:
    verdict = Condition("event.data.a == 'map(x, y)'").evaluate({"data": {"a": "map(x, y)"}})
    assert verdict.matches


@pytest.mark.parametrize(
    "data",
    [b"{", b"not json", b"[" * 5000 + b"]" * 5000, b'"' + b"x" * 20_000 + b'"', b"\xff"],
)
def test_data_that_cannot_be_shown_are_an_error_with_a_reason(data: bytes) -> None:
    verdict = compiled("event.data == event.data").evaluate(view_of(event(data)))
    assert not verdict.matches
    assert verdict.error


def test_deep_data_are_an_error() -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    assert "levels" in str(compiled("true").evaluate(view_of(event(deep))).error)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(JSON)
def test_any_json_is_judged_without_harm(data: Any) -> None:
    try:
        raw = orjson.dumps(data)
    except (TypeError, orjson.JSONEncodeError):
        return
    for source in ("event.data.a > 1", "event.a == 'x'", "event.data.all(i, i == i)"):
        verdict = compiled(source).evaluate(view_of(event(raw)))
        assert verdict.matches in (True, False)
        assert verdict.error is None or not verdict.matches
