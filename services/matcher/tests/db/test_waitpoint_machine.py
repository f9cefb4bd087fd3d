"""One waitpoint driven through the HTTP API against a reference model, step by step."""

import asyncio
import itertools
import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from importlib import util
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)
from relay_common.testing.databases import Clock, Database
from relay_common.testing.issuer import Issuer
from relay_matcher.operations import sweeping

ANN, BOB, EVE = "subscriber:ann", "subscriber:bob", "subscriber:eve"
REPLIER = "waitpoints:reply waitpoints:read"
WAIT_SECONDS = 7_200
HEARTBEAT_SECONDS = 600
KEYS = itertools.count()
PLACE = Path(__file__).parents[1] / "conftest.py"
people = st.sampled_from([ANN, BOB, EVE])
# A valid reply ends the story, so it comes seldom.
replies = st.sampled_from(["bad_schema", "bad_digest", "bad_schema", "bad_digest", "valid"])
before = st.lists(st.tuples(people, replies), max_size=2) | st.just([])


class Model:
    """The contract in a few lines: what the waitpoint is, and what it has announced."""

    def __init__(self) -> None:
        self.state: str | None = None
        self.revision = 0
        self.activation = 1
        self.now = 0
        self.deadline = 0
        self.beats = False
        self.due = 0
        self.resolution: str | None = None
        self.events: list[tuple[str, int]] = []
        self.held: list[tuple[str, str]] = []

    def announce(self, name: str) -> None:
        """One lifecycle event more."""
        self.revision += 1
        self.events.append((f"waitpoint.{name}", self.revision))

    def touch(self) -> None:
        """Whoever touches an overdue waitpoint expires it first."""
        if self.state in ("open", "stalled") and self.now >= self.deadline:
            self.close("expired")

    def close(self, state: str) -> None:
        """Come to an end."""
        self.state = state
        self.announce(state)

    def judge(self, who: str, kind: str) -> str:
        """Return what becomes of a reply of somebody who may see the waitpoint."""
        if who == EVE:
            found = "responder_not_listed"
        elif self.state in ("resolved", "expired", "cancelled"):
            found = f"waitpoint_{self.state}"
        elif kind == "bad_schema":
            found = "reply_schema_violation"
        elif kind == "bad_digest":
            found = "subject_digest_mismatch"
        else:
            self.resolution = who
            self.close("resolved")
            return "ok"
        self.announce("response_rejected")
        return found


