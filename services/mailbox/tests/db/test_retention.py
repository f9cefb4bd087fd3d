"""Retention by age and count; slices (design D1; issue: by dropping rather than deleting)."""

from datetime import timedelta

import pytest
from prometheus_client import REGISTRY
from relay_mailbox import sweeper
from relay_mailbox.domain.record import Owner
from relay_mailbox.store import measures

AGENT = "agent:planner"


async def standing(reader) -> tuple[int, int]:
    body = (await reader.get("me")).json()
    return body["oldest"], body["head"]


async def test_records_older_than_the_retention_go(streams, reader, clock):
    streams.fill(3)
    clock.shift(timedelta(days=6))
    streams.fill(2)
    clock.shift(timedelta(days=1, hours=1))
    assert sweeper.expire_due(streams.conn)["mailboxes_trimmed"] == 1
    assert await standing(reader) == (4, 5)
    assert [r["seq"] for r in (await reader.lease(10))["records"]] == [4, 5]
    assert sweeper.expire_due(streams.conn)["mailboxes_trimmed"] == 0


async def test_a_mailbox_whose_records_all_went_goes_on_counting(streams, reader, clock):
    streams.fill(3)
    clock.shift(timedelta(days=8))
    sweeper.expire_due(streams.conn)
    assert await standing(reader) == (4, 3)
    epoch = (await reader.get("me")).json()["epoch"]
    assert (await reader.get("me/records", since=3, epoch=epoch)).json()["records"] == []
    streams.fill(1)
    assert await standing(reader) == (4, 4)
    clock.shift(timedelta(days=8))
    assert sweeper.expire_due(streams.conn)["mailboxes_trimmed"] == 1


async def test_each_tenant_has_its_own_retention(streams, operator, reader, clock, new_record):
    await operator.send("PUT", "/v1/settings", {"retention_seconds": 3600})
    streams.fill(1)
    streams.append(new_record(to=Owner("other", "test", AGENT)))
    clock.shift(timedelta(hours=2))
    assert sweeper.expire_due(streams.conn)["mailboxes_trimmed"] == 1
    assert await standing(reader) == (2, 1)
    assert streams.one("select oldest from mailbox where tenant = 'other'") == 1


async def test_what_nobody_acknowledged_is_counted_whatever_takes_it(streams, operator, clock):
    """By count at the append, by age in the sweep; each record once."""
    await operator.send("PUT", "/v1/settings", {"retained_records": 5})
    streams.fill(3, state="acked")
    streams.fill(6)
    streams.fill(2)
    assert sweeper.expire_due(streams.conn)["unacked_records_expired"] == 3
    assert sweeper.expire_due(streams.conn)["unacked_records_expired"] == 0
    clock.shift(timedelta(days=8))
    assert sweeper.expire_due(streams.conn)["unacked_records_expired"] == 5


@pytest.mark.spec("MB-RESYNC")
async def test_a_position_that_retention_passed_is_a_resync(streams, reader, clock):
    streams.fill(5)
    epoch = (await reader.get("me")).json()["epoch"]
    clock.shift(timedelta(days=8))
    streams.fill(1)
    sweeper.expire_due(streams.conn)
    answer = await reader.get("me/records", since=2, epoch=epoch)
    assert (answer.status_code, answer.json()["reason"]) == (409, "below_oldest")
    assert answer.json()["oldest"] == 6


async def test_the_count_keeps_the_newest(streams, reader, operator):
    await operator.send("PUT", "/v1/settings", {"retained_records": 10})
    streams.fill(8)
    assert await standing(reader) == (1, 8)
    streams.fill(7)
    assert await standing(reader) == (6, 15)
    assert len((await reader.lease(100))["records"]) == 10


async def test_the_count_never_takes_a_held_record(streams, reader, operator, clock):
    await operator.send("PUT", "/v1/settings", {"retained_records": 5})
    streams.fill(3)
    streams.fill(1, kind="early_event", state="held")
    streams.fill(20)
    assert await standing(reader) == (4, 24)
    assert (await reader.counts())["held"] == 1
    clock.shift(timedelta(days=8))
    sweeper.expire_due(streams.conn)
    assert (await reader.counts())["held"] == 0


async def test_dead_letters_outlive_the_stream_by_the_retention(streams, reader, operator, clock):
    await operator.send("PUT", "/v1/settings", {"redeliveries": 0})
    streams.fill(1)
    clock.shift(timedelta(days=6))
    await reader.lease(1, 30)
    clock.shift(timedelta(seconds=31))
    await reader.lease(1)
    clock.shift(timedelta(days=3))
    sweeper.expire_due(streams.conn)
    assert len((await reader.get("me/dead-letters")).json()["items"]) == 1
    clock.shift(timedelta(days=5))
    assert sweeper.expire_due(streams.conn)["dead_letters_expired"] == 1


