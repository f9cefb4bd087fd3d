"""Filling outbox rows with what happened, to be rendered when it is published."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Protocol, TypeVar

from relay_common.outbox import NewRow

One_contra = TypeVar("One_contra", contravariant=True)
Happened = TypeVar("Happened")


class Row(Protocol[One_contra]):
    """A row that is being filled."""

    def fits(self, one: One_contra, /) -> bool:
        """Say whether `one` still goes into this row; an empty one takes anything."""
        ...

    def add(self, one: One_contra, /) -> None:
        """Append `one`."""
        ...

    def payload(self, at: datetime) -> bytes:
        """Return the bytes of what happened at `at`."""
        ...


def filled(
    topic: str,
    placed: Iterable[tuple[int, Happened]],
    at: datetime,
    start: Callable[[], Row[Happened]],
) -> list[NewRow]:
    """Return rows of `topic` with what happened at `at`, given by shard, in order within each."""
    done: list[NewRow] = []
    building: dict[int, Row[Happened]] = {}
    for shard, one in placed:
        row = building.get(shard)
        if row is None or not row.fits(one):
            if row is not None:
                done.append(NewRow(shard, topic, row.payload(at)))
            row = building[shard] = start()
        row.add(one)
    done.extend(NewRow(shard, topic, row.payload(at)) for shard, row in building.items())
    return done
