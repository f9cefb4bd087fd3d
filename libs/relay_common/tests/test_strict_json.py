"""JSON is read with one meaning, in linear time, and never ends in a crash."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_common.errors import MalformedJson
from relay_common.strict_json import parse

REFUSED = {
    "empty": b"",
    "half": b'{"a":',
    "not utf-8": b'"\xff"',
    "byte order mark": b"\xef\xbb\xbf{}",
    "nan": b"[NaN]",
    "infinity": b"[-Infinity]",
    "overflow": b"[1e999]",
    "integer beyond 64 bits": b"[18446744073709551616]",
    "integer of a million digits": b"1" * 1_000_000,
    "same name twice": b'{"a":1,"a":2}',
    "same name twice, one escaped": b'{"a":1,"\\u0061":2}',
    "lone high surrogate": b'["\\ud800"]',
    "lone low surrogate": b'["\\uDC00"]',
    "surrogates in the wrong order": b'["\\udc00\\ud800"]',
    "surrogate in a name": b'{"\\ud800":1}',
    "nul escaped": b'["\\u0000"]',
    "nul in a name": b'{"\\u0000":1}',
    "65 levels": b"[" * 65 + b"]" * 65,
    "100,000 levels": b"[" * 100_000 + b"]" * 100_000,
    "100,000 levels never closed": b'{"a":[' * 100_000,
    "two documents": b"{}{}",
    "comment": b"/* */ {}",
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_what_is_not_plain_json_is_refused(body: bytes):
    with pytest.raises(MalformedJson):
        parse(body)


def test_what_only_looks_dangerous_is_taken():
    assert parse(b'["\\ud83d\\ude00"]') == ["\U0001f600"]
    assert parse(b'["\\\\u0000"]') == ["\\u0000"]
    assert parse(b'{"a":"' + b"[" * 1000 + b'"}') == {"a": "[" * 1000}
    assert parse(b"[" * 64 + b"]" * 64)
    assert parse(b"[" + b"{}," * 1000 + b"[]]")
    assert parse(b"[18446744073709551615,-9223372036854775808]") == [2**64 - 1, -(2**63)]


@pytest.mark.parametrize(
    "body",
    [
        b'"' + b'\\"' * 2_000_000 + b"[" * 65,
        b'["\\' * 700_000,
        b"[]," * 1_500_000,
        b"[{" * 2_000_000,
    ],
    ids=["quotes", "half escapes", "flat", "deep"],
)
def test_hostile_bodies_are_judged_in_linear_time(body: bytes):
    started = time.process_time()
    with pytest.raises(MalformedJson):
        parse(body)
    assert time.process_time() - started < 2.0


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.text(st.characters(codec="utf-8", exclude_characters="\x00")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc"), inner, max_size=4),
)


@given(json_values)
def test_what_was_written_is_read_again(value: object):
    assert parse(json.dumps(value).encode()) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_refusal(body: bytes):
    try:
        parse(body)
    except MalformedJson:
        return
