"""Named places where a test makes the process die as if the power went (`kill -9` of itself).

`RELAY_FAILPOINTS="consumer.after_commit_before_kafka=kill@3,mailbox.before_commit=kill"`: at the
third hit of the first name, at the first hit of the second. Unset, a hit costs one look-up.
"""

import os
import signal
import threading

COUNT = threading.Lock()


def parse(text: str) -> dict[str, int]:
    """Return name → hits left until death. Raises ValueError for anything but `name=kill[@n]`."""
    plan: dict[str, int] = {}
    for item in filter(None, text.split(",")):
        name, _, action = item.strip().partition("=")
        verb, _, count = action.partition("@")
        if verb != "kill":
            raise ValueError(f"expected name=kill or name=kill@n, found {item!r}")
        plan[name] = int(count or "1")
    return plan


PLAN = parse(os.environ.get("RELAY_FAILPOINTS", ""))


def hit(name: str) -> None:
    """Die here when the plan says so. Does nothing for a name outside the plan."""
    if name not in PLAN:
        return
    with COUNT:
        PLAN[name] -= 1
        if PLAN[name] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
