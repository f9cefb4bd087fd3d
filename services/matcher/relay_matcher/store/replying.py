"""The statements of a batch of replies of one tenant and environment."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
from relay_common import queries
from relay_common.arrays import (
    blobs,
    flags,
    longs,
    repeated_texts,
    some_uuids,
    texts,
    times,
    uuids,
)
from relay_common.db import AsyncConnection
from relay_common.errors import Json
from relay_common.match_key import MatchKey
from relay_common.pending import Pending, Rows, ask, known
from relay_common.tokens import Caller

from relay_matcher.domain.reply import Identity, Reply, Session, Target
from relay_matcher.domain.waitpoint import Active, Opening, Responder
from relay_matcher.store.opening import key_columns

SQL = queries.load("relay_matcher", "replying")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which waitpoint a caller means, and as whom: itself, or the responder it speaks for."""

    waitpoint_id: UUID
    caller: Caller
    responder: str


@dataclass(frozen=True, slots=True)
class ByKey:
    """A waiter and a match key instead of a waitpoint; who names them, and as whom."""

    key: MatchKey
    key_hash: int
    waiter: str
    caller: Caller
    responder: str


@dataclass(frozen=True, slots=True)
class NewSession:
    """A reply session to store; one of a held reply has no waitpoint yet."""

    id: UUID
    waitpoint_id: UUID | None
    identity: str
    channel: str
    evidence_level: str
    subject_digest: str
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class NewRejection:
    """A rejected reply to record; `revision` is the waitpoint's after it."""

    id: UUID
    waitpoint_id: UUID
    reason: str
    responder: str
    channel: str
    pointers: Sequence[Mapping[str, Json]]
    revision: int


@dataclass(frozen=True, slots=True)
class NewHeld:
    """A reply to hold: for whom and which key, and the session that was opened for it."""

    id: UUID
    where: ByKey
    reply: Reply
    session: UUID


async def lock_targets(
    conn: AsyncConnection, wanted: Sequence[Wanted]
) -> Pending[dict[int, Target]]:
    """Return, by place, the waitpoints that the callers may see; their rows are locked."""
    ids = uuids([one.waitpoint_id.bytes for one in wanted])
    given = {"ids": ids, **who_columns(wanted)}
    caller = wanted[0].caller
    return await ask(
        conn, SQL["lock_targets"], given, targets_in((caller.tenant, caller.environment))
    )


async def lock_targets_by_key(
    conn: AsyncConnection, wanted: Sequence[ByKey]
) -> Pending[dict[int, Target]]:
    """Return, by place, the newest questions or reviews of waiters and keys that the callers may
    see; their rows are locked.
    """
    given = {**by_key_columns(wanted), **who_columns(wanted)}
    key = wanted[0].key
    return await ask(
        conn, SQL["lock_targets_by_key"], given, targets_in((key.tenant, key.environment))
    )


def who_columns(wanted: Sequence[Wanted | ByKey]) -> dict[str, object]:
    """Return who may see which waitpoint, as arrays."""
    return {
        "callers": repeated_texts(one.caller.sub for one in wanted),
        "responders": repeated_texts(one.responder for one in wanted),
        "sees_all": flags("operator" in one.caller.scopes for one in wanted),
    }


def targets_in(scope: tuple[str, str]) -> Callable[[Rows], dict[int, Target]]:
    """Return what makes locked waitpoints, by place, of rows in a tenant and environment."""
    return lambda rows: {row[1] - 1: target_of(row, scope) for row in rows}


def by_key_columns(wanted: Sequence[ByKey]) -> dict[str, object]:
    """Return keys and waiters as arrays."""
    return {
        "key_hashes": longs(one.key_hash for one in wanted),
        "event_types": repeated_texts(one.key.event_type for one in wanted),
        "correlation_keys": texts([one.key.correlation_key.encode() for one in wanted]),
        "waiters": repeated_texts(one.waiter for one in wanted),
    }


