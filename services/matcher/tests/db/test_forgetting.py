"""What is over is forgotten in its time, with all that hangs on it, and nothing else is."""

from datetime import timedelta
from typing import Any

import pytest
from psycopg import errors
from relay_matcher.operations import sweeping

OPERATOR = {"who": "client:ops", "scope": "operator"}
LEFT = """
select (select count(*) from matcher.waitpoint), (select count(*) from matcher.responder),
  (select count(*) from matcher.waitpoint_tag), (select count(*) from matcher.rejection),
  (select count(*) from matcher.reply_session), (select count(*) from matcher.held_reply)
"""


def left(matcher: Any) -> tuple[int, ...]:
    """Return how many waitpoints, responders, tags, rejections, sessions, held replies stand."""
    return matcher.database.owner.execute(LEFT).fetchone()


async def test_closed_waitpoints_go_with_all_that_hangs_on_them(matcher: Any, clock: Any) -> None:
    asked = {
        "expires_at": (clock.now() + timedelta(days=1)).isoformat(),
        "tags": {"a": "1", "b": "2"},
    }
    early = await matcher.reply_by_key({"subject_digest": "sha-256:other"})
    resolved = (await matcher.ask("q", **asked)).json()
    bad = await matcher.reply_by_key(resolved, "subscriber:bob", response={"ok": "?"})
    good = await matcher.reply_by_key(resolved)
    assert [one.status_code for one in (early, bad, good)] == [202, 422, 200]
    expired = (await matcher.ask("other", **asked)).json()
    clock.shift(timedelta(days=1))
    assert matcher.expire_due() == 1
    assert left(matcher) == (2, 4, 4, 2, 2, 1)
    clock.shift(timedelta(days=90))
    assert sweeping.forget_waitpoints(matcher.stream)["waitpoints_forgotten"] == 0
    assert (await matcher.get(expired["id"]))["state"] == "expired"
    clock.shift(timedelta(days=30))
    later = (clock.now() + timedelta(days=30)).isoformat()
    still = (await matcher.open("k", expires_at=later)).json()
    assert sweeping.forget_waitpoints(matcher.stream)["waitpoints_forgotten"] == 2
    gone = await matcher.call("GET", f"/v1/waitpoints/{resolved['id']}")
    assert (gone.status_code, gone.json()["code"]) == (404, "waitpoint_not_found")
    assert (await matcher.get(still["id"]))["state"] == "open"
    sweeping.expire_held_replies(matcher.stream)
    assert left(matcher) == (1, 0, 0, 0, 0, 0)


async def test_each_tenant_chooses_how_long(matcher: Any, clock: Any) -> None:
    short = {"closed_waitpoint_seconds": 2 * 86_400}
    refused = await matcher.call(
        "PUT", "/v1/settings", {"closed_waitpoint_seconds": 3_600}, **OPERATOR
    )
    assert refused.json()["limit"]["name"] == "closed_waitpoint_seconds"
    chosen = await matcher.call("PUT", "/v1/settings", short, tenant="brief", **OPERATOR)
    assert chosen.json()["closed_waitpoint_seconds"] == 2 * 86_400
    for tenant in ("brief", "acme"):
        opened = (await matcher.open("k", tenant=tenant)).json()
        await matcher.call("POST", f"/v1/waitpoints/{opened['id']}/cancel", tenant=tenant)
    clock.shift(timedelta(days=33))
    assert sweeping.forget_waitpoints(matcher.stream)["waitpoints_forgotten"] == 1
    assert matcher.one("select tenant from matcher.waitpoint") == "acme"


async def test_what_an_event_resolved_outlives_the_event(matcher: Any, clock: Any) -> None:
    """It is the take: without it the waiter could be given the same event again (design D2)."""
    chosen = {"closed_waitpoint_seconds": 2 * 86_400}
    await matcher.call("PUT", "/v1/settings", chosen, **OPERATOR)
    await matcher.open("k")
    matcher.event("k")
    clock.shift(timedelta(days=36))
    assert sweeping.forget_waitpoints(matcher.stream)["waitpoints_forgotten"] == 0
    clock.shift(timedelta(days=2))
    assert sweeping.forget_waitpoints(matcher.stream)["waitpoints_forgotten"] == 1


async def test_batches_are_bounded_and_leave_out_what_is_busy(matcher: Any, clock: Any) -> None:
    copies = """
    insert into matcher.waitpoint (tenant, environment, id, key_hash, created_at, updated_at,
      expires_at, closed_at, kind, state, waiter, event_type, correlation_key, opened)
    select tenant, environment, (left(id::text, 24) || lpad(to_hex(n), 12, '0'))::uuid, n,
      created_at, updated_at, expires_at, updated_at, kind, 'cancelled', waiter, event_type,
      'copy ' || n, opened
    from matcher.waitpoint, generate_series(1, 1200) n
    """
    opened = (await matcher.open("k")).json()["id"]
    await matcher.call("POST", f"/v1/waitpoints/{opened}/cancel")
    matcher.database.owner.execute(copies)
    clock.shift(timedelta(days=121))
    busy = "select from matcher.waitpoint where correlation_key = 'copy 7' for update"
    with matcher.database.owner.transaction():
        matcher.database.owner.execute(busy)
        assert sweeping.forget_waitpoints(matcher.stream)["waitpoints_forgotten"] == 1_200
    assert sweeping.forget_waitpoints(matcher.stream)["waitpoints_forgotten"] == 1


async def test_only_the_sweeper_forgets(matcher: Any) -> None:
    opened = (await matcher.open("k")).json()["id"]
    await matcher.call("POST", f"/v1/waitpoints/{opened}/cancel")
    with pytest.raises(errors.CheckViolation):
        matcher.database.owner.execute("delete from matcher.waitpoint")
    http = matcher.database.connect("relay_matcher_http")
    for conn, statement in (
        (http, "select matcher.forget_waitpoints('1 second', '1 day', 10)"),
        (matcher.stream, "delete from matcher.waitpoint"),
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            conn.execute(statement)
