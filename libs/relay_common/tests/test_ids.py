"""Identifiers, match keys and named queries: pure and exact."""

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_common import queries
from relay_common.failpoints import parse
from relay_common.ids import decode_id, derive_id, encode_id, new_id
from relay_common.match_key import MatchKey, owner_key

texts = st.text(st.sampled_from("ab\0é"), max_size=3)


@given(st.binary(min_size=16, max_size=24))
def test_id_comes_back(raw: bytes) -> None:
    assert decode_id("wp_", encode_id("wp_", raw), len(raw)) == raw


@pytest.mark.parametrize(
    "text",
    [
        "",
        "wp_",
        "ev_AAAAAAAAAAAAAAAAAAAAAA",  # another kind
        "wp_AAAAAAAAAAAAAAAAAAAAAA=",
        "wp_AAAAAAAAAAAAAAAAAAAAAB",  # spare bits set: another spelling of the same bytes
        "wp_AAAAAAAAAAAAAAAAAAAA A",
        "wp_AAAAAAAAAAAAAAAAAAAAA+",
        "wp_ÀAAAAAAAAAAAAAAAAAAAAA",
        "wp_AAAAAAAAAAAAAAAAAAAAAAAA",  # longer
        "wp_A",
    ],
)
def test_anything_else_is_no_id(text: str) -> None:
    assert decode_id("wp_", text, 16) is None


def test_new_ids_are_uuid7_and_grow() -> None:
    made = [new_id() for _ in range(100)]
    assert {i.version for i in made} == {7}
    assert made == sorted(made)
    assert isinstance(made[0], uuid.UUID)


def test_derived_ids_keep_their_parts_apart() -> None:
    assert derive_id("a", "bc") != derive_id("ab", "c")
    assert derive_id("a", b"b") == derive_id(b"a", "b")
    assert derive_id("event", "acme", "prod", "/payments", "evt-1").hex() == (
        "e0dc46d5cd29ce9d3cd993e2d3e178db"
    )


@given(st.tuples(texts, texts, texts, texts), st.tuples(texts, texts, texts, texts))
def test_match_keys_encode_alike_only_when_equal(
    one: tuple[str, str, str, str], other: tuple[str, str, str, str]
) -> None:
    assert (MatchKey(*one).encoded() == MatchKey(*other).encoded()) == (one == other)


def test_hash_is_signed_and_seeded() -> None:
    key = MatchKey("acme", "prod", "payment.settled", "order-4711")
    hashes = {key.hash(seed) for seed in (-1, 0, 1, 2**63 - 1, -(2**63))}
    assert len(hashes) == 5
    assert all(-(2**63) <= h < 2**63 for h in hashes)


def test_owner_key_is_length_prefixed() -> None:
    assert owner_key("a", "b", "c") == b"\0\1a\0\1b\0\1c"


def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> str:
    name = f"pkg_{uuid.uuid4().hex}"
    (tmp_path / name / "sql").mkdir(parents=True)
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "sql" / "noun.sql").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_queries_are_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = package(
        tmp_path,
        monkeypatch,
        "-- header\n-- name: one\n-- finds one\nselect 1;\n\n"
        "-- name: two\n-- finds two\nselect 2\n-- why\nwhere true;\n",
    )
    found = queries.load(name, "noun")
    assert dict(found) == {"one": "select 1", "two": "select 2\n-- why\nwhere true"}


@pytest.mark.parametrize(
    "text",
    [
        "-- name: one\nselect 1;",
        "-- name: one\n-- nothing\n",
        "-- name: one\n-- a\nselect 1;\n-- name: one\n-- b\nselect 2;",
    ],
)
def test_bad_query_files_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    name = package(tmp_path, monkeypatch, text)
    with pytest.raises(queries.BadQueryFileError):
        queries.load(name, "noun")


def test_failpoints_are_read_from_one_line() -> None:
    assert parse("") == {}
    assert parse("a.b=kill, c=kill@3") == {"a.b": 1, "c": 3}
    with pytest.raises(ValueError, match="name=kill"):
        parse("a=sleep")
