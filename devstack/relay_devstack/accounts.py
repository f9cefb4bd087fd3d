"""Postgres refuses to run as root: then it runs as another account, where that one can reach."""

import hashlib
import os
import pwd
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from relay_devstack.daemons import Account
from relay_devstack.errors import WrongMachineError, disk_faults
from relay_devstack.locks import only_one

ACCOUNT = "nobody"
OWNER = "owner"  # a file in each home: which folder it stands in for


def unprivileged() -> Account | None:
    """Return the account for Postgres when this process is root, else None."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(ACCOUNT)
    except KeyError as error:
        raise WrongMachineError(
            f"Postgres refuses to run as root and there is no account `{ACCOUNT}`: "
            "run this as another user."
        ) from error
    return Account(entry.pw_uid, entry.pw_gid)


def reachable(path: Path, account: Account | None) -> bool:
    """Return whether `account` may go through every folder above `path` (by mode bits)."""
    if account is None:
        return True
    return all(_may_enter(folder, account) for folder in path.resolve().parents if folder.exists())


def public_home(path: Path, account: Account) -> Path:
    """Return the folder that stands in for `path` where `account` can reach it.

    It lies in the system's temporary place under a name derived from `path`.
    """
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()
    return _temporary_place(account) / f"relay-{digest[:16]}"


def make_public_home(path: Path, account: Account) -> Path:
    """Make the stand-in for `path` and return it.

    Raises WrongMachineError when somebody else owns its name.
    """
    home = public_home(path, account)
    with disk_faults(home):
        home.mkdir(mode=0o711, exist_ok=True)
        home.chmod(0o711)
    _refuse_foreign(home)
    with disk_faults(home):
        (home / OWNER).write_text(str(path.resolve()))
    return home


def sweep_homes(account: Account) -> None:
    """Remove the homes of ours whose state folder is gone."""
    for owner in _temporary_place(account).glob(f"relay-*/{OWNER}"):
        with suppress(FileNotFoundError):  # another process sweeps too
            if owner.stat().st_uid == os.geteuid() and not Path(owner.read_text()).exists():
                shutil.rmtree(owner.parent, ignore_errors=True)


def _refuse_foreign(home: Path) -> None:
    found = home.lstat()
    if found.st_uid != os.geteuid() or not stat.S_ISDIR(found.st_mode):
        raise WrongMachineError(f"{home} belongs to somebody else: remove it and start again.")


def copied_tree(source: Path, target: Path) -> Path:
    """Return `target`, a complete readable copy of `source` made once, whoever else asks for it."""
    with only_one(target.with_name(f"{target.name}.lock")):
        if not target.exists():
            with disk_faults(target), tempfile.TemporaryDirectory(dir=target.parent) as partial:
                copy = Path(partial) / source.name
                shutil.copytree(source, copy, symlinks=True)
                copy.replace(target)
    return target


def _may_enter(folder: Path, account: Account) -> bool:
    found = folder.stat()
    if found.st_uid == account.uid:
        return bool(found.st_mode & stat.S_IXUSR)
    if found.st_gid == account.gid:
        return bool(found.st_mode & stat.S_IXGRP)
    return bool(found.st_mode & stat.S_IXOTH)


def _temporary_place(account: Account) -> Path:
    for place in (Path("/var/tmp"), Path(tempfile.gettempdir())):  # noqa: S108 -- ownership is checked
        if place.is_dir() and os.access(place, os.W_OK) and reachable(place / "x", account):
            return place
    raise WrongMachineError("Neither /var/tmp nor TMPDIR can be used by Postgres: set TMPDIR.")