def test_slices_are_dropped_whole_once_nobody_needs_them(streams, clock, database):
    sliced = "select count(*) from pg_inherits where inhparent = 'mailbox.record'::regclass"
    streams.fill(3)
    assert streams.one("select count(*) from record_default") == 0
    before = streams.one(sliced)
    clock.shift(timedelta(days=4))
    assert sweeper.open_slices(streams.conn) == {"slices_opened": 3}
    streams.fill(2)
    clock.shift(timedelta(days=5))
    dropped = sweeper.expire_due(streams.conn)["slices_dropped"]
    assert dropped >= 1
    assert streams.one(sliced) == before + 3 - dropped
    assert streams.one("select count(*) from record") == 2
    assert streams.one("select oldest from mailbox") == 4


def test_a_slice_stays_as_long_as_a_mailbox_calls_one_of_its_records_the_oldest(
    streams, clock, database, new_record
):
    """A head that is locked when its turn comes is trimmed later; until then nothing is missing."""
    streams.fill(3)
    streams.append(new_record("agent:other"))
    clock.shift(timedelta(days=9))
    with database.connect("relay_mailbox_stream") as appending, appending.transaction():
        appending.execute("select from mailbox where owner = %s for no key update", (AGENT,))
        swept = sweeper.expire_due(streams.conn)
    assert (swept["mailboxes_trimmed"], swept["slices_dropped"]) == (1, 0)
    assert streams.one("select count(*) from record") == 4
    swept = sweeper.expire_due(streams.conn)
    assert swept["mailboxes_trimmed"] == 1
    assert swept["slices_dropped"] >= 1
    assert streams.one("select count(*) from record") == 0


def test_every_slice_is_protected_like_its_table(streams, clock, database):
    clock.shift(timedelta(days=4))
    sweeper.open_slices(streams.conn)
    unprotected = streams.conn.execute(
        "select c.relname from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " where c.relnamespace = 'mailbox'::regnamespace and c.relkind in ('r', 'p')"
        " and a.attname = 'tenant' and not (c.relrowsecurity and c.relforcerowsecurity)"
    ).fetchall()
    assert unprotected == []


def test_a_slice_of_a_day_that_has_records_already_stays_in_the_default(streams, clock):
    clock.shift(timedelta(days=10))
    streams.fill(1)
    assert sweeper.open_slices(streams.conn) == {"slices_opened": 2}
    assert streams.one("select count(*) from record_default") == 1


async def test_the_gauges_say_what_is_there(streams, reader, clock):
    streams.fill(3)
    streams.fill(1, kind="early_event", state="held")
    await reader.lease(1)
    clock.shift(timedelta(seconds=20))
    assert sweeper.measure(30, streams.conn) == {"measured": 1}
    shown = REGISTRY.get_sample_value
    expected = {"available": 2, "leased": 1, "held": 1, "dead_lettered": 0}
    for state, records in expected.items():
        assert shown("relay_mailbox_delivery_records", {"state": state}) == records
    assert 20 <= (shown("relay_mailbox_oldest_available_seconds") or 0) < 60
    assert shown("relay_mailbox_streams_with_holes") == 0


def test_a_hole_is_seen(streams, database):
    """Case M14."""
    streams.fill(5)
    database.owner.execute("delete from mailbox.record where seq = 3")
    sweeper.measure(30, streams.conn)
    assert REGISTRY.get_sample_value("relay_mailbox_streams_with_holes") == 1


def test_one_process_measures_and_all_show_it(streams, database, clock):
    shown = REGISTRY.get_sample_value
    available = ("relay_mailbox_delivery_records", {"state": "available"})
    streams.fill(2)
    with database.connect("relay_mailbox_stream") as measuring, measuring.transaction():
        assert measures.take_turn(measuring) is not None
        assert sweeper.measure(30, streams.conn) == {}, "another does it"
    assert sweeper.measure(30, streams.conn) == {"measured": 1}
    streams.fill(1)
    clock.shift(timedelta(seconds=29))
    assert sweeper.measure(30, streams.conn) == {}
    assert shown(*available) == 2
    clock.shift(timedelta(seconds=2))
    assert sweeper.measure(30, streams.conn) == {"measured": 1}
    assert shown(*available) == 3


def test_measuring_takes_a_hundredth_of_the_time(streams, clock):
    clock.freeze()
    with streams.conn.transaction():
        began = measures.take_turn(streams.conn)
        clock.shift(timedelta(seconds=7))
        measures.keep(streams.conn, {"available": 1}, began, 30)
    clock.shift(timedelta(seconds=692))
    assert sweeper.measure(30, streams.conn) == {}
    clock.shift(timedelta(seconds=1))
    assert sweeper.measure(30, streams.conn) == {"measured": 1}
