"""Processes that outlive the command that starts them.

Each is known by its pid *and* its start time, kept in `run/<name>.json`: a pid alone may long
belong to somebody else.
"""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import psutil

from relay_devstack.errors import StartFailedError, disk_faults

_children: dict[int, "subprocess.Popen[bytes]"] = {}  # of this process; waited for, so no zombies


@dataclass(frozen=True, slots=True)
class Account:
    """Who a process runs as, when not as the one who starts it."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Command:
    """What to run; `env` is the whole environment."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    cwd: Path | None = None
    account: Account | None = None


class Daemon:
    """One background process: `run/<name>.json` says which, `logs/<name>.log` what it said."""

    def __init__(self, state_dir: Path, name: str) -> None:
        self.name = name
        self.log = state_dir / "logs" / f"{name}.log"
        self._record = state_dir / "run" / f"{name}.json"

    def start(self, command: Command) -> None:
        """Start `command` in a session of its own.

        Nothing happens when it runs already; it is restarted when its arguments or RELAY_
        variables have changed.

        Raises StartFailedError when the program cannot be executed, DiskFullError.
        """
        if self.process() is not None:
            if json.loads(self._record.read_text())["command"] == _digest(command):
                return
            self.stop()
        with disk_faults(self.log.parent):
            self._keep_old_log()
            child = self._spawn(command)
            _children[child.pid] = child
            self._remember(child.pid, command)

    def process(self) -> psutil.Process | None:
        """Return the running process, or None when it is gone or its pid is somebody else's."""
        if not self._record.exists():
            return None
        kept = json.loads(self._record.read_text())
        _reap(kept["pid"])
        try:
            process = psutil.Process(kept["pid"])
            ours = started(process) == kept["started"]
        except psutil.NoSuchProcess:
            return None
        return process if ours and _is_alive(process) else None

    def died(self) -> str | None:
        """Return the end of the log when the process is gone, else None."""
        return None if self.process() else f"it ended; {self.log} says: {self.tail()}"

    def stop(self, how: signal.Signals = signal.SIGTERM, grace_seconds: float = 20) -> bool:
        """End it and its children, by force after `grace_seconds`; False when not running."""
        process = self.process()
        if process is None:
            self._record.unlink(missing_ok=True)
            return False
        family = _family(process)
        process.send_signal(how)
        for member in wait_gone(family, grace_seconds):
            _kill(member)
        wait_gone(family, 10)
        _reap(process.pid)
        self._record.unlink(missing_ok=True)
        return True

    def tail(self, lines: int = 5) -> str:
        """Return the last `lines` of the log in one line."""
        if not self.log.exists():
            return "(nothing)"
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return " / ".join(text.strip().splitlines()[-lines:]) or "(nothing)"

    def _spawn(self, command: Command) -> "subprocess.Popen[bytes]":
        with self.log.open("wb") as log:
            try:
                return subprocess.Popen(
                    command.argv,
                    env=dict(command.env),
                    cwd=command.cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    **_identity(command),
                )
            except FileNotFoundError as error:
                raise StartFailedError(
                    f"{self.name} cannot start: {command.argv[0]} is not there; run `make setup`."
                ) from error

    def _keep_old_log(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists():
            self.log.replace(self.log.with_suffix(".log.old"))

    def _remember(self, pid: int, command: Command) -> None:
        self._record.parent.mkdir(parents=True, exist_ok=True)
        try:
            begun = started(psutil.Process(pid))
        except psutil.NoSuchProcess:
            return
        kept = {"pid": pid, "started": begun, "command": _digest(command)}
        self._record.write_text(json.dumps(kept))


def run(command: Command) -> "subprocess.CompletedProcess[bytes]":
    """Run `command` to its end and return its exit code and what it said."""
    return subprocess.run(
        command.argv,
        env=dict(command.env),
        cwd=command.cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        **_identity(command),
    )


class _Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


def _identity(command: Command) -> _Identity:
    account = command.account
    if account is None:
        return {}
    return {"user": account.uid, "group": account.gid, "extra_groups": []}


def started(process: psutil.Process) -> float:
    """Return when `process` started: in ticks since boot where known, as clocks get changed."""
    stat = Path(f"/proc/{process.pid}/stat")
    if stat.exists():
        return float(stat.read_text().rpartition(")")[2].split()[19])
    return process.create_time()


def _digest(command: Command) -> str:
    own = sorted(pair for pair in command.env.items() if pair[0].startswith("RELAY_"))
    return hashlib.sha256(repr((list(command.argv), own)).encode()).hexdigest()


def _family(process: psutil.Process) -> list[psutil.Process]:
    try:
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return [process]


def wait_gone(processes: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait until `processes` have ended and return those that have not after `seconds`."""
    deadline = time.monotonic() + seconds
    while (alive := [p for p in processes if _is_alive(p)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def _kill(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.kill()


def _is_alive(process: psutil.Process) -> bool:
    # One that only waits for its parent to notice has ended: not every init is quick. While other
    # threads of it still end, its ports are taken.
    try:
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            return True
        return process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def _reap(pid: int) -> None:
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        del _children[pid]
