"""Bytes packed or read by hand are the bytes of the schema: fastavro is the judge."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from relay_common.avro import Codec
from relay_common.errors import Poison
from relay_common.match_key import MatchKey
from relay_common.outbox import expand, pack
from relay_mailbox.consumer import new_record
from relay_mailbox.domain.packed import read_record
from relay_mailbox.domain.record import NewRecord
from relay_matcher.announcement import Announcer, Body, Record, Subject, message_id_of
from relay_matcher.domain.event import Origin, read_event

CODEC = Codec()
ANNOUNCER = Announcer(CODEC.prefix, lambda name: name)
texts = st.text(min_size=1, max_size=300).filter(lambda t: "\0" not in t)
short = st.text(min_size=1, max_size=40).filter(lambda t: "\0" not in t)
times = st.datetimes(datetime(1970, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001
keys = st.builds(MatchKey, short, short, short, texts.map(lambda t: t[:120]))
subjects = st.builds(
    Subject,
    id=st.uuids(),
    key=keys,
    waiter=short,
    kind=st.sampled_from(["question", "review", "event"]),
    state=st.sampled_from(["open", "stalled", "resolved"]),
    revision=st.integers(1, 2**31 - 1),
    activation=st.integers(1, 2**31 - 1),
    expires_at=times,
    deliver_topic=st.none() | short,
)
bodies = st.builds(Body, st.binary(max_size=300), st.none() | st.binary(max_size=300), st.binary())


def sent(messages: list) -> dict[str, dict[str, object]]:
    """Return the decoded records by topic, as the publisher will expand them."""
    packed = pack(messages, 1)
    rows = zip(packed["topics"], packed["payloads"], strict=True)
    values = [(to, value) for topic, p in rows for to, (_, value, _) in expand(topic, p)]
    return {topic: CODEC.decode(value)[1] for topic, value in values}


@given(subjects, times, bodies, st.none() | st.binary(min_size=16, max_size=16))
def test_lifecycle_event_reads_as_it_was_meant(
    subject: Subject, at: datetime, body: Body, supersedes: bytes | None
) -> None:
    found = sent(
        ANNOUNCER.lifecycle(subject, "waitpoint.resolved", at, body, supersedes=supersedes)
    )
    event, record = found["relay.waitpoints"], found["relay.mailbox"]
    same = {"tenant": subject.key.tenant, "environment": subject.key.environment}
    message_id = message_id_of(subject.id, subject.revision)
    expected = same | {
        "message_id": message_id,
        "type": "waitpoint.resolved",
        "revision": subject.revision,
        "activation": subject.activation,
        "waiter": subject.waiter,
        "kind": subject.kind,
        "state": subject.state,
        "event_type": subject.key.event_type,
        "correlation_key": subject.key.correlation_key,
        "occurred_at": at,
        "expires_at": subject.expires_at,
        "internal": False,
    }
    assert {name: event[name] for name in expected} == expected
    assert record == same | {
        "owner": subject.waiter,
        "message_id": message_id,
        "kind": "waitpoint_event",
        "type": "waitpoint.resolved",
        "state": "available",
        "trust": None,
        "relationship": None,
        "waitpoint_id": event["waitpoint_id"],
        "supersedes": supersedes,
        "wakes": True,
        "body": event["body"],
    }
    assert ("relay.topics" in found) == (subject.deliver_topic is not None)
    if subject.deliver_topic is not None:
        assert found["relay.topics"] == same | {
            "topic": subject.deliver_topic,
            "publisher": subject.waiter,
            "type": "waitpoint.resolved",
            "message_id": message_id,
            "occurred_at": at,
            "body": event["body"],
        }


@given(
    keys,
    st.sampled_from(["message", "waitpoint_event", "early_event"]),
    st.sampled_from(["available", "held", "acked"]),
    st.booleans(),
    st.none() | short,
    bodies,
)
def test_mailbox_record_reads_as_it_was_meant(
    key: MatchKey, kind: str, state: str, wakes: bool, relationship: str | None, body: Body
) -> None:
    record = Record(
        "agent:a", uuid.uuid4().bytes, kind, "t", state, None, None, wakes, relationship
    )
    found = sent([ANNOUNCER.record(key, record, body, ())])["relay.mailbox"]
    assert (found["kind"], found["state"], found["wakes"]) == (kind, state, wakes)
    assert found["relationship"] == relationship
    assert found["body"] == body.head + (body.shared or b"") + body.tail


def test_one_key_has_one_hash_however_its_lengths_are_written() -> None:
    record = {
        "tenant": "acme",
        "environment": "prod",
        "event_type": "t",
        "correlation_key": "order",
        "source": "s",
        "id": "1",
    }
    value = CODEC.encode("relay.events.v1", record)
    # Avro lets a length of 4 be written in two bytes as well; another writer may do so.
    wordy = value[:10] + b"\x88\x00" + value[11:]
    assert CODEC.decode(wordy) == CODEC.decode(value)
    origin = Origin("id", 0, 0)
    usual, other = (read_event(v, 10, 7, origin) for v in (value, wordy))
    assert usual.key == other.key
    assert usual.key_hash == other.key_hash == usual.key.hash(7)
    assert usual.event_id == other.event_id


names = st.text(max_size=600) | short
mailbox_fields = st.fixed_dictionaries(
    {
        "tenant": names,
        "environment": short,
        "owner": names,
        "message_id": st.binary(min_size=16, max_size=16),
        "kind": st.sampled_from(["message", "waitpoint_event", "early_event"]),
        "type": short,
        "state": st.sampled_from(["available", "held", "acked"]),
        "trust": st.none() | names,
        "relationship": st.none() | short,
        "waitpoint_id": st.none() | short,
        "supersedes": st.none() | st.binary(min_size=16, max_size=16),
        "wakes": st.booleans(),
        "body": st.binary(max_size=20) | st.sampled_from([b"{}", b'{"sender":"agent:b"}']),
    }
)


def either(read: Callable[[], NewRecord]) -> NewRecord | str:
    """Return the record, or why there is none."""
    try:
        return read()
    except Poison as poison:
        return poison.reason


@given(mailbox_fields)
def test_mailbox_record_is_read_as_fastavro_reads_it(fields: dict[str, object]) -> None:
    value = CODEC.encode("relay.mailbox.v1", fields)
    wanted = either(lambda: new_record(CODEC.decode(value)[1]))
    assert either(lambda: read_record(value, 10)) == wanted


@given(mailbox_fields, st.data())
def test_broken_mailbox_record_is_poison_and_nothing_else(
    fields: dict[str, object], data: st.DataObject
) -> None:
    value = CODEC.encode("relay.mailbox.v1", fields)
    broken = bytearray(value[: data.draw(st.integers(10, len(value)))])
    if len(broken) > 10:
        place = data.draw(st.integers(10, len(broken) - 1))
        broken[place] = data.draw(st.integers(0, 255))
    found = either(lambda: read_record(bytes(broken), 10))
    wanted = either(lambda: new_record(CODEC.decode(bytes(broken))[1]))
    assert isinstance(found, str) == isinstance(wanted, str)
    assert isinstance(found, str) or found == wanted
