"""The error tree: stable codes, complete problems, one answer for everything unknown."""

import re

import pytest
from relay_common import errors
from relay_common.errors import (
    FieldError,
    LimitHit,
    RelayError,
    ResyncRequired,
    StoreUnavailable,
    ValidationFailed,
    WaitpointNotFound,
    catalogue,
)
from relay_common.problems import MAX_LISTED, problem

CATALOGUE = list(catalogue())


def test_codes_are_unique():
    codes = [error.code for error in CATALOGUE]
    assert len(codes) == len(set(codes)) > 40


@pytest.mark.parametrize("error", CATALOGUE, ids=lambda error: error.code)
def test_every_code_speaks_for_itself(error: type[RelayError]):
    assert re.fullmatch(r"[a-z]+(_[a-z]+)*", error.code)
    assert 400 <= error.status <= 599
    assert error.__doc__
    body = problem(error())
    assert body["status"] == error.status
    assert body["code"] == error.code
    assert body["type"] == f"urn:relay:problem:{error.code}"
    assert str(body["detail"]).endswith((".", "Allow", "seconds"))


@pytest.mark.parametrize("error", CATALOGUE, ids=lambda error: error.code)
def test_the_tree_at_the_top_names_every_status_and_the_file_every_class(error: type[RelayError]):
    drawn = str(errors.__doc__)
    assert str(error.status) in drawn


def test_a_problem_carries_limit_faults_extra_members_and_retry():
    fault = FieldError("/match/event_type", "expected text, found a number")
    body = problem(
        ValidationFailed("Expected this.", limit=LimitHit("tags", 64, 65), errors=[fault])
    )
    assert body["limit"] == {"name": "tags", "value": 64, "got": 65}
    assert body["errors"] == [{"pointer": fault.pointer, "detail": fault.detail}]
    resync = problem(ResyncRequired(reason="ahead_of_head", epoch=3, oldest=1, head=9))
    assert (resync["epoch"], resync["oldest"], resync["head"]) == (3, 1, 9)
    assert problem(StoreUnavailable())["retry_after"] == 1


def test_extra_members_never_replace_those_of_the_problem():
    assert problem(ResyncRequired(code="other", status=200))["code"] == "resync_required"
    assert problem(ResyncRequired(code="other", status=200))["status"] == 409


def test_not_found_says_the_same_whoever_asks():
    assert problem(WaitpointNotFound()) == problem(WaitpointNotFound())
    assert "instance" not in problem(WaitpointNotFound())


def test_a_body_full_of_faults_gives_a_bounded_answer():
    many = [FieldError(f"/{index}", "x") for index in range(5000)]
    listed = problem(ValidationFailed(errors=many))["errors"]
    assert isinstance(listed, list)
    assert len(listed) == MAX_LISTED
