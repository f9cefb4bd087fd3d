"""Pages while others open, resolve and cancel: what fitted before the first page and still fits
appears exactly once (design, `GET /v1/waitpoints`)."""

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

STAY, GO = 30, 30
OPERATOR = {"who": "client:ops", "scope": "operator"}
FILTERS: list[dict[str, Any]] = [
    {},
    {"state": ["open", "stalled"]},
    {"kind": "question"},
    {"event_type": "asked"},
    {"correlation_key": "shared"},
    {"event_type": "asked", "correlation_key": "shared", "state": "open"},
    {"waiter": "agent:a"},
    {"responder": "subscriber:ann"},
    {"tag": ["shop:north", "lane:2"]},
    {"expires_before": "soon"},
    {"awaiting": "reply"},
    {"awaiting": "reply", "waiter": "agent:a", "tag": "shop:north", "limit": 2},
]


async def ask(matcher: Any, wanted: dict[str, Any], name: object) -> str:
    """Open a question that `wanted` finds: of one waiter, or of many on one key."""
    shared = "correlation_key" in wanted
    who, key = (f"agent:{name}", "shared") if shared else ("agent:a", f"k{name}")
    body = {
        "kind": "question",
        "match": {"event_type": "asked", "correlation_key": key},
        "expires_at": (matcher.one("select relay.now()") + timedelta(minutes=5)).isoformat(),
        "responders": ["subscriber:ann"],
        "content": {"n": key},
        "response_schema": {"type": "integer"},
        "tags": {"shop": "north", "lane": "2"},
    }
    opened = await matcher.call("POST", "/v1/waitpoints", body, who=who)
    assert opened.status_code == 201, opened.text
    return opened.json()["id"]


async def pages(
    matcher: Any, wanted: dict[str, Any], seen: list[str], at_work: asyncio.Event
) -> None:
    """Read all pages into `seen`, those after the first when others are `at_work`."""
    cursor: dict[str, str] = {}
    while True:
        params = {"limit": 3, **wanted, **cursor}
        page = await matcher.call("GET", "/v1/waitpoints", params=params, **OPERATOR)
        assert page.status_code == 200, page.text
        seen += [item["id"] for item in page.json()["items"]]
        if page.json()["next_cursor"] is None:
            return
        await asyncio.wait_for(at_work.wait(), 10)
        cursor = {"cursor": page.json()["next_cursor"]}


async def change(
    matcher: Any,
    wanted: dict[str, Any],
    going: list[str],
    at_work: asyncio.Event,
    done: asyncio.Event,
) -> None:
    """Cancel what goes and open more, until the pages are read; `at_work` from the second on."""
    steps = 0
    while not done.is_set():
        if going:
            await matcher.call("POST", f"/v1/waitpoints/{going.pop()}/cancel", **OPERATOR)
        await ask(matcher, wanted, f"more-{steps}")
        await matcher.open(f"event-{steps}", who="agent:b")
        matcher.event(f"event-{steps}")
        steps += 1
        if steps > 1:
            at_work.set()


@pytest.mark.spec("WP-LIST")
@pytest.mark.parametrize("wanted", FILTERS, ids=lambda one: "+".join(one) or "all")
async def test_what_stays_is_listed_exactly_once(matcher: Any, wanted: dict[str, Any]) -> None:
    ids = [await ask(matcher, wanted, n) for n in range(STAY + GO)]
    staying, going = ids[::2], ids[1::2]
    if "expires_before" in wanted:
        soon = matcher.one("select relay.now()") + timedelta(hours=1)
        wanted = {**wanted, "expires_before": soon.isoformat()}
    seen: list[str] = []
    at_work, done = asyncio.Event(), asyncio.Event()
    changing = asyncio.create_task(change(matcher, wanted, going, at_work, done))
    try:
        await pages(matcher, wanted, seen, at_work)
    finally:
        done.set()
        await changing
    assert at_work.is_set(), "others were at work meanwhile"
    times = Counter(seen)
    assert [times[one] for one in staying] == [1] * STAY
    assert max(times.values()) == 1
