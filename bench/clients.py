"""Plain HTTP clients for load: keep-alive connections on asyncio, as thin as can be."""

import asyncio
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import orjson

from bench.figures import percentile


class Connection:
    """One keep-alive connection to `port` of this machine; without a token, to somebody else."""

    def __init__(self, port: int, token: str | None) -> None:
        self.port = port
        self.head = f"host: 127.0.0.1:{port}\r\n".encode()
        self.keyed = token is not None
        if token is not None:
            self.head += f"authorization: Bearer {token}\r\n".encode()

    async def open(self) -> None:
        """Connect."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)

    async def call(self, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Send one request, to Relay with an Idempotency-Key of its own; return status and body."""
        content = b"" if body is None else orjson.dumps(body)
        key = f"idempotency-key: {uuid.uuid4().hex}\r\n" if self.keyed else ""
        self.writer.write(
            b"".join(
                (
                    f"{method} {path} HTTP/1.1\r\n".encode(),
                    self.head,
                    key.encode(),
                    b"content-type: application/json\r\n" if content else b"",
                    f"content-length: {len(content)}\r\n\r\n".encode(),
                    content,
                )
            )
        )
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line[15:])
            for line in head.split(b"\r\n")
            if line.lower().startswith(b"content-length:")
        )
        return int(head[9:12]), await self.reader.readexactly(length)


@dataclass
class Load:
    """What a load came to: calls answered, and how long each took (seconds)."""

    seconds: float = 0.0
    durations: list[float] = field(default_factory=list)
    units: int = 0

    @property
    def rate(self) -> float:
        """Units (calls unless counted otherwise) per second."""
        return self.units / self.seconds

    def milliseconds(self, fraction: float) -> float:
        """Return the duration below which `fraction` of the calls lie."""
        return percentile(self.durations, fraction) * 1000


Work = Callable[[Connection, int], Awaitable[int]]


async def drive(
    port: int,
    token_of: Callable[[int], str | None],
    callers: int,
    seconds: float,
    work: Work,
    done: asyncio.Event | None = None,
) -> Load:
    """Let `callers` do `work` over and over for `seconds`, or until `done`.

    `work` gets a connection and a number of its own, and returns the units it did.
    """
    connections = [Connection(port, token_of(number)) for number in range(callers)]
    await asyncio.gather(*(connection.open() for connection in connections))
    load = Load()
    numbers = itertools.count()
    begun = time.perf_counter()
    end = begun + seconds

    async def caller(connection: Connection) -> None:
        while (at := time.perf_counter()) < end and not (done and done.is_set()):
            units = await work(connection, next(numbers))
            load.units += units  # not in one step: the sum would be read before the wait
            load.durations.append(time.perf_counter() - at)

    await asyncio.gather(*map(caller, connections))
    load.seconds = time.perf_counter() - begun
    return load
