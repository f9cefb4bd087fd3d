"""Statements whose rows are still to come: what is asked together costs one round trip."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, LiteralString, TypeVar

from psycopg import AsyncCursor
from psycopg.rows import TupleRow

from relay_common.db import AsyncConnection

T = TypeVar("T")
Rows = Sequence[TupleRow]


class Pending(Generic[T]):
    """The result of a statement in the pipeline of its connection."""

    def __init__(self, cursor: AsyncCursor[TupleRow] | None, read: Callable[[Rows], T]) -> None:
        """`read` makes the result of the rows of `cursor`; without one there are none."""
        self.cursor = cursor
        self.read = read

    async def result(self) -> T:
        """Return the result, waiting for the server when it is not there yet.

        Raises what this statement, or one before it, was refused for.
        """
        return self.read(await self.cursor.fetchall() if self.cursor else ())


async def ask(
    conn: AsyncConnection,
    statement: LiteralString,
    parameters: Mapping[str, object],
    read: Callable[[Rows], T],
) -> Pending[T]:
    """Send `statement`, whose rows come in binary; `read` makes its result of them."""
    return Pending(await conn.execute(statement, parameters, binary=True), read)


def known(value: T) -> Pending[T]:
    """Return a result for which nothing has to be asked."""
    return Pending(None, lambda _: value)


def only(rows: Rows) -> TupleRow:
    """Return the one row of `rows`. Raises LookupError when there is none."""
    if not rows:
        raise LookupError("expected one row, found none")
    return rows[0]
