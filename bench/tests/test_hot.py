"""The loads of the hot section are what their names say."""

from collections import Counter

from bench.events import make
from bench.sections import hot


def test_half_of_the_events_are_the_others():
    spread = make(10, 1.0, 100, "t")
    loud = hot.on_all_partitions(5)
    mixed = hot.mixed_half(spread, loud)
    assert (len(mixed), mixed.matching) == (10, 5)
    assert mixed.messages[0::2] == spread.messages[:5]
    assert mixed.messages[1::2] == loud


def test_one_key_comes_by_all_partitions_and_as_different_events():
    loud = hot.on_all_partitions(50)
    assert {key for key, _ in loud} == {None}
    assert len({value for _, value in loud}) == 50


def test_the_others_come_between_in_the_proportion_of_the_rates():
    names = Counter(name[:5] for name, _ in hot.mixed("x", hot.on_all_partitions(900)))
    assert names == {"": 900, "live-": 100}
