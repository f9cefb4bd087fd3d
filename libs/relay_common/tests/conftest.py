"""Fixtures of the loop tests."""

from collections.abc import Callable, Iterator

import pytest
from relay_common.producer import Producer
from relay_common.publisher import PublisherLoop
from relay_common.testing.brokers import Topics
from relay_common.testing.databases import Database
from relay_common.testing.streams import EFFECTS, Stream


@pytest.fixture(params=["classic"])
def stream(request: pytest.FixtureRequest, database: Database, topics: Topics) -> Iterator[Stream]:
    """A topic of one partition with a loop's surroundings; parametrize for other protocols."""
    database.owner.execute(EFFECTS)
    made = Stream(database, topics, topics.create("relay.events", partitions=1), request.param)
    yield made
    made.finish()


@pytest.fixture
def producers(stream: Stream) -> Iterator[Callable[[str], Producer]]:
    """Makes producers for a bootstrap address; they close after the stream's loops have ended."""
    made: list[Producer] = []

    def make(bootstrap: str) -> Producer:
        made.append(Producer(bootstrap, "test"))
        return made[-1]

    yield make
    stream.finish()
    for producer in made:
        producer.close(1)


@pytest.fixture
def publishing(stream: Stream, producers: Callable[[str], Producer]) -> PublisherLoop:
    """A running publisher of the stream's schema."""
    loop = PublisherLoop(stream.connect, producers(stream.topics.bootstrap), 2)
    stream.start(loop.run)
    return loop
