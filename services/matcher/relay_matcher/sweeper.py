"""The periodic duties of the matcher, as loops."""

import threading
from collections.abc import Callable, Mapping

from relay_common.db import Connection
from relay_common.idempotency import expire_keys
from relay_common.runtime import Loop, every

from relay_matcher.announcement import Announcer
from relay_matcher.operations import sweeping
from relay_matcher.settings import MatcherSettings

Connect = Callable[[], Connection]
Duty = Callable[[Connection], Mapping[str, int]]


def sweeper_loops(
    settings: MatcherSettings, connect: Connect, announcer: Announcer, wake: Callable[[], None]
) -> list[Loop]:
    """Return the loops: deadlines often, tidying now and then. `wake` rouses the publisher."""

    def deadlines(conn: Connection) -> Mapping[str, int]:
        found = {
            **sweeping.expire_due(conn, announcer, settings.outbox_shards),
            **sweeping.stall_silent(conn, announcer, settings.outbox_shards),
        }
        if any(found.values()):
            wake()
        return found

    def tidy(conn: Connection) -> Mapping[str, int]:
        return {
            **sweeping.keep_slices(conn),
            **sweeping.fold_counters(conn),
            **sweeping.forget_floors(conn),
            **sweeping.expire_held_replies(conn),
            **sweeping.forget_waitpoints(conn),
            **expire_keys(conn),
        }

    return [
        loop("deadlines", settings.sweep_seconds, deadlines, connect),
        loop("tidy", settings.tidy_seconds, tidy, connect),
    ]


def loop(name: str, seconds: float, duty: Duty, connect: Connect) -> Loop:
    """Return one duty as a loop."""

    def run(stop: threading.Event) -> None:
        every(seconds, duty, connect, stop, name)

    return Loop(f"sweeper.{name}", run)