def target_of(row: tuple[Any, ...], scope: tuple[str, str]) -> Target:
    """Return a locked waitpoint of the tenant and environment in `scope`."""
    key = MatchKey(*scope, row[12], row[13])
    waitpoint = Active(row[0], key, row[14], *row[2:12])
    return Target(waitpoint, row[15], row[16], row[17], row[18])


async def sessions(conn: AsyncConnection, ids: Sequence[UUID]) -> Pending[dict[UUID, Session]]:
    """Return reply sessions by id; call it after the row locks."""
    given = {"ids": uuids([one.bytes for one in ids])}
    return await ask(
        conn, SQL["sessions"], given, lambda rows: {row[0]: Session(*row) for row in rows}
    )


async def insert_sessions(
    conn: AsyncConnection, opened: Sequence[NewSession], at: datetime
) -> None:
    """Store new reply sessions."""
    if opened:
        await conn.execute(
            SQL["insert_sessions"],
            {
                "ids": uuids([one.id.bytes for one in opened]),
                "waitpoint_ids": some_uuids(
                    [one.waitpoint_id and one.waitpoint_id.bytes for one in opened]
                ),
                "identities": repeated_texts(one.identity for one in opened),
                "channels": repeated_texts(one.channel for one in opened),
                "evidence_levels": repeated_texts(one.evidence_level for one in opened),
                "subject_digests": repeated_texts(one.subject_digest for one in opened),
                "expires_ats": times(one.expires_at for one in opened),
                "at": at,
            },
        )


async def bind_sessions(conn: AsyncConnection, bound: Mapping[UUID, UUID]) -> None:
    """Bind sessions (id → waitpoint) of held replies."""
    if bound:
        await conn.execute(
            SQL["bind_sessions"], {"ids": list(bound), "waitpoint_ids": list(bound.values())}
        )


async def resolve_by_reply(
    conn: AsyncConnection, accepted: Sequence[tuple[Target, Reply, UUID]], at: datetime
) -> Pending[None]:
    """Resolve waitpoints by their replies, each in the session given with it.

    The result raises LookupError when the database lets one not pass that was judged valid.
    """
    if not accepted:
        return known(None)
    given = {
        "ids": uuids([target.waitpoint.id.bytes for target, _, _ in accepted]),
        "sessions": uuids([session.bytes for _, _, session in accepted]),
        **identity_columns([reply for _, reply, _ in accepted]),
        "schema_digests": blobs([target.schema_digest for target, _, _ in accepted]),
        "at": at,
    }

    def all_resolved(rows: Rows) -> None:
        if len(rows) != len(accepted):
            raise LookupError("expected every reply that was judged valid to resolve its waitpoint")

    return await ask(conn, SQL["resolve_by_reply"], given, all_resolved)


def identity_columns(replies: Sequence[Reply]) -> dict[str, object]:
    """Return who replies to what, and the values, as arrays."""
    return {
        "responders": repeated_texts(reply.identity.responder for reply in replies),
        "channels": repeated_texts(reply.identity.channel for reply in replies),
        "evidence_levels": repeated_texts(reply.identity.evidence_level for reply in replies),
        "subject_digests": repeated_texts(reply.subject_digest for reply in replies),
        "replies": blobs([orjson.dumps(reply.value) for reply in replies]),
    }


async def record_rejections(
    conn: AsyncConnection, rejected: Sequence[NewRejection], at: datetime
) -> None:
    """Record rejections and count them into the revisions of their waitpoints."""
    if not rejected:
        return
    await conn.execute(
        SQL["insert_rejections"],
        {
            "ids": uuids([one.id.bytes for one in rejected]),
            "waitpoint_ids": uuids([one.waitpoint_id.bytes for one in rejected]),
            "reasons": repeated_texts(one.reason for one in rejected),
            "responders": repeated_texts(one.responder for one in rejected),
            "channels": repeated_texts(one.channel for one in rejected),
            "pointers": texts([orjson.dumps(one.pointers) for one in rejected]),
            "at": at,
        },
    )


