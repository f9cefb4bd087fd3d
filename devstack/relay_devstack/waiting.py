"""Waiting on a condition, with a deadline and with what was last seen."""

import time
from collections.abc import Callable

from relay_devstack.errors import StartFailedError


def until_none(missing: Callable[[], str | None], timeout_seconds: float, subject: str) -> None:
    """Return when `missing()` answers None.

    Raises StartFailedError with its last answer when `timeout_seconds` have passed.
    """
    deadline = time.monotonic() + timeout_seconds
    while (seen := missing()) is not None:
        if time.monotonic() > deadline:
            raise StartFailedError(
                f"{subject} was not ready after {timeout_seconds:.0f} seconds: {seen}"
            )
        time.sleep(0.05)
