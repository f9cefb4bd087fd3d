"""All operations at once on a few keys and waiters, in random order: nobody waits in a circle."""

import asyncio
import random
import threading
import uuid
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from relay_common.combiner import Answer
from relay_common.idempotency import Attempt, Call
from relay_common.ids import decode_id, new_id
from relay_common.match_key import MatchKey
from relay_common.tokens import Caller
from relay_matcher.domain.reply import Acceptable, Identity, Reply
from relay_matcher.domain.waitpoint import Opening
from relay_matcher.operations import sweeping
from relay_matcher.operations.cancelling import Cancelling
from relay_matcher.operations.early_reply import EarlyReply
from relay_matcher.operations.replying import GivenReply, OpenSession
from relay_matcher.store.replying import ByKey

ROUNDS = 250
AT_MOST = 8  # times
STEP = timedelta(seconds=0.25)  # of the clock, each round: what falls due depends on no machine
DESKS = 3
AT_ONCE = 24
RECENT = 24
TENANT, ENVIRONMENT = "acme", "test"
WAITERS = ("agent:a", "agent:b", "agent:c")
PEOPLE = ("subscriber:ann", "subscriber:bob")
KEYS = tuple(f"k{n}" for n in range(8))
SCHEMA = {"type": "boolean"}
DIGEST = Acceptable(SCHEMA, None).digest()
STALLED = "select id, waiter from matcher.waitpoint where state = 'stalled' limit 1"
DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"
# What the run must come to, over all of it; waitpoints end, and so does what shows their states.
HAPPENS = {
    "waitpoint.created",
    "waitpoint.resolved",
    "waitpoint.expired",
    "waitpoint.cancelled",
    "waitpoint.stalled",
    "waitpoint.reopened",
    "waitpoint.response_rejected",
}
# Each finds what must not be; none of them may find anything.
WRONG = {
    "two active waitpoints of a waiter on a key": """
      select count(*) from (select from matcher.waitpoint where closed_at is null
        group by waiter, event_type, correlation_key having count(*) > 1) x""",
    "counters that are not the active waitpoints": """
      select count(*) from matcher.open_counter c
      where c.open_count - coalesce((select sum(n.closed) from matcher.closed_delta d
          cross join unnest(d.waiters, d.closed) n (waiter, closed)
          where n.waiter = c.waiter or c.waiter = ''), 0)
        <> (select count(*) from matcher.waitpoint w
          where w.closed_at is null and (w.waiter = c.waiter or c.waiter = ''))""",
    "events a waiter took twice": """
      select count(*) from (select from matcher.waitpoint where event_id is not null
        group by tenant, environment, key_hash, waiter, event_id having count(*) > 1) twice""",
    "values of replies that are settled": """
      select count(*) from matcher.held_reply where outcome is not null and reply is not null""",
    "replies after the deadline": """
      select count(*) from matcher.waitpoint where responded_at >= expires_at""",
}


def caller_of(who: str) -> Caller:
    """Return who calls, by a verified token."""
    return Caller(who, TENANT, ENVIRONMENT, frozenset(), "test", "test")


class Crowd:
    """Chooses what is done next, and remembers what it may be done to."""

    def __init__(self, matcher: Any, chance: random.Random) -> None:
        self.matcher, self.chance = matcher, chance
        self.opened: list[tuple[uuid.UUID, str]] = [(new_id(), "agent:a")]
        self.sessions: list[tuple[uuid.UUID, str, uuid.UUID]] = []

    def call(self, who: str, given: Any) -> Call[Any]:
        """Return a call of `who` under a key of its own."""
        attempt = Attempt(TENANT, ENVIRONMENT, who, "crowd", uuid.uuid4().hex, b"")
        return Call(caller_of(who), attempt, given)

    def key(self) -> MatchKey:
        """Return one of the few keys."""
        return MatchKey(TENANT, ENVIRONMENT, "asked", self.chance.choice(KEYS))

    def opening(self) -> tuple[str, Call[Opening]]:
        """Open an event waitpoint or a question, for a moment or for long, with a heartbeat."""
        chance, key, identifier = self.chance, self.key(), new_id()
        waiter = chance.choice(WAITERS)
        given: dict[str, Any] = {"kind": "event", "fields": {"kind": "event"}}
        if chance.random() < 0.6:
            given = {
                "kind": "question",
                "fields": {"kind": "question", "response_schema": SCHEMA},
                "responders": PEOPLE,
                "subject_digest": "sha-256:x",
                "schema_digest": DIGEST,
                "heartbeat_interval": chance.choice([None, timedelta(seconds=1)]),
            }
        at = self.matcher.one("select relay.now()")
        opening = Opening(
            id=identifier,
            key=key,
            key_hash=key.hash(self.matcher.plumbing.seed),
            waiter=waiter,
            expires_at=at + timedelta(seconds=chance.choice([0.3, 0.8, 600])),
            **given,
        )
        return "opens", self.call(waiter, opening)

    def session(self) -> tuple[str, Call[OpenSession]]:
        """Open a reply session on some waitpoint."""
        who = self.chance.choice(PEOPLE)
        identity = Identity(who, "inbox", "relay_session")
        return "sessions", self.call(who, OpenSession(self.recent()[0], identity))

    def reply(self) -> tuple[str, Call[Any]]:
        """Reply in some session, well or badly."""
        if not self.sessions:
            return self.session()
        waitpoint, who, session = self.chance.choice(self.sessions[-RECENT:])
        value = self.chance.choice([True, "bad"])
        identity = Identity(who, "inbox", "relay_session")
        reply = Reply(identity, "sha-256:x", "response", value, session)
        return "replies", self.call(who, GivenReply(waitpoint, reply))

    def early(self) -> tuple[str, Call[EarlyReply]]:
        """Reply by match key."""
        who, key = self.chance.choice(PEOPLE), self.key()
        subject = self.chance.choice(["sha-256:x", "sha-256:y"])
        reply = Reply(Identity(who, "inbox", "relay_session"), subject, "response", True, None)
        key_hash = key.hash(self.matcher.plumbing.seed)
        where = ByKey(key, key_hash, self.chance.choice(WAITERS), caller_of(who), who)
        return "early_replies", self.call(who, EarlyReply(where, reply))

    def closing(self) -> tuple[str, Call[Any]]:
        """Cancel."""
        identifier, waiter = self.recent()
        return "cancels", self.call(waiter, Cancelling(identifier, None))

    def beat(self) -> tuple[str, Call[Any]]:
        """Show that the waiter is alive, most of all where it was taken for gone."""
        found = self.matcher.database.owner.execute(STALLED).fetchone()
        identifier, waiter = found or self.recent()
        return "heartbeats", self.call(waiter, identifier)

    def recent(self) -> tuple[uuid.UUID, str]:
        """Return one of the last waitpoints, and whose it is."""
        return self.chance.choice(self.opened[-RECENT:])

    def some(self) -> list[tuple[str, Call[Any]]]:
        """Return calls of two kinds: many of a kind at once share a transaction and many rows."""
        kinds = (self.opening, self.session, self.reply, self.early, self.closing, self.beat)
        two = self.chance.sample(kinds, 2)
        return [self.chance.choice(two)() for _ in range(AT_ONCE)]

    def learn(self, combiner: str, call: Call[Any], answer: Answer) -> None:
        """Remember the waitpoints and sessions that were opened."""
        if combiner == "opens" and answer.status == 201:
            self.opened.append((call.given.id, call.caller.sub))
        if combiner == "sessions" and answer.status == 201:
            import orjson  # noqa: PLC0415

            session = decode_id("rs_", orjson.loads(answer.body)["reply_session"], 16)
            assert session is not None
            known = (call.given.waitpoint_id, call.caller.sub, uuid.UUID(bytes=session))
            self.sessions.append(known)