async def raise_revisions(conn: AsyncConnection, revisions: Mapping[UUID, int]) -> None:
    """Store the revisions that rejections have brought their waitpoints to."""
    if revisions:
        await conn.execute(
            SQL["raise_revisions"],
            {"ids": list(revisions), "revisions": list(revisions.values())},
        )


async def responders(
    conn: AsyncConnection, waitpoints: Sequence[UUID]
) -> Pending[dict[UUID, list[Responder]]]:
    """Return the responders of waitpoints, as they were asked."""

    def by_waitpoint(rows: Rows) -> dict[UUID, list[Responder]]:
        found: dict[UUID, list[Responder]] = {}
        for waitpoint, *responder in rows:
            found.setdefault(waitpoint, []).append(Responder(*responder))
        return found

    if not waitpoints:
        return known(by_waitpoint(()))
    given = {"ids": uuids([waitpoint.bytes for waitpoint in waitpoints])}
    return await ask(conn, SQL["responders"], given, by_waitpoint)


async def rejections(
    conn: AsyncConnection, waitpoint: UUID, after: UUID, limit: int
) -> list[tuple[UUID, str, str, str, datetime, Json]]:
    """Return a page of rejections: id, reason, responder, channel, time and pointers."""
    given = {"waitpoint_id": waitpoint, "after": after, "limit": limit}
    rows = await conn.execute(SQL["rejections"], given)
    return [(row[0], row[1], row[2], row[3], row[4], row[5]) for row in await rows.fetchall()]


async def count_held(
    conn: AsyncConnection, wanted: Sequence[ByKey], most: int
) -> Pending[dict[tuple[str, MatchKey], int]]:
    """Return how many replies are held for each waiter and key, at most `most`."""
    given = {**by_key_columns(wanted), "most": most}

    def counts(rows: Rows) -> dict[tuple[str, MatchKey], int]:
        found: dict[tuple[str, MatchKey], int] = {}
        for row in rows:
            place: int = row[0] - 1
            where = wanted[place]
            found[where.waiter, where.key] = row[1]
        return found

    return await ask(conn, SQL["count_held"], given, counts)


async def hold_replies(
    conn: AsyncConnection, held: Sequence[NewHeld], at: datetime, expires_at: datetime
) -> None:
    """Hold replies until their waitpoint opens or the retention ends."""
    if held:
        await conn.execute(
            SQL["hold_replies"],
            {
                **by_key_columns([one.where for one in held]),
                **identity_columns([one.reply for one in held]),
                "ids": uuids([one.id.bytes for one in held]),
                "reply_sessions": uuids([one.session.bytes for one in held]),
                "parts": repeated_texts(one.reply.part for one in held),
                "at": at,
                "expires_at": expires_at,
            },
        )


async def held_replies(
    conn: AsyncConnection, openings: Sequence[Opening], at: datetime
) -> Pending[dict[int, list[tuple[UUID, Reply]]]]:
    """Return, by place in `openings`, the replies held for them, oldest first; rows are locked."""

    def by_place(rows: Rows) -> dict[int, list[tuple[UUID, Reply]]]:
        found: dict[int, list[tuple[UUID, Reply]]] = {}
        for row in rows:
            identity = Identity(row[3], row[4], row[5])
            reply = Reply(identity, row[2], row[7], orjson.loads(row[8]), row[6])
            found.setdefault(row[0] - 1, []).append((row[1], reply))
        return found

    if not openings:
        return known(by_place(()))
    return await ask(conn, SQL["held_replies"], {**key_columns(openings), "at": at}, by_place)


async def settle_held_replies(conn: AsyncConnection, outcomes: Mapping[UUID, str]) -> None:
    """Settle held replies (id → taken or rejected); their values go."""
    if outcomes:
        await conn.execute(
            SQL["settle_held_replies"],
            {"ids": list(outcomes), "outcomes": list(outcomes.values())},
        )
