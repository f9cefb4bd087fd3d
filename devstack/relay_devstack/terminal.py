"""What the developer sees while a stack starts."""

import sys
import time
from typing import TextIO


class Terminal:
    """Lines on a terminal; progress overwrites itself there, and is thinned out in a log file."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream = stream
        self._started = time.monotonic()
        self._last_progress = 0.0

    def say(self, text: str) -> None:
        """Print one line, with the seconds since the start."""
        clear = "\r\x1b[K" if self._stream.isatty() else ""
        print(f"{clear}[{self.seconds():4.1f} s] {text}", file=self._stream, flush=True)

    def progress(self, text: str) -> None:
        """Show how far something is."""
        if self._stream.isatty():
            print(
                f"\r\x1b[K[{self.seconds():4.1f} s] {text}", end="", file=self._stream, flush=True
            )
        elif time.monotonic() - self._last_progress > 2:
            self._last_progress = time.monotonic()
            self.say(text)

    def seconds(self) -> float:
        """Return the seconds since this terminal was made."""
        return time.monotonic() - self._started
