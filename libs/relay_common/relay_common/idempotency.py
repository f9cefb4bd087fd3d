"""Idempotency-Key: the first answer is stored with the effect and replayed (design D20).

In flight means that another transaction holds the key's lock; done means that the row is there,
because the row commits with the effect. Keys are kept for 48 hours.
"""

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

import orjson
import psycopg

from relay_common import queries
from relay_common.arrays import blobs, longs, repeated_texts, shorts, texts
from relay_common.combiner import Answer, Run, refusal
from relay_common.db import AsyncConnection, Connection, savepoint
from relay_common.errors import (
    IdempotencyInProgress,
    IdempotencyKeyReused,
    Json,
    RelayError,
)
from relay_common.match_key import hash_encoded, prefixed
from relay_common.tokens import Caller

SQL = queries.load("relay_common", "idempotency_key")
GivenT = TypeVar("GivenT")
REPLAYED = "idempotent-replayed"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of a mutating request: whose, of which route, under which key, saying what."""

    tenant: str
    environment: str
    client: str
    route: str
    key: str
    fingerprint: bytes

    def digest(self) -> bytes:
        """Return the digest under which the key is stored; the key itself is not."""
        return hashlib.sha256(self.key.encode()).digest()

    def lock(self, seed: int) -> int:
        """Return the advisory lock of the key; `seed` keeps outsiders from aiming at a lock."""
        scope = (self.tenant, self.environment, self.client, self.route, self.key)
        return hash_encoded(b"idempotency-key" + prefixed(*scope), seed)


@dataclass(frozen=True, slots=True)
class Call(Generic[GivenT]):
    """One call of a mutating operation: who calls, under which key, and what was given."""

    caller: Caller
    attempt: Attempt
    given: GivenT


@dataclass(frozen=True, slots=True)
class Fresh:
    """The key is new and this transaction holds its lock: carry the call out."""


@dataclass(frozen=True, slots=True)
class Replay:
    """The call is done: give the stored answer again."""

    answer: Answer


@dataclass(frozen=True, slots=True)
class InFlight:
    """Another transaction, or an earlier call of this batch, holds the key."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The key is done with another payload."""


Claim: TypeAlias = Fresh | Replay | InFlight | Mismatch


