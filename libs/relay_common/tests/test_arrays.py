"""Packed arrays arrive as what they are."""

import uuid
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from relay_common.arrays import (
    blobs,
    flags,
    ints,
    longs,
    repeated_texts,
    shorts,
    some_uuids,
    spans,
    texts,
    times,
    uuids,
)

AT = datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
LONG_WAIT = timedelta(days=29, microseconds=7)
IDS = [uuid.uuid4() for _ in range(3)]


@pytest.mark.parametrize(
    ("packed", "cast", "expected"),
    [
        (longs([1, -5, 2**63 - 1]), "bigint[]", [1, -5, 2**63 - 1]),
        (uuids([one.bytes for one in IDS]), "uuid[]", IDS),
        (texts(["ä".encode(), b"", b"{,}"]), "text[]", ["ä", "", "{,}"]),
        (blobs([b"\0\xff", b""]), "bytea[]", [b"\0\xff", b""]),
        (repeated_texts(["a", "ü", "a"]), "text[]", ["a", "ü", "a"]),
        (repeated_texts(["a", None, ""]), "text[]", ["a", None, ""]),
        (repeated_texts([None]), "text[]", [None]),
        (some_uuids([IDS[0].bytes, None]), "uuid[]", [IDS[0], None]),
        (flags([True, False]), "boolean[]", [True, False]),
        (shorts([1, -2]), "smallint[]", [1, -2]),
        (ints([1, -2]), "integer[]", [1, -2]),
        (times([AT, None]), "timestamp with time zone[]", [AT, None]),
        (spans([LONG_WAIT, None]), "interval[]", [LONG_WAIT, None]),
        (blobs([None, b"x"]), "bytea[]", [None, b"x"]),
        (longs([]), "bigint[]", []),
        (uuids([]), "uuid[]", []),
        (texts([]), "text[]", []),
    ],
)
def test_an_array_arrives_as_it_was_packed(postgres_url, packed, cast, expected):
    with psycopg.connect(postgres_url) as conn:
        found = conn.execute(f"select %s::{cast}, pg_typeof(%s)::text", (packed, packed)).fetchone()
    assert found == (expected, cast)
