"""Packing the outbox: what goes in comes out, once, in order, in rows that fit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_common.outbox import (
    LARGEST_MESSAGE,
    ROW_BYTES,
    MessageTooLargeError,
    OutMessage,
    Twin,
    expand,
    pack,
    shard_of,
    unpack,
)
from relay_common.records import DeadLetter, Record, message_of

small = st.binary(max_size=20)
messages = st.builds(
    OutMessage,
    topic=st.sampled_from(["a", "b"]),
    key=st.none() | small,
    head=small,
    headers=st.lists(st.tuples(st.text(max_size=5), small), max_size=2).map(tuple),
    shared=st.none() | st.sampled_from([b"", b"event 1", b"event 2"]),
    tail=small,
)


def expanded(packed: dict[str, object]) -> list[tuple[str, int, tuple[object, ...]]]:
    rows = zip(packed["topics"], packed["shards"], packed["payloads"], strict=True)
    return [(t, shard, m) for t, shard, payload in rows for m in unpack(payload)]


@given(st.lists(messages, max_size=30), st.integers(1, 4))
def test_every_message_comes_out_once_and_in_order(given_: list[OutMessage], shards: int) -> None:
    found = expanded(pack(given_, shards))
    for place in {(m.topic, shard_of(m.key or b"", shards)) for m in given_}:
        wanted = [
            (m.key, m.head + (m.shared or b"") + m.tail, m.headers)
            for m in given_
            if (m.topic, shard_of(m.key or b"", shards)) == place
        ]
        assert [m for topic, shard, m in found if (topic, shard) == place] == wanted
    assert len(found) == len(given_)


def test_shared_value_is_stored_once_a_row() -> None:
    event = b"x" * 50_000
    packed = pack([OutMessage("t", b"k", b"%d" % n, shared=event) for n in range(15)], 1)
    assert len(packed["payloads"]) == 1
    assert len(packed["payloads"][0]) < 55_000
    assert all(value.endswith(event) for _, value, _ in unpack(packed["payloads"][0]))


def test_rows_end_at_one_mebibyte_and_keep_the_order() -> None:
    given_ = [OutMessage("t", b"k", b"%04d" % n + b"x" * 300_000) for n in range(10)]
    packed = pack(given_, 2)
    assert all(len(payload) <= ROW_BYTES + 1000 for payload in packed["payloads"])
    assert len(packed["payloads"]) == 4
    starts = [value[:4] for _, _, (_, value, _) in expanded(packed)]
    assert starts == [b"%04d" % n for n in range(10)]


def test_one_large_message_has_a_row_of_its_own_up_to_the_tables_limit() -> None:
    largest = OutMessage("t", b"", b"x" * LARGEST_MESSAGE)
    [payload] = pack([largest], 1)["payloads"]
    assert len(payload) <= 1_114_112
    with pytest.raises(MessageTooLargeError):
        pack([OutMessage("t", b"k", b"x" * LARGEST_MESSAGE)], 1)


def test_headers_count_for_the_size() -> None:
    many = tuple((f"header-{n}", b"v" * 30) for n in range(1000))
    record = Record("t", 0, 1, 0, b"k", b"x" * 1_040_000, many)
    [payload] = pack([message_of(DeadLetter(record, "r"))], 1)["payloads"]
    assert len(payload) <= 1_114_112


def test_nothing_to_say_is_nothing_to_write() -> None:
    assert pack([], 2) == {"shards": [], "topics": [], "payloads": []}


def test_twins_share_all_but_topic_key_and_head_and_keep_their_order():
    first = OutMessage(
        "waitpoints",
        b"k",
        b"w1:",
        (("ce_id", b"1"),),
        b"event",
        b":tail",
        own=b"own-",
        twins=(Twin("mailbox", b"owner", b"m1:"),),
    )
    between = OutMessage("mailbox", b"owner", b"m2:", beside=("waitpoints", b"k"))
    last = OutMessage(
        "waitpoints", b"k", b"w3:", twins=(Twin("mailbox", b"owner", b"m3:"),), tombstone=True
    )
    packed = pack([first, between, last], 8)
    assert packed["topics"] == ["waitpoints"]
    assert expand("waitpoints", packed["payloads"][0]) == [
        ("waitpoints", (b"k", b"w1:own-event:tail", (("ce_id", b"1"),))),
        ("mailbox", (b"owner", b"m1:own-event:tail", (("ce_id", b"1"),))),
        ("mailbox", (b"owner", b"m2:", ())),
        ("waitpoints", (b"k", None, ())),
        ("mailbox", (b"owner", None, ())),
    ]