def fingerprint(body: Json, target: str, leave_out: Collection[str] = ()) -> bytes:
    """Return the digest by which two payloads are the same.

    `target` is path and query; `leave_out` names fields of the body that a retry may change: the
    first deadline stands (`expires_at`, spec: retries keep it).
    """
    if isinstance(body, Mapping):
        body = {name: value for name, value in body.items() if name not in leave_out}
    canonical = orjson.dumps(body, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(prefixed(target) + canonical).digest()


async def claim(conn: AsyncConnection, attempts: Sequence[Attempt], seed: int) -> Sequence[Claim]:
    """Lock the keys of `attempts` for this transaction and tell per attempt what to do with it.

    Two statements, so that the second one sees what the last holder of a lock committed.
    """
    locks = [attempt.lock(seed) for attempt in attempts]
    locking = await conn.execute(SQL["lock_keys"], {"locks": longs(locks)})
    reading = await conn.execute(SQL["stored_answers"], columns(attempts))
    free = {row[0] for row in await locking.fetchall() if row[1]}
    stored = {row[0]: row[1:] for row in await reading.fetchall()}
    claims: list[Claim] = []
    taken: set[int] = set()
    for ordinal, (attempt, lock) in enumerate(zip(attempts, locks, strict=True), start=1):
        if ordinal in stored:
            claims.append(compared(attempt, *stored[ordinal]))
        elif ordinal in free and lock not in taken:
            claims.append(Fresh())
            taken.add(lock)
        else:
            claims.append(InFlight())
    return claims


async def done_before(conn: AsyncConnection, attempt: Attempt) -> Answer | None:
    """Return the stored answer of `attempt`, None when it is new or under way; nothing is locked.

    For those who ask others before their transaction: a repeat must not need them again.
    """
    rows = await conn.execute(SQL["stored_answers"], columns([attempt]))
    row = await rows.fetchone()
    return None if row is None else standing(compared(attempt, *row[1:]))


def columns(attempts: Sequence[Attempt]) -> dict[str, object]:
    """Return the key columns of `attempts` as arrays."""
    return {
        "clients": repeated_texts(attempt.client for attempt in attempts),
        "routes": repeated_texts(attempt.route for attempt in attempts),
        "digests": blobs([attempt.digest() for attempt in attempts]),
    }


def compared(
    attempt: Attempt, stored: bytes, status: int, body: bytes, headers: Mapping[str, str]
) -> Claim:
    """Return the stored answer when the payload is the same as the first one."""
    if stored != attempt.fingerprint:
        return Mismatch()
    return Replay(Answer(status, body, {**headers, REPLAYED: "true"}))


async def store(conn: AsyncConnection, done: Sequence[tuple[Attempt, Answer]]) -> None:
    """Store the answers that a retry must get again; they commit with the effects."""
    kept = [(attempt, answer) for attempt, answer in done if is_stored(answer)]
    if not kept:
        return
    answers = [answer for _, answer in kept]
    await conn.execute(
        SQL["store_answers"],
        {
            **columns([attempt for attempt, _ in kept]),
            "fingerprints": blobs([attempt.fingerprint for attempt, _ in kept]),
            "statuses": shorts(answer.status for answer in answers),
            "bodies": blobs([answer.body for answer in answers]),
            "headers": texts([orjson.dumps(dict(answer.headers)) for answer in answers]),
        },
    )


def is_stored(answer: Answer) -> bool:
    """Tell whether a retry must get this answer again: effects and deterministic refusals only."""
    return answer.status < 500 and answer.status not in (401, 429)


class Operation(Protocol[GivenT]):
    """A set-based operation: one transaction, any number of calls of one tenant."""

    async def __call__(
        self, conn: AsyncConnection, calls: Sequence[Call[GivenT]]
    ) -> Sequence[Answer | RelayError]:
        """Return per call its answer, or as a value the error that refuses it."""
        ...


Named = Callable[[psycopg.IntegrityError], RelayError | None]


def unnamed(_violation: psycopg.IntegrityError) -> None:
    """Return None: no rule of this schema is the caller's to break."""


def mutation(operation: Operation[GivenT], seed: int, named: Named = unnamed) -> Run[Call[GivenT]]:
    """Make `operation` idempotent, the same for every mutating route: claim, carry out, store.

    The result is what a Combiner runs. `operation` gets only fresh calls. A refusal it returns is
    stored like an answer. What it raises rolls the batch back; when the call is then redone alone,
    a RelayError becomes its stored refusal, and so does a rule of the database that `named` knows.
    `seed` is the installation's.
    """

    async def run(
        conn: AsyncConnection, calls: Sequence[Call[GivenT]], *, alone: bool
    ) -> Sequence[Answer]:
        claims = await claim(conn, [call.attempt for call in calls], seed)
        fresh = [c for c, claimed in zip(calls, claims, strict=True) if isinstance(claimed, Fresh)]
        answers: list[Answer] = []
        if fresh and alone:
            answers = await guarded(operation, conn, fresh, named)
        elif fresh:
            answers = await carried_out(operation, conn, fresh)
        await store(conn, list(zip([call.attempt for call in fresh], answers, strict=True)))
        results = iter(answers)
        return [next(results) if isinstance(c, Fresh) else standing(c) for c in claims]

    return run


async def carried_out(
    operation: Operation[GivenT], conn: AsyncConnection, calls: Sequence[Call[GivenT]]
) -> list[Answer]:
    """Return the answers of `operation`, its refusals rendered."""
    found = await operation(conn, calls)
    return [refusal(one) if isinstance(one, RelayError) else one for one in found]


async def guarded(
    operation: Operation[GivenT],
    conn: AsyncConnection,
    calls: Sequence[Call[GivenT]],
    named: Named,
) -> list[Answer]:
    """Carry out in a savepoint, so that a refusal that was raised can still be stored."""
    try:
        async with savepoint(conn):
            return await carried_out(operation, conn, calls)
    except RelayError as error:
        return [refusal(error)]
    except psycopg.IntegrityError as violation:
        error = named(violation)
        if error is None:
            raise
        return [refusal(error)]


def standing(claimed: Claim) -> Answer:
    """Return the answer to a call that is not carried out."""
    match claimed:
        case Replay(answer):
            return answer
        case Mismatch():
            return refusal(IdempotencyKeyReused())
        case _:
            return refusal(IdempotencyInProgress(retry_after=1))


def expire_keys(conn: Connection) -> Mapping[str, int]:
    """Forget keys older than 48 hours; a sweeper duty. Return how many."""
    return {"idempotency_keys_expired": conn.execute(SQL["expire_keys"]).rowcount}
