"""The pace of a loop: what it asks of a small batch."""

from relay_common.pace import FULL_RECORDS, LONGEST_SECONDS, Pace


def test_first_batch_begins_at_once() -> None:
    assert Pace().wait_seconds() == 0.0


def test_batch_on_the_heels_of_another_waits_as_long_as_that_took() -> None:
    pace = Pace()
    pace.begin()
    pace.begun -= LONGEST_SECONDS / 2
    pace.end()
    assert 0 < pace.next - pace.begun <= LONGEST_SECONDS * 2
    assert pace.wait_seconds() < LONGEST_SECONDS


def test_nobody_waits_longer_than_the_longest() -> None:
    pace = Pace()
    pace.begin()
    pace.begun -= 60
    pace.end()
    assert 0 < pace.wait_seconds() <= LONGEST_SECONDS


def test_batch_after_a_quiet_while_begins_at_once() -> None:
    pace = Pace()
    pace.begin()
    pace.end()
    pace.next -= LONGEST_SECONDS
    assert pace.wait_seconds() == 0.0


def test_the_larger_a_batch_was_the_sooner_the_next_begins() -> None:
    waits: list[float] = []
    for records in (0, FULL_RECORDS // 2, FULL_RECORDS, 2 * FULL_RECORDS):
        pace = Pace()
        pace.begun -= 60
        pace.end(records)
        waits.append(pace.wait_seconds())
    assert waits[0] > waits[1] > waits[2] == waits[3] == 0.0
