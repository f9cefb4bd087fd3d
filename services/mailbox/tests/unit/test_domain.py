"""Rules of mailboxes."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_common.errors import Poison
from relay_mailbox.consumer import new_record
from relay_mailbox.domain.cursor import Stream, resync_reason
from relay_mailbox.domain.lease import Lease, decode_lease
from relay_mailbox.domain.record import DELIVERY_STATES, TRANSITIONS

STREAM = Stream(epoch=7, oldest=5, head=9)


@pytest.mark.spec("MB-RESYNC")
@pytest.mark.parametrize(
    ("since", "epoch", "reason"),
    [
        (4, 7, None),
        (9, 7, None),
        (3, 7, "below_oldest"),
        (0, None, "below_oldest"),
        (10, 7, "ahead_of_head"),
        (5, 6, "epoch_changed"),
        (99, 8, "epoch_changed"),
    ],
)
def test_what_makes_a_reader_resync(since, epoch, reason):
    assert resync_reason(STREAM, since, epoch) == reason


def test_an_empty_stream_is_followed_from_its_start():
    assert resync_reason(Stream(1, 1, 0), 0, None) is None
    assert resync_reason(Stream(1, 10, 9), 9, 1) is None


@given(st.uuids(), st.integers(1, 2**40), st.integers(0, 1000))
def test_a_lease_id_reads_back(token, first, more):
    lease = Lease(token, first, first + more)
    assert decode_lease(lease.encoded()) == lease


@given(st.text())
def test_any_other_text_is_no_lease(text):
    assert decode_lease(text) is None
    assert decode_lease("ls_" + text) is None


def test_a_lease_over_an_impossible_range_is_none():
    assert decode_lease(Lease(uuid.uuid4(), 5, 4).encoded()) is None
    assert decode_lease(Lease(uuid.uuid4(), 0, 4).encoded()) is None


def test_every_state_has_its_transitions():
    assert set(TRANSITIONS) == set(DELIVERY_STATES)
    assert TRANSITIONS["acked"] == frozenset()
    assert "leased" not in TRANSITIONS["held"]


FIELDS = {
    "tenant": "acme",
    "environment": "prod",
    "owner": "agent:a",
    "message_id": b"m" * 16,
    "kind": "message",
    "type": "note",
    "state": "available",
    "trust": None,
    "relationship": "unknown",
    "waitpoint_id": None,
    "supersedes": b"s" * 16,
    "wakes": True,
    "body": b'{"sender":"agent:b"}',
}


def test_a_record_is_read_from_its_fields():
    record = new_record(FIELDS)
    assert record.sender == "agent:b"
    assert record.supersedes == b"s" * 16
    assert record.relationship == "unknown"


def test_the_sender_of_other_kinds_is_not_read():
    assert new_record({**FIELDS, "kind": "waitpoint_event"}).sender is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": b"{"},
        {"body": b""},
        {"body": b'{"sender": 3}'},
        {"body": b"\xff"},
        {"body": b'{"sender": "a", "text": "\xff"}'},
        {"body": b'{"sender": "a\\u0000"}'},
        {"body": b'{"sender": "%s"}' % (b"x" * 513)},
        {"body": b"[" * 100_000},
        {"kind": "waitpoint_event", "body": b"nonsense"},
        {"owner": ""},
        {"owner": "x" * 513},
        {"tenant": "a\x00b"},
    ],
)
def test_a_record_that_nobody_could_read_is_poison(wrong):
    with pytest.raises(Poison):
        new_record({**FIELDS, **wrong})
