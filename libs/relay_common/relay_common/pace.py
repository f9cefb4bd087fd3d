"""The pace of a loop: small batches leave the machine to others as long as they had it."""

import time

LONGEST_SECONDS = 0.02


class Pace:
    """Spreads small batches out, so that they grow instead of filling the machine.

    A batch costs much the same whatever is in it. One that comes after a quiet while starts at
    once; one on the heels of another waits as long as that took, at most LONGEST_SECONDS, and
    the shorter the larger that was.
    """

    def __init__(self) -> None:
        self.begun = self.next = time.monotonic()

    def begin(self) -> None:
        """Note that a batch begins."""
        self.begun = time.monotonic()

    def end(self, share: float = 0.0) -> None:
        """Note that it has ended, and what share of the largest batch it was, at most 1."""
        now = time.monotonic()
        self.next = now + min(LONGEST_SECONDS, now - self.begun) * (1 - share)

    def wait_seconds(self) -> float:
        """Return how long the next small batch has to wait, 0 when it may begin."""
        return max(0.0, self.next - time.monotonic())
