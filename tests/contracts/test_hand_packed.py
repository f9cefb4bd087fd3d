"""Bytes packed or read by hand are the bytes of the schema: fastavro is the judge."""

import uuid
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st
from relay_common.avro import Codec
from relay_common.match_key import MatchKey
from relay_common.outbox import expand, pack
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
