"""The waitpoints' HTTP: reading, listing, cancelling, idempotency, limits (design §5, D18, D20)."""

from datetime import timedelta
from typing import Any

import pytest


@pytest.mark.spec("WP-OBJ-ID")
async def test_unknown_foreign_and_malformed_ids_are_one_answer(matcher: Any) -> None:
    """W13: equal bodies, and nothing recorded for the foreign tenant."""
    opened = (await matcher.open("k")).json()["id"]
    asked = [
        ("wp_AAAAAAAAAAAAAAAAAAAAAA", {}),
        (opened, {"tenant": "other"}),
        (opened, {"environment": "prod"}),
        (opened, {"who": "agent:stranger"}),
        (opened + "x", {}),
        ("nonsense", {}),
    ]
    bodies = set()
    for identifier, how in asked:
        read = await matcher.call("GET", f"/v1/waitpoints/{identifier}", **how)
        cancelled = await matcher.call("POST", f"/v1/waitpoints/{identifier}/cancel", {}, **how)
        assert (read.status_code, cancelled.status_code) == (404, 404)
        bodies |= {read.content, cancelled.content}
    assert len(bodies) == 1
    assert matcher.one("select count(*) from matcher.rejection") == 0


@pytest.mark.spec("WP-ONE-ACTIVE")
async def test_second_active_waitpoint_on_a_key_is_refused_with_the_first_id(
    matcher: Any, clock: Any
) -> None:
    soon = (clock.now() + timedelta(seconds=10)).isoformat()
    first = (await matcher.open("k", expires_at=soon)).json()
    second = await matcher.open("k")
    assert (second.status_code, second.json()["code"]) == (409, "waitpoint_already_active")
    assert second.json()["id"] == first["id"]
    assert (await matcher.open("k", who="agent:b")).status_code == 201
    # An overdue one is expired by the opening that meets it.
    clock.shift(timedelta(seconds=10))
    third = await matcher.open("k", expires_at=(clock.now() + timedelta(hours=1)).isoformat())
    assert third.status_code == 201
    assert (await matcher.get(first["id"]))["state"] == "expired"
    assert ("waitpoint.expired", 2) in matcher.lifecycle()


@pytest.mark.spec("WP-CREATE-KEY", "WP-DEADLINE-FIXED")
async def test_idempotency_key_in_every_case(matcher: Any, clock: Any) -> None:
    path = "/v1/waitpoints"
    body = {
        "kind": "event",
        "match": {"event_type": "t", "correlation_key": "k"},
        "expires_at": (clock.now() + timedelta(hours=1)).isoformat(),
    }
    missing = await matcher.call("POST", path, body, key="")
    assert (missing.status_code, missing.json()["code"]) == (400, "idempotency_key_required")
    first = await matcher.call("POST", path, body, key="one")
    later = {**body, "expires_at": (clock.now() + timedelta(hours=2)).isoformat()}
    again = await matcher.call("POST", path, later, key="one")
    assert again.headers["idempotent-replayed"] == "true"
    assert again.content == first.content, "the first deadline stands"
    other = await matcher.call("POST", path, {**body, "tags": {"a": "b"}}, key="one")
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    # Another identity has keys of its own.
    stranger = await matcher.call("POST", path, body, key="one", who="agent:b")
    assert stranger.status_code == 201
    assert stranger.json()["id"] != first.json()["id"]


async def test_key_held_by_another_transaction_is_in_flight(matcher: Any) -> None:
    """The lock of the key decides, not a row: a crashed request leaves nothing behind."""
    holder = matcher.database.connect("relay_matcher_http")
    locks = "select count(*) from pg_locks where locktype = 'advisory' and granted"
    with holder.transaction(force_rollback=True):
        holder.execute("select pg_advisory_xact_lock(%s)", (idempotency_lock(matcher),))
        assert matcher.one(locks) >= 1
        busy = await matcher.open("k", idempotency="one")
        assert (busy.status_code, busy.json()["code"]) == (409, "idempotency_in_progress")
    assert (await matcher.open("k", idempotency="one")).status_code == 201


def idempotency_lock(matcher: Any) -> int:
    """Return the lock of key `one` of agent:a on the route that opens."""
    from relay_common.idempotency import Attempt  # noqa: PLC0415

    attempt = Attempt("acme", "test", "agent:a", "POST /v1/waitpoints", "one", b"")
    return attempt.lock(matcher.plumbing.seed)


