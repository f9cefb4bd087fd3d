"""One whole stack for all scenarios, and what they need to use, watch and verify it."""

import itertools
import os
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.integration.clients import EVERYTHING, History, Program
from tests.integration.deployment import Deployment
from tests.integration.drained import until_drained
from tests.integration.invariants import Evidence, Expected, violations
from tests.integration.producer import PlainProducer, event_value
from tests.integration.tap import Tap

NUMBERS = itertools.count(1)
RUN = uuid.uuid4().hex[:6]
NEVER_LOGGED = ("zzkey", "zzsecret")


@dataclass(frozen=True, slots=True)
class Place:
    """A tenant of one test. Its keys and data carry words that must never be logged."""

    tenant: str
    environment: str = "prod"

    def key(self, name: object = "") -> str:
        """Return a correlation key of this tenant."""
        return f"zzkey-{self.tenant}-{name}"

    @property
    def data(self) -> dict[str, object]:
        """Event data of this tenant."""
        return {"secret": f"zzsecret-{self.tenant}", "amount": 12.5, "city": "Łódź"}


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Start the whole stack: broker, database, Access, services, gateway.

    RELAY_TEST_STACK names a folder whose stack is used and left running: for developing tests.
    """
    kept = os.environ.get("RELAY_TEST_STACK")
    deployment = Deployment(Path(kept) if kept else tmp_path_factory.mktemp("stack"))
    try:
        deployment.up()
        yield deployment
    finally:
        if not kept:
            deployment.down()


@pytest.fixture(scope="package")
def tap(stack: Deployment) -> Iterator[Tap]:
    """Read all topics from outside."""
    tap = Tap(stack.bootstrap)
    tap.start()
    yield tap
    tap.stop()


@pytest.fixture(scope="session")
def history() -> History:
    """Keep all calls of all clients."""
    return History()


@pytest.fixture(scope="session")
def expected() -> Expected:
    """Keep what brokers have acknowledged to plain producers."""
    return Expected()


@pytest.fixture(scope="session")
def http() -> Iterator[httpx.Client]:
    """The clients' connections."""
    limits = httpx.Limits(max_connections=200, max_keepalive_connections=100)
    with httpx.Client(timeout=30, limits=limits, trust_env=False) as client:
        yield client


@pytest.fixture
def place() -> Place:
    """A tenant that no other test has."""
    return Place(f"tenant-{next(NUMBERS)}-{RUN}")


@pytest.fixture
def program(
    stack: Deployment, http: httpx.Client, history: History, place: Place
) -> Callable[..., Program]:
    """Make programs: `program("client:shop")`, of this test's tenant unless told otherwise."""

    def make(
        identity: str,
        where: Place = place,
        scope: str = EVERYTHING,
        base_url: str | None = None,
    ) -> Program:
        token = stack.token(identity, where.tenant, where.environment, scope)
        return Program(
            http, history, where.tenant, where.environment, identity, token, base_url or stack.url
        )

    return make


@pytest.fixture
def produce(stack: Deployment, expected: Expected, place: Place) -> Callable[..., PlainProducer]:
    """Write events to the topic as a plain producer, flushed; each one is then expected to last."""
    producer = PlainProducer(stack.bootstrap)

    def write(*events: dict[str, object], where: Place = place) -> PlainProducer:
        for item in events:
            value = event_value(where.tenant, where.environment, item)
            producer.send(value, str(item["correlation_key"]).encode())
        producer.flush()
        expected.named[where.tenant] += [
            (where.environment, str(e.get("source", "")), str(e["id"])) for e in events if "id" in e
        ]
        return producer

    return write


@pytest.fixture(scope="package")
def verify(
    stack: Deployment,
    tap: Tap,
    history: History,
    expected: Expected,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[], None]:
    """Wait until everything has drained, then check every invariant on all that has happened."""

    def check() -> None:
        until_drained(stack, tap)
        with stack.database() as conn:
            found = violations(Evidence(conn, tap, history, expected))
        if found:
            history.write(tmp_path_factory.mktemp("history") / "history.jsonl")
        assert found == [], "\n".join(found[:20])
        assert leaks(stack) == []

    return check


@pytest.fixture(scope="module", autouse=True)
def verified(verify: Callable[[], None]) -> Iterator[None]:
    """Verify after each scenario; tests that kill something verify by themselves as well."""
    yield
    verify()


@pytest.fixture(autouse=True)
def whole(stack: Deployment) -> Iterator[None]:
    """Bring back what a failed test left dead, for the next one."""
    yield
    if not stack.whole():
        stack.heal()


def leaks(stack: Deployment) -> list[str]:
    """Return every log line and metric with a key or content in it."""
    texts = {f"log {name}": text for name, text in stack.logs().items()}
    texts |= {f"metrics of {name}": stack.metrics(name) for name in stack.services()}
    return [
        f"{name}: {line[:300]}"
        for name, text in texts.items()
        for line in text.splitlines()
        if any(word in line for word in NEVER_LOGGED)
    ]
