"""Questions and reviews as they are opened and listed: schemas, sizes, policies, defaults."""

from datetime import timedelta
from typing import Any

import pytest
from relay_matcher.operations import sweeping

REPLIER = "waitpoints:reply waitpoints:read"


@pytest.mark.spec("WP-LIST-AWAITING")
async def test_what_waits_for_a_reply(matcher: Any, clock: Any) -> None:
    first = (await matcher.ask("a")).json()
    second = (await matcher.ask("b", kind="review")).json()
    third = (await matcher.ask("c", who="agent:b")).json()
    await matcher.open("event")
    done = (await matcher.ask("d")).json()
    assert (await matcher.reply(done)).status_code == 200

    async def awaiting(**how: Any) -> tuple[list[str], dict[str, int]]:
        params = {"awaiting": "reply", **how.pop("params", {})}
        found = (await matcher.call("GET", "/v1/waitpoints", params=params, **how)).json()
        return [w["id"] for w in found["items"]], found["counts"]

    assert await awaiting() == ([first["id"], second["id"]], {"open": 2, "stalled": 0})
    operator = {"who": "client:ops", "scope": "operator"}
    everything = [first["id"], second["id"], third["id"]]
    assert await awaiting(**operator) == (everything, {"open": 3, "stalled": 0})
    ann = {"who": "subscriber:ann", "scope": REPLIER}
    assert (await awaiting(**ann, params={"responder": "me"}))[0] == everything
    assert (await awaiting(params={"kind": "review"}))[0] == [second["id"]]
    # One whose waiter has gone still waits; one that is overdue does not, swept or not.
    await matcher.ask("e", who="agent:c", heartbeat_interval=1)
    soon = (clock.now() + timedelta(seconds=2)).isoformat()
    await matcher.ask("f", who="agent:c", expires_at=soon)
    clock.shift(timedelta(seconds=2))
    sweeping.stall_silent(matcher.stream, matcher.plumbing.announcer, 2)
    mine = {"who": "agent:c"}
    assert (await awaiting(**mine))[1] == {"open": 0, "stalled": 1}
    assert (await awaiting(**operator))[1] == {"open": 3, "stalled": 1}
    elsewhere = await awaiting(**operator, tenant="other")
    assert elsewhere == ([], {"open": 0, "stalled": 0}), "every tenant its own"


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        ({"$ref": "http://169.254.169.254/x"}, "/response_schema/$ref"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, "/response_schema/$schema"),
        ({"type": "strange"}, "/response_schema"),
        ({"pattern": "(?=a)b"}, "/response_schema"),
        ({"format": "no-such-format"}, "/response_schema"),
        ({"$ref": "#/$defs/none"}, "/response_schema"),
    ],
)
async def test_schema_that_leaves_the_document_is_refused(
    matcher_once: Any, schema: Any, pointer: str
) -> None:
    """W29."""
    refused = await matcher_once.ask(response_schema=schema)
    assert (refused.status_code, refused.json()["code"]) == (422, "schema_invalid"), refused.text
    assert refused.json()["errors"][0]["pointer"] == pointer


@pytest.mark.spec("WP-LIMIT-PAYLOAD")
async def test_sizes_of_schema_and_reply(matcher: Any) -> None:
    large = await matcher.ask(response_schema={"description": "x" * 33_000})
    assert (large.status_code, large.json()["limit"]["name"]) == (413, "response_schema_bytes")
    opened = (await matcher.ask(response_schema={"type": "string"})).json()
    fits = 64 * 1024 - 2
    over = await matcher.reply(opened, response="x" * (fits + 1))
    assert (over.status_code, over.json()["limit"]["name"]) == (413, "reply_bytes")
    wide = "\U0001f600" * (fits // 4)
    done = await matcher.reply(opened, response=wide)
    assert done.status_code == 200
    assert (await matcher.get(opened["id"]))["resolution"]["response"] == wide
    assert all(len(m.record["body"]) < 20_000 for m in matcher.announced()), "by reference"


@pytest.mark.spec("WP-EVENT-EXPIRED", "WP-OBJ-DEFAULT", "WP-EXPIRY-DEFAULT")
async def test_default_response_is_no_reply(matcher: Any, clock: Any) -> None:
    bad = await matcher.ask(default_response={"ok": "?"})
    assert bad.json()["errors"][0]["pointer"] == "/default_response/ok"
    # It stands whole in the event, so it is as large as a reply at most, on every kind.
    for refused in (
        await matcher.ask(response_schema={}, default_response="x" * 65_535),
        await matcher.open("event", default_response="x" * 65_535),
    ):
        assert (refused.status_code, refused.json()["limit"]["name"]) == (413, "reply_bytes")
    opened = (await matcher.ask(default_response={"ok": False})).json()
    clock.shift(timedelta(hours=1))
    assert matcher.expire_due() == 1
    found = await matcher.get(opened["id"])
    assert (found["state"], found["resolution"]) == ("expired", None)
    mine = [m for m in matcher.announced("relay.mailbox") if m.record["owner"] == "agent:a"]
    assert mine[-1].body["default_response"] == {"ok": False}
    assert mine[-1].body["waitpoint"]["resolution"] is None


@pytest.mark.spec("WP-OBJ-ESCALATION", "WP-OBJ-SURFACE")
async def test_policies_are_kept_and_announced(matcher: Any) -> None:
    surface = {"subscriber:ann": [{"surfaces": ["device:1"], "escalate_after": 60}]}
    given = {"escalation_policy": "ep_night", "surface_policy": surface}
    opened = (await matcher.ask(**given)).json()
    assert {name: opened[name] for name in given} == given
    created = matcher.announced("relay.waitpoints")[0]
    assert {name: created.body["waitpoint"][name] for name in given} == given
