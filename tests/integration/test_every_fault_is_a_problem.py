"""Whatever is wrong with a request, the answer is a problem (RFC 9457) with a stable code."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import httpx
import pytest

from tests.integration.clients import EVER, Program, event, opening
from tests.integration.conftest import Place

Make = Callable[..., Program]
UNKNOWN = {"wp_": 16, "ev_": 24}


def problem(answer: httpx.Response, status: int, code: str) -> dict:
    """Check that the answer is the problem `code` and return it."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    body = answer.json()
    assert (answer.status_code, body["status"], body["code"]) == (status, status, code), body
    assert body["type"]
    assert body["title"]
    assert body["detail"]
    return body


POSTS = ("/v1/events", "/v1/waitpoints", "/v1/mailboxes/me/leases", "/v1/mailboxes/me/acks")


@pytest.mark.parametrize("path", POSTS)
def test_bodies_that_are_no_json_are_refused_as_such(program: Make, path: str) -> None:
    caller = program("client:shop")
    for body in (
        b"{",
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b'"\\ud800"',
        b'{"a": "\\u0000"}',
        b"\xff\xfe",
        b"[" * 5000 + b"]" * 5000,
    ):
        answer = caller.request(
            "POST", path, content=body, headers={"Content-Type": "application/json"}
        )
        problem(answer, 400, "malformed_json")
    empty = caller.request("POST", path, content=b"", headers={"Content-Type": "application/json"})
    assert empty.status_code in (400, 422), empty.text
    plain = caller.request("POST", path, content=b"a=1", headers={"Content-Type": "text/plain"})
    problem(plain, 415, "unsupported_media_type")


@pytest.mark.parametrize("path", POSTS)
def test_unknown_fields_are_named(program: Make, place: Place, path: str) -> None:
    good = {
        "/v1/events": event("order.paid", place.key()),
        "/v1/waitpoints": opening("order.paid", place.key()),
        "/v1/mailboxes/me/leases": {"max_records": 1},
        "/v1/mailboxes/me/acks": {"lease_id": "ls_x", "epoch": 1, "seqs": [1]},
    }[path]
    answer = program("client:shop").request("POST", path, {**good, "zz/top~": 1})
    body = problem(answer, 422, "unknown_field")
    assert [e["pointer"] for e in body["errors"]] == ["/zz~1top~0"]


@pytest.mark.parametrize("path", POSTS)
def test_missing_and_wrong_tokens_are_refused_before_anything_else(
    program: Make, place: Place, path: str
) -> None:
    caller = program("client:shop")
    for token in ("", "Bearer", "Bearer x.y.z", f"Basic {caller.token}", f"Bearer {caller.token}x"):
        answer = caller.request("POST", path, content=b"{", headers={"Authorization": token})
        body = problem(answer, 401, "invalid_token")
        assert "www-authenticate" in answer.headers
        assert caller.token not in str(body)
    narrow = program("client:shop", scope="nothing:here")
    problem(narrow.request("POST", path, {}), 403, "insufficient_scope")


@pytest.mark.spec("WP-CREATE-KEY")
@pytest.mark.parametrize("path", POSTS)
def test_a_mutation_without_idempotency_key_is_refused(program: Make, path: str) -> None:
    caller = program("client:shop")
    answer = caller.request("POST", path, {}, headers={"Idempotency-Key": ""})
    assert answer.json()["code"] in ("idempotency_key_required", "idempotency_key_invalid")
    raw = caller.http.post(
        caller.base_url + path, json={}, headers={"Authorization": f"Bearer {caller.token}"}
    )
    problem(raw, 400, "idempotency_key_required")


def test_an_idempotency_key_replays_its_answer_and_refuses_another_payload(
    program: Make, place: Place
) -> None:
    caller, key = program("client:shop"), {"Idempotency-Key": str(uuid4())}
    body = opening("order.paid", place.key())
    first = caller.request("POST", "/v1/waitpoints", body, headers=key)
    later = {**body, "expires_at": "2027-01-01T00:00:00Z"}
    again = caller.request(
        "POST", "/v1/waitpoints", {**later, "expires_at": body["expires_at"]}, headers=key
    )
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    other = opening("order.paid", place.key("other"))
    problem(
        caller.request("POST", "/v1/waitpoints", other, headers=key), 422, "idempotency_key_reused"
    )
    assert len(caller.pages("/v1/waitpoints")) == 1


def test_one_key_in_flight_many_times_opens_once(program: Make, place: Place) -> None:
    caller, key = program("client:shop"), {"Idempotency-Key": str(uuid4())}
    body, barrier = opening("order.paid", place.key()), threading.Barrier(8)

    def send() -> httpx.Response:
        barrier.wait(10)
        return caller.request("POST", "/v1/waitpoints", body, headers=key)

    with ThreadPoolExecutor(8) as pool:
        answers = [done.result() for done in [pool.submit(send) for _ in range(8)]]
    opened = [a for a in answers if a.status_code == 201]
    assert len({a.content for a in opened}) == 1
    assert sum("idempotent-replayed" not in a.headers for a in opened) == 1
    for answer in answers:
        if answer.status_code != 201:
            problem(answer, 409, "idempotency_in_progress")
    assert len(caller.pages("/v1/waitpoints")) == 1