class Machine(RuleBasedStateMachine):
    """Does to the service what it does to the model."""

    def __init__(self, kit: Any, clock: Clock, runner: asyncio.Runner) -> None:
        super().__init__()
        self.kit, self.clock, self.runner = kit, clock, runner
        self.key = f"m{next(KEYS)}"
        self.model = Model()
        self.opened: dict[str, Any] = {}
        self.sessions: dict[str, str] = {}
        self.seen: list[tuple[str, int]] = []
        self.mailbox: list[tuple[str, int]] = []
        self.topic: list[tuple[str, int]] = []
        self.content = {"n": self.key}

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Call the API."""
        return self.runner.run(self.kit.call(*args, **kwargs))

    def digest(self, kind: str) -> str:
        """Return the digest that a reply of `kind` names."""
        from relay_matcher.domain.digest import subject_digest  # noqa: PLC0415

        return subject_digest({"other": 1} if kind == "bad_digest" else self.content)

    def value(self, kind: str) -> Any:
        """Return the value that a reply of `kind` carries."""
        return "no" if kind == "bad_schema" else True

    # ---- what may happen

    @initialize(held=before, beats=st.booleans())
    def open(self, held: list[tuple[str, str]], beats: bool) -> None:
        """Open the question; replies that came before are run first."""
        for who, kind in held:
            self.reply_by_key(who, kind)
        body = {
            "kind": "question",
            "match": {"event_type": "asked", "correlation_key": self.key},
            "expires_at": (self.clock.now() + timedelta(seconds=WAIT_SECONDS)).isoformat(),
            "responders": [ANN, BOB],
            "content": self.content,
            "response_schema": {"type": "boolean"},
            "deliver_to": {"topic": "asked"},
            **({"heartbeat_interval": HEARTBEAT_SECONDS} if beats else {}),
        }
        scope = "waitpoints:write topics:publish"
        answer = self.call("POST", "/v1/waitpoints", body, scope=scope)
        assert answer.status_code == 201, answer.text
        self.opened = answer.json()
        model = self.model
        model.state, model.beats = "open", beats
        model.deadline = model.now + WAIT_SECONDS
        model.due = model.now + HEARTBEAT_SECONDS
        model.announce("created")
        for who, kind in model.held:
            model.judge(who, kind)

    @rule(who=people, kind=replies)
    def reply_by_key(self, who: str, kind: str) -> None:
        """Reply by match key, before or after the opening."""
        model = self.model
        body = {
            "waiter": "agent:a",
            "event_type": "asked",
            "correlation_key": self.key,
            "subject_digest": self.digest(kind),
            "response": self.value(kind),
        }
        answer = self.call("POST", "/v1/replies", body, who=who, scope=REPLIER)
        if who != EVE:  # who may not see a waitpoint does not touch it
            model.touch()
        closed = model.state not in (None, "open", "stalled")
        if model.state is None or who == EVE or (closed and kind == "bad_digest"):
            assert answer.status_code == 202, answer.text
            model.held.append((who, kind))
        else:
            self.check(answer, model.judge(who, kind))

    @rule(who=people, kind=replies, adapter=st.booleans())
    def reply(self, who: str, kind: str, adapter: bool) -> None:
        """Reply by id, in a session, oneself or through a channel adapter."""
        claim = {"responder": who, "channel": "sms"} if adapter else {}
        how = {"who": "client:sms" if adapter else who}
        how["scope"] = "replies:channel" if adapter else REPLIER
        path = f"/v1/waitpoints/{self.opened['id']}"
        started = self.call("POST", f"{path}/reply-sessions", claim, **how)
        if who != EVE:  # who may not see a waitpoint does not touch it
            self.model.touch()
        name = f"{who} {adapter}"
        if started.status_code == 201:
            self.sessions[name] = started.json()["reply_session"]
        body = {
            "reply_session": self.sessions.get(name, "rs_none"),
            "subject_digest": self.digest(kind),
            "response": self.value(kind),
            **claim,
        }
        answer = self.call("POST", f"{path}/replies", body, **how)
        if who == EVE:
            assert (started.status_code, answer.status_code) == (404, 404)
        else:
            self.check(answer, self.model.judge(who, kind))

    @rule(operator=st.booleans())
    def cancel(self, operator: bool) -> None:
        """Cancel as the waiter or an operator."""
        how = {"who": "client:ops", "scope": "operator"} if operator else {}
        answer = self.call("POST", f"/v1/waitpoints/{self.opened['id']}/cancel", **how)
        self.model.touch()
        if self.model.state in ("open", "stalled"):
            self.model.close("cancelled")
        self.check(answer, "ok" if self.model.state == "cancelled" else "waitpoint_closed")

    @rule()
    def heartbeat(self) -> None:
        """Show that the waiter is alive."""
        model = self.model
        answer = self.call("POST", f"/v1/waitpoints/{self.opened['id']}/heartbeat")
        model.touch()
        if model.state in ("open", "stalled"):
            if model.state == "stalled":
                model.state = "open"
                model.activation += 1
                model.announce("reopened")
            model.due = model.now + HEARTBEAT_SECONDS
            self.check(answer, "ok")
        else:
            self.check(answer, f"waitpoint_{model.state}")

    @rule(seconds=st.sampled_from([599, 600, 600, 3_000, 7_200]), sweep=st.booleans())
    def time_passes(self, seconds: int, sweep: bool) -> None:
        """Let time pass in the database; the sweeper may be late."""
        self.clock.shift(timedelta(seconds=seconds))
        model = self.model
        model.now += seconds
        if sweep:
            self.kit.expire_due()
            sweeping.stall_silent(self.kit.stream, self.kit.plumbing.announcer, 2)
            model.touch()
            if model.state == "open" and model.beats and model.now >= model.due:
                model.state = "stalled"
                model.announce("stalled")

    # ---- what must hold

    def check(self, answer: Any, expected: str) -> None:
        """Compare the outcome of a call."""
        found = "ok" if answer.status_code == 200 else answer.json()["code"]
        assert found == expected, answer.text

    @invariant()
    def waitpoint_is_what_the_model_says(self) -> None:
        """State, revision, activation and resolution."""
        model = self.model
        if model.state is None:
            return
        found = self.runner.run(self.kit.get(self.opened["id"]))
        overdue = model.state in ("open", "stalled") and model.now >= model.deadline
        assert found["state"] == ("expired" if overdue else model.state)
        assert (found["revision"], found["activation"]) == (model.revision, model.activation)
        stored = "select state::text from matcher.waitpoint where correlation_key = %s"
        assert self.kit.one(stored, self.key) == model.state, "touched means expired for good"
        resolution = found["resolution"]
        assert (resolution and resolution["responder"]) == model.resolution

    def is_mine(self, record: dict[str, Any]) -> bool:
        """Tell whether a mailbox record is an event of this waitpoint for its waiter."""
        mine = (record["owner"], record["waitpoint_id"]) == ("agent:a", self.opened.get("id"))
        return mine and record["kind"] == "waitpoint_event"

    @invariant()
    def everything_is_announced_once_and_in_order(self) -> None:
        """`relay.waitpoints` has every event, mailbox and topic all but the internal ones."""
        for message in self.kit.announced():
            if message.topic == "relay.waitpoints":
                if message.record["correlation_key"] == self.key:
                    self.seen.append((message.record["type"], message.record["revision"]))
            elif message.topic == "relay.topics":
                if message.body["waitpoint"]["id"] == self.opened.get("id"):
                    self.topic.append((message.record["type"], message.body["revision"]))
            elif self.is_mine(message.record):
                self.mailbox.append((message.record["type"], message.body["revision"]))
        assert self.seen == self.model.events
        public = [event for event in self.model.events if event[0] != "waitpoint.reopened"]
        assert self.mailbox == self.topic == public


@pytest.mark.spec(
    "WP-EVENT-DELIVERY",
    "WP-STATE-OPEN",
    "WP-STATE-STALLED",
    "WP-STATE-RESOLVED",
    "WP-STATE-EXPIRED",
)
def test_waitpoint_against_its_model(
    database: Database, clock: Clock, issuer: Issuer, access_url: str
) -> None:
    specification = util.spec_from_file_location("kit_of_machine", PLACE)
    assert specification is not None
    assert specification.loader is not None
    kit_module = util.module_from_spec(specification)
    sys.modules["kit_of_machine"] = kit_module
    specification.loader.exec_module(kit_module)
    clock.freeze()
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        kit = kit_module.create_kit(database, issuer, access_url)
        runner.run(stack.enter_async_context(kit_module.serving(kit)))
        run_state_machine_as_test(
            lambda: Machine(kit, clock, runner),
            settings=settings(
                max_examples=40,
                stateful_step_count=15,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                database=None,
                phases=[Phase.generate],
            ),
        )
        runner.run(stack.aclose())
