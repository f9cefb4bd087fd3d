"""What is announced is what the event catalog says: names and members (spec, Events)."""

from collections import defaultdict
from datetime import timedelta
from typing import Any

import pytest
import yaml
from relay_common.avro import SCHEMA_DIR
from relay_matcher.operations import sweeping

CATALOG = yaml.safe_load((SCHEMA_DIR.parent / "events.yaml").read_text())
LIFECYCLE = {"type", "id", "revision", "occurred_at", "waitpoint"}
REPLIER = {"who": "subscriber:ann", "scope": "waitpoints:reply"}
NOT_BUILT = {"waitpoint.escalated"}


def declared() -> dict[str, tuple[set[str], set[str]]]:
    """Return, by event, the members it always has and those it may have."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for group in ("lifecycle", "messages", "early"):
        for name, one in CATALOG[group].items():
            always = {*one.get("members", ()), *(LIFECYCLE if group == "lifecycle" else ())}
            found[name] = (always, always | set(one.get("maybe", ())))
    return found


async def ask(matcher: Any, clock: Any, key: str, **given: Any) -> dict[str, Any]:
    """Open a question of agent:a to ann."""
    body = {
        "kind": "question",
        "match": {"event_type": "asked", "correlation_key": key},
        "expires_at": (clock.now() + timedelta(hours=1)).isoformat(),
        "responders": ["subscriber:ann"],
        "content": {"n": 1},
        "response_schema": {"type": "integer"},
        **given,
    }
    opened = await matcher.call("POST", "/v1/waitpoints", body)
    assert opened.status_code == 201, opened.text
    return opened.json()


async def reply(matcher: Any, opened: dict[str, Any], value: Any) -> int:
    """Reply by match key."""
    body = {
        "waiter": "agent:a",
        "event_type": "asked",
        "correlation_key": opened["match"]["correlation_key"],
        "subject_digest": opened["subject_digest"],
        "response": value,
    }
    return (await matcher.call("POST", "/v1/replies", body, **REPLIER)).status_code


@pytest.mark.spec("WP-EVENT-DELIVERY")
async def test_every_event_has_the_members_of_the_catalog(matcher: Any, clock: Any) -> None:
    early = {"match": {"correlation_key": "later"}, "subject_digest": "sha-256:x"}
    assert await reply(matcher, early, 1) == 202
    answered = await ask(matcher, clock, "answered", heartbeat_interval=60)
    clock.shift(timedelta(seconds=61))
    sweeping.stall_silent(matcher.stream, matcher.plumbing.announcer, 2)
    await matcher.call("POST", f"/v1/waitpoints/{answered['id']}/heartbeat")
    assert [await reply(matcher, answered, value) for value in ("no", 1, 2)] == [422, 200, 409]
    for key, reason in (("given up", {"reason": "enough"}), ("dropped", {})):
        opened = await ask(matcher, clock, key)
        await matcher.call("POST", f"/v1/waitpoints/{opened['id']}/cancel", reason)
    for key, default in (("silent", {}), ("defaulted", {"default_response": 0})):
        await ask(matcher, clock, key, **default)
    matcher.event("k", recipient="agent:a")
    assert (await matcher.open("k")).json()["state"] == "resolved"
    clock.shift(timedelta(hours=2))
    assert matcher.expire_due() == 2

    seen: defaultdict[str, list[set[str]]] = defaultdict(list)
    for message in matcher.announced():
        seen[message.body["type"]].append(set(message.body))
    catalog = declared()
    assert set(seen) == set(catalog) - NOT_BUILT
    for name, bodies in seen.items():
        always, ever = catalog[name]
        assert set.intersection(*bodies) == always, name
        assert set.union(*bodies) == ever, name
