"""Records that can never be processed leave the partition with reason, place and bytes (R28)."""

import base64
import os
from collections.abc import Callable

import pytest
from relay_common.testing.wait import until

from tests.integration.clients import Program, event
from tests.integration.conftest import Place
from tests.integration.deployment import Deployment
from tests.integration.producer import EVENTS, PlainProducer, event_value
from tests.integration.tap import Seen, Tap

TENANT = b"\x06abc"  # Avro: length 3, zig-zag
LONG = b"\xfe\xff\xff\xff\xff\x7f"  # a length of 2^41


def good(**changes: object) -> bytes:
    """Return a valid event of a tenant of its own, with `changes`."""
    place = {"tenant": "poison", "environment": "prod"}
    return EVENTS.encode({**place, **event("order.paid", "zzkey-poison"), **changes})


# What is no JSON for a careful reader travels as bytes.
OPAQUE = {
    "cut short": b'{"zzsecret": ',
    "no UTF-8": b'"\xff\xfe"',
    "not a number": b"NaN",
    "half a surrogate pair": b'"\\ud800"',
    "nested without end": b"[" * 4_000,
    "a recursive bomb": b"[" * 4_000 + b"]" * 4_000,
    "nothing": b"",
}
# name → (value, the reasons that say it rightly)
POISON: dict[str, tuple[bytes | None, set[str]]] = {
    "null value": (None, {"null_value"}),
    "empty value": (b"", {"bad_magic", "truncated"}),
    "bad magic": (b'{"event_type":"zzsecret"}', {"bad_magic"}),
    "random bytes": (b"\x7f" + os.urandom(200), {"bad_magic"}),
    "only a framing": (EVENTS.header, {"truncated"}),
    "half a framing": (EVENTS.header[:6], {"truncated"}),
    "unknown fingerprint": (b"\xc3\x01" + b"\x01" * 8 + good()[10:], {"unknown_schema"}),
    "unknown registry id": (b"\x00\x00\x00\x00\x2a" + good()[10:], {"unknown_schema"}),
    "schema of another topic": (b"\xc3\x01" + b"\x02" * 8, {"unknown_schema", "truncated"}),
    "truncated": (good(data=b'{"a":1}')[:-3], {"truncated"}),
    "trailing bytes": (good() + b"zzsecret", {"trailing_bytes"}),
    "huge length": (EVENTS.header + LONG, {"truncated", "oversized"}),
    "huge length inside": (EVENTS.header + TENANT + LONG, {"truncated", "oversized"}),
    "negative length": (EVENTS.header + b"\x05abc", {"truncated", "invalid_value", "oversized"}),
    "invalid UTF-8": (EVENTS.header + b"\x06\xff\xfeA" + TENANT * 3 + b"\0" * 9, {"invalid_utf8"}),
    "union index out of range": (
        EVENTS.header + TENANT * 4 + b"\x54" + b"\0" * 8,
        {"invalid_value", "truncated"},
    ),
    "empty key": (good(correlation_key=""), set()),
    "long key": (good(correlation_key="k" * 513), set()),
    "NUL in key": (good(correlation_key="a\0b"), set()),
    "empty tenant": (good(tenant=""), set()),
    "data above the limit": (good(data=b'"' + b"x" * (300 << 10) + b'"'), set()),
}
HEADERS = [(f"h{number}", b"x" * 20) for number in range(1000)]


def test_each_poisonous_record_is_kept_in_the_dead_letter_topic_and_the_partition_goes_on(
    stack: Deployment, tap: Tap, program: Callable[..., Program], place: Place
) -> None:
    pid = stack.pid("matcher")
    producer = PlainProducer(stack.bootstrap)
    names = [*POISON, "a thousand headers"]
    for name in names:
        value = POISON[name][0] if name in POISON else b"no magic"
        headers = HEADERS if name not in POISON else [("ce_type", b"order.paid")]
        producer.send(value, b"the same key", headers, partition=0)
        producer.flush()
    for partition in range(4):
        sent = event("order.paid", place.key(partition), source="after", id=str(partition))
        value = event_value(place.tenant, place.environment, sent)
        producer.send(value, partition=partition, headers=HEADERS)
    sent = producer.flush()

    reader = program("client:shop")
    for partition in range(4):
        until(
            lambda n=partition: reader.pages(
                "/v1/events", event_type="order.paid", correlation_key=place.key(n)
            ),
            30,
            f"a good event behind the poison in partition {partition}",
        )
    wanted = {(s.partition, s.offset): name for s, name in zip(sent, names, strict=False)}
    until(lambda: set(wanted) <= set(tap.letters()), 30, lambda: missing(tap, wanted))
    letters = tap.letters()
    for spot, name in wanted.items():
        check(name, letters[spot])
    assert stack.pid("matcher") == pid


def missing(tap: Tap, wanted: dict[tuple[int, int], str]) -> str:
    """Return the names of what is not in the dead letter topic yet."""
    letters = tap.letters()
    return str([name for spot, name in wanted.items() if spot not in letters])


def check(name: str, letter: Seen) -> None:
    """Compare one dead letter with what was sent."""
    value, reasons = POISON.get(name, (b"no magic", {"bad_magic"}))
    reason = letter.header("relay_reason")
    assert reason, name
    assert not reasons or reason in reasons, f"{name}: {reason}"
    assert letter.value == value, name
    assert letter.key == b"the same key"
    assert letter.header("relay_source_topic") == "relay.events"
    originals = [h for h in letter.headers if not h[0].startswith("relay_")]
    assert originals == (HEADERS if name not in POISON else [("ce_type", b"order.paid")]), name
    assert "zzsecret" not in (letter.header("relay_detail") or "")


@pytest.mark.parametrize("data", OPAQUE.values(), ids=OPAQUE)
def test_data_that_are_no_json_reach_the_waiter_unharmed(
    stack: Deployment, program: Callable[..., Program], place: Place, data: bytes
) -> None:
    waiter = program("client:checkout")
    opened = waiter.open("order.paid", place.key())
    producer = PlainProducer(stack.bootstrap)
    where = {"tenant": place.tenant, "environment": place.environment}
    producer.send(EVENTS.encode({**where, **event("order.paid", place.key()), "data": data}))
    producer.flush()

    until(lambda: waiter.waitpoint(opened["id"])["state"] == "resolved", 20, "resolved")

    found = waiter.waitpoint(opened["id"])["resolution"]["event"]
    assert "data" not in found
    assert base64.b64decode(found["data_base64"]) == data
    (listed,) = waiter.pages("/v1/events", event_type="order.paid", correlation_key=place.key())
    assert base64.b64decode(listed["data_base64"]) == data
    until(lambda: len(waiter.records()) == 2, 20, "both records")


def test_poison_alone_does_not_make_a_matcher_unready(stack: Deployment) -> None:
    stack.until_ready("matcher")


pytestmark = pytest.mark.timeout(120)
