"""Child processes of a run: started with their settings, logs kept, stopped at the end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Child:
    """A running process and its log."""

    process: subprocess.Popen[bytes]
    log: Path

    def check(self) -> None:
        """Raise RuntimeError with the end of its log when it has died."""
        if self.process.poll() is not None:
            tail = self.log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"{self.log.stem} ended with {self.process.returncode}: {tail}")

    def cpu_seconds(self) -> float:
        """Return the processor time it has used."""
        times = psutil.Process(self.process.pid).cpu_times()
        return times.user + times.system

    def resident_mib(self) -> float:
        """Return its resident memory."""
        return psutil.Process(self.process.pid).memory_info().rss / 2**20

    def stop(self) -> None:
        """Ask it to end, and end it when it does not within 20 s."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> Child:
    """Start `python -m argv…` with `environment` beside our own."""
    return launch([sys.executable, "-m", *argv], environment, log)


def launch(
    command: Sequence[str], environment: Mapping[str, str], log: Path, folder: Path | None = None
) -> Child:
    """Start `command` in `folder` with `environment` beside our own."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            env={**os.environ, **environment},
            cwd=folder,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    return Child(process, log)


@contextmanager
def running(children: Sequence[Child]) -> Iterator[Sequence[Child]]:
    """Stop all `children` at the end, whatever happened."""
    try:
        yield children
    finally:
        for child in children:
            if child.process.poll() is None:
                child.process.send_signal(signal.SIGTERM)
        for child in children:
            child.stop()
