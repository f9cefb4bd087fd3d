"""A connection that does something useful while the server works."""

import select
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import TupleRow
from psycopg.waiting import Ready, Wait

T = TypeVar("T")

INTERESTS = {
    Wait.R: select.POLLIN,
    Wait.W: select.POLLOUT,
    Wait.RW: select.POLLIN | select.POLLOUT,
}
NOTHING = 0


class OverlappingConnection(psycopg.Connection[TupleRow]):
    """While the server works, `meanwhile` does a little at a time, without a second thread.

    It says whether there was anything to do, must not use the connection, and must not raise.
    """

    meanwhile: Callable[[], bool] | None = None

    @contextmanager
    def begun(self) -> Generator[None]:
        """Be in a transaction that begins with the first statement inside: in one round trip with
        it when that is in a pipeline. committed() ends it; an error rolls back.
        """
        self.autocommit = False
        try:
            yield
        except BaseException:
            self.take_back()
            raise
        finally:
            if not self.closed:
                self.autocommit = True

    def take_back(self) -> None:
        """Roll back; a connection that cannot is closed, so that nothing is done inside a
        transaction that somebody else gave up. The error to tell is the first one."""
        try:
            self.rollback()
        except psycopg.Error:
            self.close()

    @contextmanager
    def committed(self) -> Generator[None]:
        """Send what is executed inside, and then the commit, in one round trip."""
        with self.pipeline():
            yield
            self.commit()

    @contextmanager
    def pipeline(self) -> Generator[psycopg.Pipeline]:
        """Lend a pipeline; nothing else is done until all of it is sent.

        A server that waits for the rest of a pipeline keeps its locks, and neither the limit of a
        statement nor that of an idle transaction ends that.
        """
        with super().pipeline() as pipeline:
            meanwhile, self.meanwhile = self.meanwhile, None
            try:
                yield pipeline
            finally:
                self.meanwhile = meanwhile

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        """Return what `gen` comes to, as psycopg's own `wait` does; times are in seconds."""
        try:
            if self.meanwhile is None or timeout is not None:
                return super().wait(gen, interval, timeout)
            return self.overlapped(gen, self.meanwhile, int(interval * 1000))
        except StopIteration as end:
            return end.value
        except psycopg.Error:
            with suppress(psycopg.Error):  # a pipeline left by a lost connection asks once more
                gen.close()
            raise

    def overlapped(self, gen: PQGen[T], meanwhile: Callable[[], bool], longest: int) -> T:
        """Serve `gen` and work in turn; sleep up to `longest` ms when there is nothing to do."""
        wanted = next(gen)
        poll = select.poll()
        poll.register(self.pgconn.socket, INTERESTS[wanted])
        patience = NOTHING
        while True:
            found = poll.poll(patience)
            if found:
                wanted = gen.send(ready_of(found[0][1]))
                poll.modify(self.pgconn.socket, INTERESTS[wanted])
                patience = NOTHING
            elif patience:
                gen.send(Ready.NONE)
            else:
                patience = NOTHING if meanwhile() else longest


def ready_of(events: int) -> Ready:
    """Return what the socket is ready for; one that broke is read, which says how."""
    readable = events & (select.POLLIN | select.POLLERR | select.POLLHUP | select.POLLNVAL)
    writable = events & select.POLLOUT
    return Ready((Ready.R if readable else 0) | (Ready.W if writable else 0))
