"""One whole stack for all scenarios; after each of them everything drains and every invariant holds."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
import pytest

from tests.integration.clients import EVERYTHING, History, Program
from tests.integration.deployment import Deployment
from tests.integration.drained import until_drained
from tests.integration.invariants import Evidence, Expected, violations
from tests.integration.producer import PlainProducer, event_value
from tests.integration.tap import Tap

NUMBERS = itertools.count(1)
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


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """Start the whole stack: broker, database, Access, services, gateway."""
    deployment = Deployment(tmp_path_factory.mktemp("stack"))
    try:
        deployment.up()
        yield deployment
    finally:
        deployment.down()


@pytest.fixture(scope="session")
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
    return Place(f"tenant-{next(NUMBERS)}")


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


@pytest.fixture(autouse=True)
def everything_holds(
    stack: Deployment, tap: Tap, history: History, expected: Expected, tmp_path
) -> Iterator[None]:
    """Check every invariant after each test, on all that has happened so far."""
    yield
    try:
        until_drained(stack, tap)
        with stack.database() as conn:
            found = violations(Evidence(conn, tap, history, expected))
        assert found == [], "\n".join(found[:20])
        assert leaks(stack) == []
    except BaseException:
        history.write(tmp_path / "history.jsonl")
        stack.heal()
        raise


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