@pytest.mark.spec("WP-DEADLINE-FIXED")
def test_the_first_deadline_stands_when_an_opening_is_repeated(program: Make, place: Place) -> None:
    caller, key = program("client:shop"), {"Idempotency-Key": str(uuid4())}
    first = caller.request("POST", "/v1/waitpoints", opening("a", place.key(), 600), headers=key)
    again = caller.request("POST", "/v1/waitpoints", opening("a", place.key(), 900), headers=key)
    assert again.content == first.content


@pytest.mark.spec("WP-ONE-ACTIVE")
def test_a_second_opening_on_the_same_key_names_the_first(program: Make, place: Place) -> None:
    caller = program("client:shop")
    opened = caller.open("order.paid", place.key())
    again = caller.request("POST", "/v1/waitpoints", opening("order.paid", place.key()))
    assert problem(again, 409, "waitpoint_already_active")["id"] == opened["id"]


def test_large_bodies_and_values_are_refused_with_their_limit(program: Make, place: Place) -> None:
    caller = program("client:shop")
    huge = b'{"a": "' + b"x" * (20 << 20) + b'"}'
    answer = caller.request(
        "POST", "/v1/waitpoints", content=huge, headers={"Content-Type": "application/json"}
    )
    assert problem(answer, 413, "payload_too_large")["limit"]
    data = event("order.paid", place.key(), data={"a": "x" * (257 << 10)})
    limit = problem(caller.request("POST", "/v1/events", data), 413, "payload_too_large")["limit"]
    assert limit["value"] == 256 << 10
    many = {"events": [event("order.paid", place.key())] * 1001}
    assert caller.request("POST", "/v1/events", many).status_code in (413, 422)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/nothing", 404, "not_found"),
        ("GET", "/", 404, "not_found"),
        ("DELETE", "/v1/waitpoints", 405, "method_not_allowed"),
        ("PUT", "/v1/events", 405, "method_not_allowed"),
        ("PATCH", "/v1/mailboxes/me/leases", 405, "method_not_allowed"),
    ],
)
def test_unknown_paths_and_methods_are_problems(
    program: Make, method: str, path: str, status: int, code: str
) -> None:
    answer = program("client:shop").request(method, path)
    problem(answer, status, code)
    assert status != 405 or answer.headers["allow"]


def test_a_batch_with_one_bad_event_is_refused_whole_and_names_it(
    program: Make, place: Place
) -> None:
    caller = program("client:shop")
    events = [event("order.paid", place.key(n)) for n in range(3)]
    events[1] = {**events[1], "correlation_key": ""}
    body = problem(
        caller.request("POST", "/v1/events", {"events": events}), 422, "validation_failed"
    )
    assert body["errors"][0]["pointer"].startswith("/events/1/correlation_key")
    assert caller.pages("/v1/events", **EVER) == []


def test_bad_deadlines_and_conditions_have_codes_of_their_own(program: Make, place: Place) -> None:
    caller = program("client:shop")
    cases = {
        "deadline_required": {"expires_at": None},
        "deadline_passed": {"expires_at": "2020-01-01T00:00:00Z"},
        "deadline_too_far": {"expires_at": "2999-01-01T00:00:00Z"},
        "condition_invalid": {"condition": "event.data. >"},
    }
    for code, change in cases.items():
        body = {**opening("order.paid", place.key()), **change}
        wanted = {name: value for name, value in body.items() if value is not None}
        problem(caller.request("POST", "/v1/waitpoints", wanted), 422, code)


@pytest.mark.spec("WP-OBJ-ID")
def test_unknown_malformed_and_foreign_ids_are_one_and_the_same_404(
    program: Make, place: Place
) -> None:
    caller, foreign = program("client:shop"), Place(f"{place.tenant}-foreign")
    stranger, neighbour = program("client:shop", where=foreign), program("client:neighbour")
    theirs = stranger.open("order.paid", place.key())["id"]
    neighbours = neighbour.open("order.paid", place.key())["id"]
    event_of_theirs = stranger.publish(event("order.paid", place.key("x")))[0]
    malformed = ["wp_", "wp_!!", "x", "wp_" + "A" * 5000, "ev_" + "A" * 22, "wp_%00", "null"]
    unknown = ["wp_" + "A" * 22, theirs, neighbours]
    answers = set()
    for number in [*malformed, *unknown]:
        answers.add(raw(caller.request("GET", f"/v1/waitpoints/{number}")))
        answers.add(raw(caller.request("POST", f"/v1/waitpoints/{number}/cancel", {})))
    assert len(answers) == 1, answers
    assert b"waitpoint_not_found" in answers.pop()
    events = {
        raw(caller.request("GET", f"/v1/events/{number}"))
        for number in ("ev_" + "A" * 32, "ev_", "nothing", "wp_" + "A" * 22, event_of_theirs)
    }
    assert len(events) == 1, events
    assert stranger.waitpoint(theirs)["state"] == "open"


def raw(answer: httpx.Response) -> bytes:
    """Return the body of a 404."""
    assert answer.status_code == 404, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    return answer.content
