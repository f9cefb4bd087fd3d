"""A service with one route and loops that behave as the arguments say, for tests of the runtime."""

import asyncio
import sys
import threading
import time

from relay_common.runtime import Loop, Readiness, ServiceProcess, run
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

UNDER_WAY: list[Request] = []


async def slow(request: Request) -> PlainTextResponse:
    UNDER_WAY.append(request)
    await asyncio.sleep(1.0)
    return PlainTextResponse("done")


async def under_way(_request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(UNDER_WAY)))


def steady(stop: threading.Event) -> None:
    stop.wait()


def dying(stop: threading.Event) -> None:
    stop.wait(1.0)
    raise ValueError("a loop's own fault")


def returning(stop: threading.Event) -> None:
    stop.wait(1.0)


def stuck(stop: threading.Event) -> None:
    stop.wait()
    time.sleep(60)


LOOPS = {"steady": steady, "dying": dying, "returning": returning, "stuck": stuck}

if __name__ == "__main__":
    port, *kinds = sys.argv[1:]
    readiness = Readiness()
    readiness.add("always", lambda: None)
    service = ServiceProcess(
        name="test",
        app=Starlette(routes=[Route("/slow", slow), Route("/under-way", under_way)]),
        loops=[Loop(kind, LOOPS[kind]) for kind in kinds],
        host="127.0.0.1",
        port=int(port),
        internal_port=int(port) + 1,
        readiness=readiness,
    )
    sys.exit(run(service))
