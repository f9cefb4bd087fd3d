"""Waiting on a condition instead of on time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")
STEP_SECONDS = 0.01


def until(
    predicate: Callable[[], T], timeout_s: float = 10.0, describe: Callable[[], object] | str = ""
) -> T:
    """Return the first true value of `predicate`.

    Raises AssertionError after `timeout_s` with what `describe` says, or with the last value seen.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        seen = predicate()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(complaint(timeout_s, describe, seen))
        time.sleep(STEP_SECONDS)


async def eventually(
    predicate: Callable[[], Awaitable[T]],
    timeout_s: float = 10.0,
    describe: Callable[[], object] | str = "",
) -> T:
    """Return the first true value that awaiting `predicate` gives; else as `until`."""
    deadline = time.monotonic() + timeout_s
    while True:
        seen = await predicate()
        if seen:
            return seen
        if time.monotonic() > deadline:
            raise AssertionError(complaint(timeout_s, describe, seen))
        await asyncio.sleep(STEP_SECONDS)


def complaint(timeout_s: float, describe: Callable[[], object] | str, seen: object) -> str:
    """Return what is said when the waiting was in vain."""
    said = describe() if callable(describe) else describe
    return f"expected within {timeout_s} s: {said or 'a true value'}; last seen: {seen!r}"
