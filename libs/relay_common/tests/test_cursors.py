"""Cursors belong to one list: anything else is refused, never skipped."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from relay_common.cursors import Cursors
from relay_common.errors import CursorInvalid

SCOPE = ("acme", "prod", "GET /v1/waitpoints", "client:shop", "state=open")
CURSORS = Cursors(b"secret")


def test_a_cursor_brings_back_its_position():
    position = ["2030-01-01T00:00:00Z", "wp_1", 7, None]
    assert CURSORS.read(SCOPE, CURSORS.write(SCOPE, position)) == position


@pytest.mark.parametrize("place", range(len(SCOPE)))
def test_a_cursor_of_another_list_is_refused(place: int):
    other = tuple("x" if index == place else part for index, part in enumerate(SCOPE))
    with pytest.raises(CursorInvalid):
        CURSORS.read(other, CURSORS.write(SCOPE, [1]))


def test_a_cursor_signed_with_another_secret_is_refused():
    with pytest.raises(CursorInvalid):
        CURSORS.read(SCOPE, Cursors(b"other").write(SCOPE, [1]))


@given(st.integers(0, 300), st.integers(1, 255))
def test_any_change_is_noticed(place: int, change: int):
    raw = bytearray(base64.urlsafe_b64decode(CURSORS.write(SCOPE, ["a position"]) + "=="))
    raw[place % len(raw)] ^= change
    with pytest.raises(CursorInvalid):
        CURSORS.read(SCOPE, base64.urlsafe_b64encode(raw).rstrip(b"=").decode())


@given(st.text(max_size=80))
def test_any_text_is_refused(text: str):
    with pytest.raises(CursorInvalid):
        CURSORS.read(SCOPE, text)