@pytest.mark.spec("WP-OBJ-EXPIRES", "WP-LIMIT-WAIT")
@pytest.mark.parametrize(
    ("deadline", "answer"),
    [
        ("P24DT20H31M24S", 201),  # beyond a 32-bit count of milliseconds
        ("P29DT23H59M", 201),
        ("P30D", 201),
        ("P30DT1S", "deadline_too_far"),
        ("PT0S", "deadline_passed"),
        ("-PT1S", "deadline_passed"),
    ],
)
async def test_deadline_up_to_thirty_days(
    matcher: Any, clock: Any, deadline: str, answer: int | str
) -> None:
    """W24."""
    import isodate  # noqa: PLC0415

    clock.freeze()
    expires_at = (clock.now() + isodate.parse_duration(deadline)).isoformat()
    found = await matcher.open("k", expires_at=expires_at)
    if answer == 201:
        assert found.status_code == 201, found.text
        clock.shift(isodate.parse_duration(deadline) - timedelta(seconds=1))
        assert matcher.expire_due() == 0
        clock.shift(timedelta(seconds=1))
        assert matcher.expire_due() == 1
    else:
        assert (found.status_code, found.json()["code"]) == (422, answer)
        if answer == "deadline_too_far":
            assert found.json()["limit"]["name"] == "wait_seconds"


async def test_deadline_forms(matcher: Any, clock: Any) -> None:
    clock.freeze()
    at = (clock.now() + timedelta(days=2)).replace(microsecond=0)
    local = at.astimezone(tz_of(2)).isoformat()
    assert (await matcher.open("a", expires_at=local)).json()["expires_at"] == z(at)
    refused = {
        "b": local.replace("+02:00", ""),
        "c": at.strftime("%Y-%m-%dT%H:%M:60Z"),
        "d": "tomorrow",
        "e": 1,
    }
    for key, expires_at in refused.items():
        found = await matcher.open(key, expires_at=expires_at)
        assert (found.status_code, found.json()["code"]) == (422, "validation_failed")
        assert found.json()["errors"][0]["pointer"] == "/expires_at"
    without = {"kind": "event", "match": {"event_type": "t", "correlation_key": "k"}}
    found = await matcher.call("POST", "/v1/waitpoints", without)
    assert found.json()["code"] == "deadline_required"


def tz_of(hours: int) -> Any:
    """Return a fixed offset."""
    from datetime import timezone  # noqa: PLC0415

    return timezone(timedelta(hours=hours))


