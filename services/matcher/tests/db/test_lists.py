"""Lists of waitpoints and of events: filters, pages, cursors."""

from datetime import timedelta
from typing import Any

import pytest


@pytest.mark.spec("WP-LIST", "WP-OBJ-TAGS")
async def test_every_filter_and_pages_that_keep_their_place(matcher: Any, clock: Any) -> None:
    soon = (clock.now() + timedelta(minutes=5)).isoformat()
    late = (clock.now() + timedelta(hours=5)).isoformat()
    ids = {}
    for n in range(7):
        tags = {"shop": "north" if n % 2 else "south", "n": str(n)}
        opened = await matcher.open(f"k{n}", tags=tags, expires_at=soon if n < 2 else late)
        ids[n] = opened.json()["id"]
    await matcher.open("k0", who="agent:b", event_type="other")
    matcher.event("k3")

    async def found(how: Any = None, **params: Any) -> list[str]:
        answer = await matcher.call("GET", "/v1/waitpoints", params=params, **(how or {}))
        assert answer.status_code == 200, answer.text
        return [item["id"] for item in answer.json()["items"]]

    assert await found() == list(ids.values())
    assert await found(state="resolved") == [ids[3]]
    assert await found(tag="shop:north") == [ids[1], ids[3], ids[5]]
    assert await found(tag=["shop:north", "n:1"]) == [ids[1]]
    assert await found(correlation_key="k4", event_type="order.paid") == [ids[4]]
    assert await found(expires_before=(clock.now() + timedelta(hours=1)).isoformat()) == [
        ids[0],
        ids[1],
    ]
    assert await found(kind="question") == []
    assert await found(waiter="agent:b") == [], "another waiter's are not seen"
    operator = {"who": "client:ops", "scope": "operator"}
    assert len(await found(operator)) == 8
    assert len(await found(operator, waiter="agent:b")) == 1
    bad = await matcher.call("GET", "/v1/waitpoints", params={"colour": "red"})
    assert bad.status_code == 422

    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = await matcher.call(
            "GET", "/v1/waitpoints", params={"limit": 3, "state": "open", **cursor}
        )
        seen += [item["id"] for item in page.json()["items"]]
        if page.json()["next_cursor"] is None:
            break
        cursor = {"cursor": page.json()["next_cursor"]}
        # Others open and resolve meanwhile.
        await matcher.open(f"more{len(seen)}", who="agent:c")
        matcher.event(f"k{len(seen) - 1}")
    assert seen == [ids[n] for n in (0, 1, 2, 4, 5, 6)]
    foreign = await matcher.call("GET", "/v1/waitpoints", params=cursor, who="agent:b")
    assert (foreign.status_code, foreign.json()["code"]) == (400, "cursor_invalid")


async def test_event_lists_need_a_key_or_a_window_and_page(matcher: Any, clock: Any) -> None:
    for batch in range(3):
        matcher.deliver(*[matcher.value("k", id=f"{batch}.{n}") for n in range(3)])
    bare = await matcher.call("GET", "/v1/events", params={"disposition": "held"})
    assert (bare.status_code, bare.json()["code"]) == (422, "time_window_required")
    now = clock.now()
    window = {
        "received_after": (now - timedelta(minutes=1)).isoformat(),
        "received_before": (now + timedelta(minutes=1)).isoformat(),
    }
    key = {"event_type": "order.paid", "correlation_key": "k"}
    for query in (window, key, {**window, **key}):
        seen: list[str] = []
        cursor: dict[str, str] = {}
        while True:
            page = await matcher.call("GET", "/v1/events", params={**query, "limit": 4, **cursor})
            seen += [item["source_id"] for item in page.json()["items"]]
            if page.json()["next_cursor"] is None:
                break
            cursor = {"cursor": page.json()["next_cursor"]}
        assert seen == [f"{b}.{n}" for b in (2, 1, 0) for n in (2, 1, 0)]
    held = await matcher.call("GET", "/v1/events", params={**key, "disposition": "held"})
    assert len(held.json()["items"]) == 9
    other = await matcher.call("GET", "/v1/events", params=key, tenant="other")
    assert other.json()["items"] == []
    one = held.json()["items"][0]["id"]
    foreign = await matcher.call("GET", f"/v1/events/{one}", tenant="other")
    assert (foreign.status_code, foreign.json()["code"]) == (404, "event_not_found")


async def test_an_unknown_filter_is_refused(matcher_once: Any) -> None:
    """A slip of the pen does not show everything."""
    key = {"event_type": "order.paid", "correlation_key": "k"}
    for path, query in (
        ("/v1/waitpoints", {"stat": "open"}),
        ("/v1/events", {"dispositon": "held"}),
    ):
        refused = await matcher_once.call("GET", path, params={**key, **query})
        assert (refused.status_code, refused.json()["code"]) == (422, "validation_failed")
        assert [one["pointer"] for one in refused.json()["errors"]] == [f"?{next(iter(query))}"]
