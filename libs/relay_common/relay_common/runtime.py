"""One process: HTTP in one event loop, consumers, sweepers and publishers in threads beside it.

On SIGTERM, in this order: readiness goes off, the loops finish their batch and leave their groups,
the listeners drain, the process ends. A loop that dies takes the process with it, exit code 1.
"""

import asyncio
import gc
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

import uvicorn
import uvloop
from starlette.types import ASGIApp

from relay_common.db import UNAVAILABLE, Connection
from relay_common.http import internal_app
from relay_common.telemetry import counter, logger

DRAIN_SECONDS = 9.0
LONGEST_SILENCE_SECONDS = 180.0
JITTER = 0.1
LONGEST_BACKOFF_SECONDS = 5.0
# A loop whose answer has come waits for the thread that computes just then at most this long.
SWITCH_SECONDS = 0.001
# Longer than clients and balancers keep an idle connection: who closes first must not be us, or a
# request that is on its way just then is lost.
KEEP_ALIVE_SECONDS = 75

log = logger(__name__)


class Stop(threading.Event):
    """Set once, by a signal or by a loop that died; everything long waits on it."""


class Readiness:
    """What must be true before this process takes work; each check names what is missing."""

    def __init__(self) -> None:
        self.checks: dict[str, Callable[[], str | None]] = {}

    def add(self, name: str, check: Callable[[], str | None]) -> None:
        """Add a check: None when fine, else what is missing."""
        self.checks[name] = check

    def report(self) -> Mapping[str, str | None]:
        """Return every check's answer; a check that fails is an answer too."""
        return {name: answer_of(check) for name, check in self.checks.items()}


def answer_of(check: Callable[[], str | None]) -> str | None:
    """Return what `check` says is missing; its own failure counts as missing."""
    try:
        return check()
    except Exception as error:
        return f"the check itself failed: {type(error).__name__}"


@dataclass(frozen=True, slots=True)
class Loop:
    """A duty in a thread of its own. `run` returns soon after the stop; `age` is for liveness."""

    name: str
    run: Callable[[threading.Event], None]
    age: Callable[[], float] | None = None


@dataclass
class ServiceProcess:
    """What one process runs. Without an app there is only the internal listener."""

    name: str
    app: ASGIApp | None
    loops: list[Loop]
    host: str
    port: int
    internal_port: int
    readiness: Readiness
    stop: Stop = field(default_factory=Stop)
    died: list[str] = field(default_factory=list[str])


def install_signals(stop: threading.Event) -> None:
    """Set `stop` on SIGTERM and SIGINT. For the main thread."""

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)


def every(
    seconds: float,
    duty: Callable[[Connection], Mapping[str, int]],
    connect: Callable[[], Connection],
    stop: threading.Event,
    name: str = "",
) -> None:
    """Run `duty` about every `seconds` until `stop`; its counts become metrics.

    The duty opens its own short transactions. After an error the next run comes after a growing
    pause and on a new connection.
    """
    label = name or getattr(duty, "__name__", "duty")
    conn: Connection | None = None
    failures = 0
    while not stop.is_set():
        pause = seconds * random.uniform(1 - JITTER, 1 + JITTER)  # noqa: S311 -- only spreads load
        try:
            conn = conn or connect()
            found = duty(conn)
            failures = 0
        except Exception as error:
            failures += 1
            counter("relay_sweep_failures_total").labels(label).inc()
            log.warning("sweep_failed", duty=label, exc_info=not isinstance(error, UNAVAILABLE))
            discard(conn)
            conn = None
            pause = max(pause, min(LONGEST_BACKOFF_SECONDS, 0.1 * 2**failures))
        else:
            for result, rows in found.items():
                counter("relay_sweep_rows_total").labels(label, result).inc(rows)
        stop.wait(pause)
    discard(conn)


def discard(conn: Connection | None) -> None:
    """Close `conn`, if there is one."""
    if conn is not None:
        conn.close()


def run(service: ServiceProcess) -> int:
    """Run `service` until SIGTERM, SIGINT or the death of a loop; return the exit code."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.freeze()  # what was made until now stays; a collection need not look at it each time
    install_signals(service.stop)
    service.readiness.add("process", lambda: "stopping" if service.stop.is_set() else None)
    service.readiness.add("loops", lambda: silent_loop(service.loops))
    threads = [
        threading.Thread(target=guarded, args=(service, loop), name=loop.name, daemon=True)
        for loop in service.loops
    ]
    for thread in threads:
        thread.start()
    log.info("service_started", name=service.name, loops=[loop.name for loop in service.loops])
    try:
        uvloop.run(serve(service, threads))
    except (Exception, SystemExit):  # uvicorn exits when its port is taken
        log.exception("listener_died", name=service.name)
        service.died.append("listener")
    service.stop.set()
    # serve() has waited for them already, unless it failed.
    unfinished = join_all(threads, DRAIN_SECONDS if "listener" in service.died else 0.1)
    log.info("service_stopped", name=service.name, died=service.died, unfinished=unfinished)
    return 1 if service.died or unfinished else 0


def guarded(service: ServiceProcess, loop: Loop) -> None:
    """Run one loop; its death, or its return before the stop, stops the process."""
    try:
        loop.run(service.stop)
    except Exception:
        log.exception("loop_died", loop=loop.name)
    if not service.stop.is_set():
        service.died.append(loop.name)
        service.stop.set()


def silent_loop(loops: list[Loop]) -> str | None:
    """Return the name of a loop that has not turned for too long, None when all do."""
    for loop in loops:
        if loop.age is not None and loop.age() > LONGEST_SILENCE_SECONDS:
            return f"{loop.name} has been silent for {int(loop.age())} s"
    return None


def join_all(threads: list[threading.Thread], seconds: float) -> list[str]:
    """Wait `seconds` in all for `threads`; return the names of those still running."""
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return [thread.name for thread in threads if thread.is_alive()]


class Server(uvicorn.Server):
    """A listener that leaves the signals to the process."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture nothing: install_signals has done it."""
        yield


async def serve(service: ServiceProcess, threads: list[threading.Thread]) -> None:
    """Serve the public and the internal listener until the stop, and drain them.

    The internal one stays to the end, so that /readyz says "stopping" while the loops finish.
    """
    public = listener(service.app, service.host, service.port) if service.app else None
    internal = listener(internal_app(service.readiness), service.host, service.internal_port)
    servers = [s for s in (public, internal) if s is not None]
    tasks = [asyncio.create_task(s.serve()) for s in servers]
    await stopped(service, tasks)
    loops = asyncio.to_thread(join_all, threads, DRAIN_SECONDS)
    if public is not None:
        public.should_exit = True
        await asyncio.gather(loops, asyncio.wait(tasks[:1], timeout=DRAIN_SECONDS))
    else:
        await loops
    internal.should_exit = True
    await asyncio.gather(*tasks)


async def stopped(service: ServiceProcess, tasks: list[asyncio.Task[None]]) -> None:
    """Return when the stop is set, a listener has ended by itself or a loop hangs."""
    while not service.stop.is_set() and not any(task.done() for task in tasks):
        await asyncio.to_thread(service.stop.wait, 0.2)
        silent = silent_loop(service.loops)
        if silent is not None:
            log.error("loop_silent", loop=silent)
            service.died.append(silent)
            service.stop.set()


def listener(app: ASGIApp, host: str, port: int) -> Server:
    """Return a uvicorn server for `app` that logs through our logging and drains in time."""
    return Server(
        uvicorn.Config(
            app,
            host=host,
            port=port,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,  # nothing asks where a request came from
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=int(DRAIN_SECONDS) - 1,
        )
    )
