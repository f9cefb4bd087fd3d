"""The pace of a loop: small batches leave the machine to others as long as they had it."""

import time

LONGEST_SECONDS = 0.02
FULL_RECORDS = 500  # from here on a record costs the same in a batch of any size


class Pace:
    """Spreads small batches out, so that they grow instead of filling the machine.

    A batch costs much the same whatever is in it. One that comes after a quiet while starts at
    once; one on the heels of another waits as long as that took, at most LONGEST_SECONDS, the
    shorter the larger that was, and not at all once it had FULL_RECORDS.
    """

    def __init__(self) -> None:
        self.begun = self.next = time.monotonic()

    def begin(self) -> None:
        """Note that a batch begins."""
        self.begun = time.monotonic()

    def end(self, records: int = 0) -> None:
        """Note that a batch of so many records has ended."""
        now = time.monotonic()
        small = max(0.0, 1 - records / FULL_RECORDS)
        self.next = now + min(LONGEST_SECONDS, now - self.begun) * small

    def wait_seconds(self) -> float:
        """Return how long the next small batch has to wait, 0 when it may begin."""
        return max(0.0, self.next - time.monotonic())