def beside(matcher: Any, stop: threading.Event, seed: int) -> Counter[str]:
    """Match events, sweep, fold and forget until `stop`, each on a connection of its own."""
    chance = random.Random(seed)
    streams = [matcher.database.connect("relay_matcher_stream") for _ in range(3)]
    done: Counter[str] = Counter()

    def events(conn: Any) -> None:
        matcher.deliver(
            *(matcher.value(chance.choice(KEYS), event_type="asked") for _ in range(4)), conn=conn
        )

    def deadlines(conn: Any) -> None:
        sweeping.expire_due(conn, matcher.plumbing.announcer, 2)
        sweeping.stall_silent(conn, matcher.plumbing.announcer, 2)

    def tidy(conn: Any) -> None:
        sweeping.fold_counters(conn)
        sweeping.forget_floors(conn)
        sweeping.expire_held_replies(conn)
        sweeping.forget_waitpoints(conn)

    def loop(work: Any, conn: Any) -> None:
        while not stop.is_set():
            work(conn)
            done[work.__name__] += 1

    works = zip((events, deadlines, tidy), streams, strict=True)
    threads = [threading.Thread(target=guarded, args=(loop, work, done)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return done


def guarded(loop: Any, work: Any, done: Counter[str]) -> None:
    """Run one loop; what it dies of is counted."""
    try:
        loop(*work)
    except Exception as error:
        done[f"{work[0].__name__} failed: {error!r}"] += 1


async def all_of(desks: Sequence[Any], crowd: Crowd) -> list[str]:
    """Make calls at all desks at once; return the kinds that did not get an answer of their own."""
    calls = [(crowd.chance.choice(desks), *one) for one in crowd.some()]
    answers = await asyncio.gather(
        *(getattr(desk, kind).submit(TENANT, ENVIRONMENT, call) for desk, kind, call in calls),
        return_exceptions=True,
    )
    wrong: list[str] = []
    for (_, kind, call), answer in zip(calls, answers, strict=True):
        if isinstance(answer, BaseException) or answer.status >= 500:
            wrong.append(f"{kind}: {answer!r}")
        else:
            crowd.learn(kind, call, answer)
    return wrong


async def until_all_happened(matcher: Any, desks: Any, crowd: Crowd, clock: Any) -> list[str]:
    """Let the crowd go through its rounds, and through more until it has met all that can happen.

    Return the kinds of calls that did not get an answer of their own.
    """
    wrong: list[str] = []
    told: set[str] = set()
    for _ in range(AT_MOST):
        for _ in range(ROUNDS):
            wrong += await all_of(desks, crowd)
            clock.shift(STEP)
        told |= {m.record["type"] for m in matcher.announced("relay.waitpoints")}
        if told >= HAPPENS:
            return wrong
    raise AssertionError(f"never happened: {HAPPENS - told}")


async def test_nobody_waits_in_a_circle(matcher: Any, desks: Any, clock: Any) -> None:
    """Opening, replying, early replies, cancelling, heartbeats, matching, sweeping, forgetting."""
    crowd, stop = Crowd(matcher, random.Random(7)), threading.Event()
    loops = asyncio.create_task(asyncio.to_thread(beside, matcher, stop, 8))
    try:
        wrong = await until_all_happened(matcher, desks, crowd, clock)
    finally:
        stop.set()
        done = await loops
    assert wrong == []
    assert [name for name in done if "failed" in name] == []
    assert min(done["events"], done["deadlines"], done["tidy"]) > 0
    matcher.one("select pg_stat_clear_snapshot()")
    assert matcher.one(DEADLOCKS) == 0
    assert {name: matcher.one(query) for name, query in WRONG.items()} == dict.fromkeys(WRONG, 0)
