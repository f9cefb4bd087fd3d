"""The waiter shows that it is alive, or has gone (spec, Two timeouts)."""

from datetime import timedelta
from typing import Any

import pytest
from relay_matcher.operations import sweeping


@pytest.mark.spec(
    "WP-OBJ-HEARTBEAT",
    "WP-STALLED-REPLY",
    "WP-TIMEOUT-HEARTBEAT",
    "WP-EVENT-STALLED",
    "WP-EDGE-STALLED",
)
async def test_silent_waiter_stalls_and_its_heartbeat_brings_it_back(
    matcher: Any, clock: Any
) -> None:
    opened = (await matcher.ask(heartbeat_interval=60)).json()
    assert opened["heartbeat_interval"] == 60
    path = f"/v1/waitpoints/{opened['id']}/heartbeat"

    def sweep() -> int:
        return sweeping.stall_silent(matcher.stream, matcher.plumbing.announcer, 2)["stalled"]

    clock.freeze()
    clock.shift(timedelta(seconds=59))
    assert sweep() == 0
    assert (await matcher.call("POST", path)).json()["state"] == "open"
    clock.shift(timedelta(seconds=60))
    assert (sweep(), sweep()) == (1, 0)
    stalled = await matcher.get(opened["id"])
    assert (stalled["state"], stalled["protocol_state"]["a2a"]) == ("stalled", None)
    again = (await matcher.call("POST", path)).json()
    assert (again["state"], again["activation"], again["revision"]) == ("open", 2, 3)
    clock.shift(timedelta(seconds=61))
    assert sweep() == 1
    done = await matcher.reply(opened)
    assert done.json()["state"] == "resolved", "a stalled waitpoint accepts replies"
    assert matcher.lifecycle() == [
        ("waitpoint.created", 1),
        ("waitpoint.stalled", 2),
        ("waitpoint.reopened", 3),
        ("waitpoint.stalled", 4),
        ("waitpoint.resolved", 5),
    ]
    closed = await matcher.call("POST", path)
    assert (closed.status_code, closed.json()["code"]) == (409, "waitpoint_resolved")
    by = await matcher.call("POST", path, who="client:ops", scope="operator waitpoints:write")
    assert by.status_code == 403


@pytest.mark.spec("WP-TIMEOUT-NONE")
async def test_without_a_heartbeat_interval_only_the_deadline_applies(
    matcher: Any, clock: Any
) -> None:
    opened = (await matcher.ask()).json()
    clock.shift(timedelta(minutes=59))
    assert sweeping.stall_silent(matcher.stream, matcher.plumbing.announcer, 2)["stalled"] == 0
    beat = await matcher.call("POST", f"/v1/waitpoints/{opened['id']}/heartbeat")
    assert (beat.status_code, beat.json()) == (200, opened)
