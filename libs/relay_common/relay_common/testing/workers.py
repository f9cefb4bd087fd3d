"""Which tests share a worker when several run side by side (pytest-xdist)."""

from xdist.scheduler import LoadFileScheduling

ONE_STACK = "tests/integration/"


class ByFile(LoadFileScheduling):
    """A file stays whole, and the scenarios of the one stack stay together.

    Each worker has servers of its own, so nothing that one of them counts, stops or freezes is
    another one's.
    """

    def _split_scope(self, nodeid: str) -> str:
        return ONE_STACK if nodeid.startswith(ONE_STACK) else super()._split_scope(nodeid)
