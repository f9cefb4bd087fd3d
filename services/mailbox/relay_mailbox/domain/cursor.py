"""Reading by position: when `since` can be followed, and when the reader has to resync."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

ResyncReason: TypeAlias = Literal["epoch_changed", "below_oldest", "ahead_of_head"]


@dataclass(frozen=True, slots=True)
class Stream:
    """Where a stream stands: `oldest` is the first retained seq, head + 1 when none is."""

    epoch: int
    oldest: int
    head: int


def resync_reason(stream: Stream, since: int, epoch: int | None) -> ResyncReason | None:
    """Return why `since` (exclusive) in `epoch` cannot be followed, None when it can.

    Without an epoch only the start of the stream can be named. The epoch is judged first: under
    another one the numbers mean other records (spec, Mailbox: resync).
    """
    if epoch is not None and epoch != stream.epoch:
        return "epoch_changed"
    if since > stream.head:
        return "ahead_of_head"
    if since < stream.oldest - 1:
        return "below_oldest"
    return None
