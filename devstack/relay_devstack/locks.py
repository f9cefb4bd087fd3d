"""One at a time, across threads and processes."""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from relay_devstack.errors import disk_faults


@contextmanager
def only_one(file: Path) -> Generator[None]:
    """Hold the lock `file`, made where missing; another holder is waited for."""
    with disk_faults(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.open("w")
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
