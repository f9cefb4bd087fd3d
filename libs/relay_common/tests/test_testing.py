"""The test tools themselves: clones, roles, the clock, topics."""

from datetime import timedelta

import pytest
from relay_common.testing import wait
from relay_common.testing.brokers import Topics
from relay_common.testing.databases import Clock, Database


def test_clone_has_the_roles_search_path(database: Database) -> None:
    found = database.connect("relay_matcher_stream").execute("show search_path").fetchone()
    assert found == ("matcher, relay",)


def test_clock_shifts_freezes_and_thaws(database: Database, clock: Clock) -> None:
    reader = database.connect("relay_matcher_http")
    clock.freeze()
    (first,) = reader.execute("select relay.now()").fetchone() or ()
    clock.shift(timedelta(days=400))
    assert reader.execute("select relay.now()").fetchone() == (first + timedelta(days=400),)
    clock.thaw()
    assert clock.now() > first + timedelta(days=400)


def test_topics_are_read_back_in_order(topics: Topics) -> None:
    topic = topics.create("relay.events", partitions=2)
    for number in range(100):
        topics.produce(topic, b"key", str(number).encode(), [("h", b"v")])
    topics.flush()
    assert [r.value for r in topics.records(topic)] == [str(n).encode() for n in range(100)]
    assert topics.records(topic)[0].headers == (("h", b"v"),)


def test_waiting_says_what_it_last_saw() -> None:
    with pytest.raises(AssertionError, match=r"expected within 0.05 s: three; last seen: 0"):
        wait.until(lambda: 0, 0.05, "three")
