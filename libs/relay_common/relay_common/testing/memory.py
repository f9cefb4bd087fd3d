"""Room in memory for the servers of one run."""

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
SWEEPING = Path(tempfile.gettempdir()) / f"relay-{os.geteuid()}.lock"
ROOM_BYTES = 2 << 30


@contextmanager
def quick_folder() -> Generator[Path]:
    """Lend a folder in memory where there is room, else in the temporary place.

    A clone of the template is hundreds of small files that come and go. On a disk they cost more
    than most tests: ext4 without a journal searches long for an inode it has not just freed.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"relay-{os.getpid()}-", dir=roomy()))
    folder.chmod(0o711)  # Postgres may run as another account
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def roomy() -> Path | None:
    """Return where the system keeps files in memory, when ROOM_BYTES are free there."""
    roomy = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free >= ROOM_BYTES
    return MEMORY if roomy else None


def left_behind() -> list[Path]:
    """Return our folders in memory of runs that were killed before they could remove them."""
    found = {folder: folder.name.split("-")[1] for folder in MEMORY.glob("relay-*-*")}
    dead = [folder for folder, pid in found.items() if not os.path.exists(f"/proc/{pid}")]
    return [folder for folder in dead if folder.stat().st_uid == os.geteuid()]
