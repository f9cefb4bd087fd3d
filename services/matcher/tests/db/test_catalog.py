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
ONE = {"responders": ["subscriber:ann"]}
NOT_BUILT = {"waitpoint.escalated"}


def declared() -> dict[str, tuple[set[str], set[str]]]:
    """Return, by event, the members it always has and those it may have."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for group in ("lifecycle", "messages", "early"):
        for name, one in CATALOG[group].items():
            always = {*one.get("members", ()), *(LIFECYCLE if group == "lifecycle" else ())}
            found[name] = (always, always | set(one.get("maybe", ())))
    return found


@pytest.mark.spec("WP-EVENT-DELIVERY")
async def test_every_event_has_the_members_of_the_catalog(matcher: Any, clock: Any) -> None:
    early = await matcher.reply_by_key({"subject_digest": "sha-256:x"}, correlation_key="later")
    assert early.status_code == 202
    answered = (await matcher.ask("answered", **ONE, heartbeat_interval=60)).json()
    clock.shift(timedelta(seconds=61))
    sweeping.stall_silent(matcher.stream, matcher.plumbing.announcer, 2)
    await matcher.call("POST", f"/v1/waitpoints/{answered['id']}/heartbeat")
    values = [{"ok": value} for value in ("no", True, False)]
    replied = [
        await matcher.reply_by_key(answered, correlation_key="answered", response=value)
        for value in values
    ]
    assert [one.status_code for one in replied] == [422, 200, 409]
    for key, reason in (("given up", {"reason": "enough"}), ("dropped", {})):
        opened = (await matcher.ask(key, **ONE)).json()
        await matcher.call("POST", f"/v1/waitpoints/{opened['id']}/cancel", reason)
    for key, default in (("silent", {}), ("defaulted", {"default_response": {"ok": False}})):
        assert (await matcher.ask(key, **ONE, **default)).status_code == 201
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
