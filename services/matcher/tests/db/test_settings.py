"""Settings of a tenant, and conditions to try."""

from typing import Any


async def test_conditions_can_be_tried(matcher_once: Any) -> None:
    async def check(condition: str, event: Any = None) -> Any:
        body = {"condition": condition, **({"event": event} if event else {})}
        found = await matcher_once.call("POST", "/v1/conditions/check", body, key="")
        return found.status_code, found.json()

    event = {"event_type": "t", "correlation_key": "k", "data": {"amount": 7}}
    assert await check("event.data.amount > 5") == (200, {"valid": True})
    yes = {"valid": True, "matches": True, "error": None}
    assert await check("event.data.amount > 5 && event.amount == 7", event) == (200, yes)
    assert (await check("event.data.amount > 9", event))[1]["matches"] is False
    failed = (await check("event.data.missing > 9", event))[1]
    assert failed["matches"] is False
    assert "missing" in failed["error"]
    assert (await check("event.", event))[1]["code"] == "condition_invalid"


async def test_settings_are_the_operators_and_stay_under_their_upper_limits(matcher: Any) -> None:
    operator = {"who": "client:ops", "scope": "operator"}
    path = "/v1/settings"
    assert (await matcher.call("GET", path)).status_code == 403
    usual = (await matcher.call("GET", path, **operator)).json()
    assert usual["retention_seconds"] == 7 * 86_400
    too_long = await matcher.call("PUT", path, {"retention_seconds": 10**9}, **operator)
    assert (too_long.status_code, too_long.json()["limit"]["name"]) == (422, "retention_seconds")
    chosen = {"retention_seconds": 3600, "event_sources": ["shop"]}
    assert (await matcher.call("PUT", path, chosen, **operator)).json() == {**usual, **chosen}
    assert (await matcher.call("GET", path, **operator)).json() == {**usual, **chosen}
    other = await matcher.call("GET", path, tenant="other", **operator)
    assert other.json() == usual
    # Direct producers are held to the sources; intake vouches for its own (design D21).
    letters = matcher.deliver(
        matcher.value("k", source="shop/eu"),
        matcher.value("k", source="elsewhere"),
        matcher.value("k", source="elsewhere", accepted_by="client:shop"),
    )
    assert [letter.reason for letter in letters] == ["source_not_allowed"]
    await matcher.call("PUT", path, {}, **operator)
    assert (await matcher.call("GET", path, **operator)).json() == usual