def z(at: Any) -> str:
    """Return `at` as the API writes it."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.000000Z")


@pytest.mark.parametrize(
    ("given", "code", "pointer"),
    [
        ({"condition": ""}, "condition_invalid", "/condition"),
        ({"condition": " \t"}, "condition_invalid", "/condition"),
        ({"condition": "{}"}, "condition_invalid", "/condition"),
        ({"condition": "event.amount +"}, "condition_invalid", "/condition"),
        ({"condition": "event.l.map(i, i) == []"}, "condition_invalid", "/condition"),
        ({"condition": "event.l.filter(i, true) == []"}, "condition_invalid", "/condition"),
        ({"condition": "1 + 1"}, "condition_invalid", "/condition"),
        ({"condition": "event.a == '" + "x" * 1024 + "'"}, "condition_invalid", None),
        ({"colour": "red"}, "unknown_field", "/colour"),
        ({"responders": ["subscriber:x"]}, "validation_failed", "/responders"),
        ({"heartbeat_interval": 0.5}, "validation_failed", "/heartbeat_interval"),
        ({"heartbeat_interval": "P2D"}, "validation_failed", "/heartbeat_interval"),
        ({"tags": {f"t{n}": "v" for n in range(65)}}, "validation_failed", "/tags"),
    ],
)
async def test_refused_openings(matcher_once: Any, given: Any, code: str, pointer: str) -> None:
    found = await matcher_once.open("k", **given)
    assert (found.status_code, found.json()["code"]) == (422, code), found.text
    if pointer:
        assert found.json()["errors"][0]["pointer"] == pointer


def deep(levels: int) -> Any:
    """Return JSON that nests so deep."""
    found: Any = {}
    for _ in range(levels):
        found = {"x": found}
    return found


@pytest.mark.spec("WP-LIMIT-PUBLISHED")
@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"responders": [f"subscriber:{n}" for n in range(101)]}, "responders"),
        ({"responders": ["s" * 513]}, "identity_bytes"),
        ({"match": {"event_type": "t" * 513, "correlation_key": "k"}}, "key_bytes"),
        ({"match": {"event_type": "t", "correlation_key": "ß" * 257}}, "key_bytes"),
        ({"tags": {f"t{n}": "v" for n in range(65)}}, "tags"),
        ({"tags": {"t": "v" * 257}}, "tag_characters"),
        ({"actions": [f"a{n}" for n in range(65)]}, "actions"),
        ({"actions": ["a" * 129]}, "action_characters"),
        ({"surface_policy": {"subscriber:ann": [{}] * 17}}, "surface_steps"),
        ({"claim_text": "c" * 16_385}, "claim_text_characters"),
        ({"content": {"text": "c" * 256 * 1024}}, "content_bytes"),
        ({"content": {"text": "c" * 1024 * 1024}}, "request_bytes"),
        ({"content": deep(64)}, "json_depth"),
        ({"response_schema": {"description": "s" * 32 * 1024}}, "response_schema_bytes"),
        ({"heartbeat_interval": 0.5}, "heartbeat_seconds_least"),
        ({"heartbeat_interval": "PT24H1S"}, "heartbeat_seconds"),
        ({"expires_at": "2999-01-01T00:00:00Z"}, "wait_seconds"),
        ({"default_response": "d" * 64 * 1024}, "reply_bytes"),
        ({"kind": "event", "condition": "true" + " " * 1024}, "condition_bytes"),
    ],
)
async def test_every_limit_is_named_where_it_is_hit(
    matcher_once: Any, given: Any, limit: str
) -> None:
    body: dict[str, Any] = {
        "kind": "review",
        "match": {"event_type": "t", "correlation_key": "limits"},
        "expires_at": (matcher_once.one("select relay.now()") + timedelta(hours=1)).isoformat(),
        "responders": ["subscriber:ann"],
        "content": {"n": 1},
        "actions": ["yes"],
        **given,
    }
    if body["kind"] == "event":
        body = {n: v for n, v in body.items() if n not in ("responders", "content", "actions")}
    refused = await matcher_once.call("POST", "/v1/waitpoints", body)
    assert refused.status_code >= 400
    hit = refused.json()["limit"]
    published = (await matcher_once.call("GET", "/v1/limits")).json()["limits"]
    values = {one["name"]: one["value"] for one in published}
    assert (hit["name"], hit["value"]) == (limit, values[limit])


async def test_limits_of_lists_and_reasons_are_named(matcher: Any) -> None:
    page = await matcher.call("GET", "/v1/waitpoints", params={"limit": 1_001})
    assert page.json()["limit"] == {"name": "list_items", "value": 1_000, "got": 1_001}
    opened = (await matcher.open("k")).json()["id"]
    long = {"reason": "r" * 1_025}
    refused = await matcher.call("POST", f"/v1/waitpoints/{opened}/cancel", long)
    assert refused.json()["limit"]["name"] == "cancel_reason_characters"


@pytest.mark.spec("WP-OBJ-DELIVER", "WP-EVENT-DELIVERY")
async def test_delivery_to_a_topic_needs_the_right_to_publish(matcher: Any) -> None:
    given = {"deliver_to": {"topic": "orders"}}
    refused = await matcher.open("k", **given)
    assert (refused.status_code, refused.json()["scope"]) == (403, "topics:publish")
    scope = "waitpoints:write waitpoints:read topics:publish"
    opened = await matcher.open("k", scope=scope, **given)
    assert opened.json()["deliver_to"] == {"topic": "orders"}
    messages = matcher.announced("relay.topics")
    assert [(m.record["topic"], m.record["type"], m.record["publisher"]) for m in messages] == [
        ("orders", "waitpoint.created", "agent:a")
    ]


@pytest.mark.spec("WP-STATE-CANCELLED", "WP-EVENT-CANCELLED", "WP-EDGE-OPEN")
async def test_cancel_by_waiter_or_operator_and_then_never_again(matcher: Any) -> None:
    opened = (await matcher.open("k")).json()["id"]
    path = f"/v1/waitpoints/{opened}/cancel"
    done = await matcher.call("POST", path, {"reason": "changed my mind"})
    assert (done.status_code, done.json()["state"]) == (200, "cancelled")
    again = await matcher.call("POST", path)
    assert (again.status_code, again.json()) == (200, done.json())
    assert matcher.lifecycle() == [("waitpoint.created", 1), ("waitpoint.cancelled", 2)]
    matcher.event("k")
    assert (await matcher.get(opened))["state"] == "cancelled"
    # The event that came after stays for others.
    resolved = (await matcher.open("k")).json()
    closed = await matcher.call("POST", f"/v1/waitpoints/{resolved['id']}/cancel")
    assert (closed.status_code, closed.json()["code"]) == (409, "waitpoint_closed")
    third = (await matcher.open("k2")).json()["id"]
    by = {"who": "client:ops", "scope": "operator"}
    done = await matcher.call("POST", f"/v1/waitpoints/{third}/cancel", **by)
    assert done.json()["state"] == "cancelled"


async def test_cancelling_an_overdue_waitpoint_expires_it_first(matcher: Any, clock: Any) -> None:
    soon = (clock.now() + timedelta(seconds=10)).isoformat()
    opened = (await matcher.open("k", expires_at=soon)).json()["id"]
    clock.shift(timedelta(seconds=10))
    found = await matcher.call("POST", f"/v1/waitpoints/{opened}/cancel")
    assert (found.status_code, found.json()["code"]) == (409, "waitpoint_closed")
    assert matcher.lifecycle() == [("waitpoint.created", 1), ("waitpoint.expired", 2)]


@pytest.mark.spec("WP-LIMIT-OPEN", "WP-LIMIT-PUBLISHED")
async def test_open_waitpoints_per_waiter_and_tenant_are_limited(matcher: Any) -> None:
    limits = {"open_waitpoints_per_waiter": 2, "open_waitpoints_per_tenant": 3}
    for name, value in limits.items():
        matcher.database.owner.execute(
            "insert into matcher.tenant_setting values ('acme', 'test', %s, to_jsonb(%s::int))",
            (name, value),
        )
    first = (await matcher.open("a")).json()["id"]
    assert (await matcher.open("b")).status_code == 201
    third = await matcher.open("c")
    assert (third.status_code, third.json()["limit"]) == (
        429,
        {"name": "open_waitpoints_per_waiter", "value": 2, "got": 3},
    )
    assert (await matcher.open("a", who="agent:b")).status_code == 201
    fourth = await matcher.open("b", who="agent:b")
    assert fourth.json()["limit"]["name"] == "open_waitpoints_per_tenant"
    # A closing makes room at once: the opening at the limit folds it in.
    await matcher.call("POST", f"/v1/waitpoints/{first}/cancel")
    assert (await matcher.open("c")).status_code == 201
    assert (await matcher.open("d")).status_code == 429
    # One that resolves at once takes no room.
    matcher.event("b")
    matcher.event("early")
    assert (await matcher.open("early")).json()["state"] == "resolved"
    counted = matcher.one("select open_count from matcher.open_counter where waiter = ''")
    folded = matcher.one("select coalesce(sum(n), 0) from matcher.closed_delta, unnest(closed) n")
    active = matcher.one(
        "select count(*) from matcher.waitpoint where state in ('open', 'stalled')"
    )
    assert counted - folded == active == 2


async def test_look_back_beyond_the_limit_names_the_way_out(matcher: Any) -> None:
    values = [matcher.value("k", data={"n": n}) for n in range(4_000)]
    for start in range(0, 4_000, 2_000):
        matcher.deliver(*values[start : start + 2_000])
    copies = """
      insert into matcher.event
      select received_at, key_hash, arrival + 100000 * g, gen_random_uuid(), rule_id,
        tenant, environment, event_type, correlation_key, recipient, reason, value
      from matcher.event, generate_series(1, 2) g
    """
    matcher.database.owner.execute(copies)
    refused = await matcher.open("k", condition="event.data.n < 0")
    assert (refused.status_code, refused.json()["code"]) == (409, "look_back_exceeded")
    assert "accept_events_since" in refused.json()["detail"]
    found = await matcher.open("k", condition="event.data.n == 3999")
    assert found.json()["resolution"]["event"]["data"] == {"n": 3999}
