"""Published limits: named once, bounded, in the spec's numbers."""

from relay_common import limits
from relay_common.limits import LIMITS, published


def test_names_are_unique_and_every_default_is_within_its_upper_limit():
    assert len({limit.name for limit in LIMITS}) == len(LIMITS)
    assert all(0 < limit.default <= limit.upper for limit in LIMITS)
    assert all(limit.unit and limit.description for limit in LIMITS)


def test_the_numbers_of_the_contract():
    assert limits.WAIT_SECONDS.default == 30 * 24 * 3600
    assert limits.EVENT_DATA_BYTES.default == 256 * 1024
    assert limits.REPLY_BYTES.default == 64 * 1024
    assert limits.KEY_BYTES.default == 512
    assert (limits.LEASE_SECONDS.default, limits.LEASE_SECONDS.upper) == (30, 12 * 3600)
    assert (limits.REDELIVERIES.default, limits.REDELIVERIES.upper) == (5, 100)
    assert limits.EVENTS_PER_BATCH.default == 1000


def test_a_hit_quotes_the_value_that_applied():
    hit = limits.OPEN_PER_WAITER.hit(got=11, value=10)
    assert (hit.name, hit.value, hit.got) == ("open_waitpoints_per_waiter", 10, 11)
    assert limits.TAGS.hit(65).value == 64


def test_every_limit_is_published():
    listed = published()["limits"]
    assert isinstance(listed, list)
    assert len(listed) == len(LIMITS)
