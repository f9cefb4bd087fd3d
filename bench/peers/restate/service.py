"""The waiters for Restate, in its own environment: `hypercorn service:app` in this folder.

Beside the handler the process answers two questions of the job, once there are N of them: the
names of the awakeables (`/names/N`) and which waiters have seen their own event (`/seen/N`).
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping

import restate

waiter = restate.Service("Waiter")
names: dict[int, str] = {}
seen: dict[int, bool] = {}


@waiter.handler()
async def wait(ctx: restate.Context, number: int) -> str:
    """Wait for one event, durably."""
    name, event = ctx.awakeable(type_hint=str)
    names[number] = name
    value = await event
    seen[number] = value == f"event-{number}"
    return value


ENDPOINT = restate.app([waiter])
ANSWERS = {"names": names, "seen": seen}


async def app(scope: Mapping[str, object], receive: Callable, send: Callable) -> None:
    """Answer the job's questions, and leave the rest to Restate."""
    what, _, count = str(scope.get("path")).strip("/").partition("/")
    if what not in ANSWERS:
        await ENDPOINT(scope, receive, send)
        return
    while len(ANSWERS[what]) < int(count):  # noqa: ASYNC110 - one asker, once
        await asyncio.sleep(0.002)
    await answer(send, json.dumps(ANSWERS[what]).encode())


async def answer(send: Callable[[dict[str, object]], Awaitable[None]], body: bytes) -> None:
    """Send `body` as JSON."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
