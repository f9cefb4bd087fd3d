"""Typed values of requests: times, durations, texts, and faults that say where and what."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import pytest
from pydantic import Field, ValidationError
from pydantic_core import PydanticCustomError
from relay_common.errors import DeadlineRequired, UnknownField, ValidationFailed
from relay_common.problems import problem
from relay_common.wire import (
    Duration,
    KeyText,
    Time,
    Wire,
    parse_duration,
    parse_time,
    pointer,
    refused,
    rfc3339,
)


class Part(Wire):
    event_type: KeyText
    kind: Literal["question", "event"] = "event"


class Whole(Wire):
    match: Part
    expires_at: Time
    every: Duration | None = None
    parts: Annotated[list[Part], Field(min_length=1)] | None = None


GOOD = {"match": {"event_type": "paid"}, "expires_at": "2030-01-01T00:00:00Z"}


def fault_of(body: object) -> UnknownField | ValidationFailed:
    with pytest.raises(ValidationError) as caught:
        Whole.model_validate(body)
    return refused(caught.value.errors())


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2030-01-31T12:00:00Z", "2030-01-31T12:00:00.000000Z"),
        ("2030-01-31t12:00:00.5z", "2030-01-31T12:00:00.500000Z"),
        ("2030-01-31T12:00:00.123456789+02:00", "2030-01-31T10:00:00.123456Z"),
        ("2030-01-01T00:30:00+01:00", "2029-12-31T23:30:00.000000Z"),
        ("2028-02-29T00:00:00-00:00", "2028-02-29T00:00:00.000000Z"),
    ],
)
def test_times_are_answered_in_utc(text: str, moment: str):
    assert rfc3339(parse_time(text)) == moment


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("2030-01-31T12:00:00", "no offset"),
        ("2016-12-31T23:59:60Z", "leap second"),
        ("2030-02-30T00:00:00Z", "a time that exists"),
        ("0001-01-01T00:00:00+01:00", "a time that exists"),
        ("9999-12-31T23:59:59-01:00", "a time that exists"),
        ("2030-01-31", "another form"),
        ("٢030-01-31T12:00:00Z", "another form"),
        ("2030-01-31T12:00:00Z\n", "another form"),
        (1893456000, "a number"),
        (None, "null"),
    ],
)
def test_other_times_are_refused_with_what_was_found(given: object, says: str):
    with pytest.raises(PydanticCustomError, match=says):
        parse_time(given)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (30, 30),
        (0.5, 0.5),
        (0, 0),
        ("PT30S", 30),
        ("PT1H30M", 5400),
        ("P1DT1S", 86401),
        ("P1W", 604800),
    ],
)
def test_durations_are_seconds_or_iso_8601(given: object, seconds: float):
    assert parse_duration(given) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "given",
    [-1, "-PT1S", "P1M", "P1Y", "1 day", "30", True, None, [], 1e300, 10**400, "P", "", "PT"],
)
def test_other_durations_are_refused(given: object):
    with pytest.raises(PydanticCustomError):
        parse_duration(given)


def test_an_unknown_field_is_named_by_its_pointer():
    error = fault_of({**GOOD, "a/b~c": 1})
    assert isinstance(error, UnknownField)
    assert error.errors[0].pointer == "/a~1b~0c"


def test_faults_name_their_place_and_never_repeat_the_value():
    error = fault_of(
        {**GOOD, "match": {"event_type": 5}, "parts": [{"event_type": "x", "kind": "secret"}]}
    )
    assert isinstance(error, ValidationFailed)
    assert [fault.pointer for fault in error.errors] == ["/match/event_type", "/parts/0/kind"]
    assert error.errors[0].detail == "expected a valid string, found a number"
    assert "secret" not in str(problem(error))


def test_a_list_that_is_too_short_is_told_in_the_words_of_the_api():
    error = fault_of({**GOOD, "parts": []})
    assert [fault.detail for fault in error.errors] == ["expected at least 1, found fewer"]


@pytest.mark.parametrize("text", ["", "x" * 513, "é" * 257, "a\x00b"])
def test_keys_are_1_to_512_bytes_without_nul(text: str):
    error = fault_of({**GOOD, "match": {"event_type": text}})
    assert error.errors[0].pointer == "/match/event_type"


def test_keys_of_512_bytes_are_taken():
    assert Whole.model_validate({**GOOD, "match": {"event_type": "é" * 256}})


@pytest.mark.parametrize("value", ["5", 5.5, True, "true"])
def test_values_of_another_type_are_not_bent(value: object):
    class Counted(Wire):
        count: int

    with pytest.raises(ValidationError):
        Counted.model_validate({"count": value})


def test_a_validator_may_name_its_own_code():
    faults = [{"type": "deadline_required", "loc": ("expires_at",), "msg": "m", "input": None}]
    assert isinstance(refused(faults), DeadlineRequired)


def test_pointers_are_rfc_6901():
    assert pointer([]) == ""
    assert pointer(["events", 3, "a/b", "m~n"]) == "/events/3/a~1b/m~0n"


def test_a_naive_looking_time_never_takes_the_process_zone():
    assert parse_time("2030-01-01T00:00:00Z") == datetime(2030, 1, 1, tzinfo=UTC)
