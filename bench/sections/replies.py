"""Replies at database level: concurrent ones in one transaction each, and combined."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from uuid import UUID, uuid4

import psycopg
from psycopg.conninfo import make_conninfo
from relay_common.avro import Codec
from relay_common.combiner import Answer
from relay_common.cursors import Cursors
from relay_common.db import open_pool
from relay_common.idempotency import Attempt, Call
from relay_common.ids import decode_id
from relay_common.tokens import Caller
from relay_devstack.database import role_passwords
from relay_matcher.access import Access
from relay_matcher.announcement import Announcer
from relay_matcher.domain.reply import Identity, Reply
from relay_matcher.http.desk import Desk, create_desk
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.operations.replying import GivenReply
from relay_matcher.settings import MatcherSettings

from bench.clients import Load
from bench.database import Database, open_database, remove_waitpoints, restore
from bench.events import ENVIRONMENT, TENANT
from bench.figures import Figure
from bench.pipeline import running_pipeline
from bench.sections.http_load import RESPONDER, questions
from bench.stage import Stage

CALLERS = 32
SHARDS = 4
SERVED_BY = MatcherSettings.model_fields["pool_size"].default
GROUP = (TENANT, ENVIRONMENT)
ROLE = "relay_matcher_http"
Calls = list[Call[GivenReply]]
Send = Callable[[Call[GivenReply]], Awaitable[Answer]]


def measure(stage: Stage) -> list[Figure]:
    """Return replies per second of 32 callers without HTTP, plain and combined in turn."""
    database = open_database(stage, min(stage.profile.open_sizes))
    restore(database)
    repetitions, batch = stage.profile.repetitions, stage.profile.replies
    with running_pipeline(stage, database, "http") as pipeline:
        asked = asyncio.run(questions(pipeline, 2 * (repetitions + 1) * batch))
    calls = [call_of(identifier, reply) for identifier, reply in asked]
    plain, combined = asyncio.run(in_turn(database, calls, batch))
    remove_waitpoints(database, "open-")
    beside = {"one transaction each": figure("", plain, {}).value}
    return [
        figure(f"replies, one transaction each, {CALLERS} callers", plain, {}),
        figure(f"replies, combined, {CALLERS} callers", combined, beside),
    ]


def figure(what: str, loads: list[Load], beside: dict[str, float]) -> Figure:
    """Return the figure of some loads of the same kind."""
    middle = sorted(loads, key=lambda load: load.rate)[len(loads) // 2]
    note = f"p50 {middle.milliseconds(0.5):.1f} ms, p99 {middle.milliseconds(0.99):.1f} ms"
    rates = tuple(load.rate for load in loads)
    return Figure("replies", what, "replies/s", rates, beside, note)


def call_of(identifier: str, reply: dict[str, object]) -> Call[GivenReply]:
    """Return the call that the HTTP side would make of `reply`."""
    caller = Caller(RESPONDER, *GROUP, frozenset({"waitpoints:reply"}), "bench", "bench")
    route = "POST /v1/waitpoints/{identifier}/replies"
    attempt = Attempt(*GROUP, "bench", route, uuid4().hex, b"the same bytes for each key")
    identity = Identity(RESPONDER, "inbox", "relay_session")
    session = UUID(bytes=decode_id("rs_", str(reply["reply_session"]), 16))
    given = Reply(identity, str(reply["subject_digest"]), "response", reply["response"], session)
    waitpoint = UUID(bytes=decode_id("wp_", identifier, 16))
    return Call(caller, attempt, GivenReply(waitpoint, given))


async def in_turn(database: Database, calls: Calls, batch: int) -> tuple[list[Load], list[Load]]:
    """Answer batches of `calls` in turn, each reply in a transaction of its own and combined.

    Each way has as many connections as it can use; its first batch prepares their statements and
    does not count.
    """
    plain, combined = desk_of(database, CALLERS), desk_of(database, SERVED_BY)
    kinds: tuple[Send, ...] = (
        lambda call: alone(plain, call),
        lambda call: together(combined, call),
    )
    loads: tuple[list[Load], list[Load]] = ([], [])
    async with plain.pool, combined.pool:
        for first in range(0, len(calls), batch):
            kind = first // batch % 2
            loads[kind].append(await answered(iter(calls[first : first + batch]), kinds[kind]))
    return loads[0][1:], loads[1][1:]


def desk_of(database: Database, connections: int) -> Desk:
    """Return the desk of a matcher with so many connections, not opened yet."""
    login = {"user": ROLE, "password": role_passwords(database.url, "")[ROLE]}
    pool = open_pool(make_conninfo(database.url, **login), "bench", connections)
    return create_desk(pool, plumbing(database), Cursors(b"bench" * 4), Access(None))


def plumbing(database: Database) -> Plumbing:
    """Return what the operations need beside their connection."""
    with psycopg.connect(database.url) as conn:
        seed = conn.execute("select hash_seed from relay.installation").fetchone()[0]
    codec = Codec()
    return Plumbing(codec, Announcer(codec.prefix, lambda name: f"bench.{name}"), SHARDS, seed)


async def alone(desk: Desk, call: Call[GivenReply]) -> Answer:
    """Answer one reply in a transaction of its own."""
    return (await desk.replies.transact(GROUP, [call], alone=False))[0]


async def together(desk: Desk, call: Call[GivenReply]) -> Answer:
    """Answer one reply as the service does: with those that came meanwhile."""
    return await desk.replies.submit(*GROUP, call)


async def answered(calls: Iterator[Call[GivenReply]], send: Send) -> Load:
    """Let 32 callers send the replies; return how it went. Raises RuntimeError for a refusal."""
    load = Load()
    begun = time.perf_counter()

    async def caller() -> None:
        for call in calls:
            at = time.perf_counter()
            found = await send(call)
            if found.status != 200:
                raise RuntimeError(f"expected 200, found {found.status}: {found.body[:300]!r}")
            load.units += 1
            load.durations.append(time.perf_counter() - at)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    load.seconds = time.perf_counter() - begun
    return load
