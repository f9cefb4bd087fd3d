"""Fixtures of the loop tests."""

from collections.abc import Iterator

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
def publishing(stream: Stream) -> Iterator[PublisherLoop]:
    """A running publisher of the stream's schema."""
    producer = Producer(stream.topics.bootstrap, "test")
    loop = PublisherLoop(stream.connect, producer, 2)
    stream.start(loop.run)
    yield loop
    stream.stop.set()
    producer.close()
