"""How the publisher expands the rows of the matcher's outbox: each layout by who wrote it."""

from relay_common import outbox
from relay_common.outbox import Addressed

from relay_matcher import expiries, takes
from relay_matcher.announcement import Announcer


def expander(announcer: Announcer) -> outbox.Expand:
    """Return what makes the messages of a row."""

    def expand(topic: str, payload: bytes) -> list[Addressed]:
        match outbox.layout(payload):
            case takes.LAYOUT:
                return takes.expand(announcer, payload)
            case expiries.LAYOUT:
                return expiries.expand(announcer, payload)
            case _:
                return outbox.expand(topic, payload)

    return expand
