"""The statements of a batch of openings of one tenant and environment."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from psycopg.rows import TupleRow
from relay_common import outbox, queries
from relay_common.arrays import (
    blobs,
    ints,
    longs,
    repeated_texts,
    shorts,
    some_uuids,
    spans,
    texts,
    times,
    uuids,
)
from relay_common.db import AsyncConnection
from relay_common.outbox import OutMessage
from relay_common.pending import Pending, Rows, ask, known, only

from relay_matcher.domain.waitpoint import Active, Opening
from relay_matcher.store import settings
from relay_matcher.store.columns import closed_columns, waitpoint_columns

SQL = queries.load("relay_matcher", "opening")
SHARED = queries.load("relay_matcher", "shared")
BLOCK = 4096  # arrival numbers in one block of the sequence


@dataclass(frozen=True, slots=True)
class Clock:
    """One reading of the clock under the key locks; no event up to `arrival` is still to come."""

    at: datetime
    arrival: int


@dataclass(frozen=True, slots=True)
class Search:
    """A look-back under way: for whom, after which arrival, since when, how many at once."""

    opening: Opening
    after: int
    since: datetime
    page: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recorded event that an opening may take."""

    event_id: UUID
    arrival: int
    received_at: datetime
    value: bytes
    floor: int


async def lock_match_keys(conn: AsyncConnection, key_hashes: Iterable[int]) -> None:
    """Lock match keys until the transaction ends (design D4)."""
    await conn.execute(SHARED["lock_match_keys"], {"key_hashes": longs(sorted(set(key_hashes)))})


async def read_settings(conn: AsyncConnection) -> Pending[dict[str, int]]:
    """Return the numbers among this tenant's settings."""
    return await ask(
        conn,
        settings.SQL["settings"],
        {},
        lambda rows: {name: int(one) for name, one in rows if isinstance(one, int | float)},
    )


async def raise_counters(conn: AsyncConnection, waiters: Iterable[str]) -> Pending[dict[str, int]]:
    """Count one opening for each of `waiters` and for the tenant (''); return the new counts."""
    counts = Counter(waiters)
    opening = {"": counts.total(), **counts}
    given = {"waiters": repeated_texts(opening), "opening": longs(opening.values())}
    return await ask(conn, SQL["raise_counters"], given, dict)


async def fold_tenant(conn: AsyncConnection) -> dict[str, int]:
    """Fold the tenant's closings into its counters; return the counts that changed."""
    return dict(await (await conn.execute(SQL["fold_tenant"])).fetchall())


async def lower_counters(conn: AsyncConnection, waiters: Sequence[str]) -> None:
    """Take back one counted opening for each of `waiters`."""
    if waiters:
        counts = Counter(waiters)
        closed = {"": counts.total(), **counts}
        await conn.execute(
            SQL["lower_counters"],
            {"waiters": repeated_texts(closed), "closed": longs(closed.values())},
        )


async def lock_own(
    conn: AsyncConnection, openings: Sequence[Opening]
) -> Pending[list[tuple[int, Active]]]:
    """Return the waitpoints that the openings' waiters have active on the keys, with the place of
    the opening; their rows are locked."""

    def own(row: TupleRow) -> tuple[int, Active]:
        place: int = row[1] - 1
        opening = openings[place]
        return place, Active(row[0], opening.key, opening.key_hash, *row[2:])

    columns = key_columns(openings)
    return await ask(conn, SQL["lock_own"], columns, lambda rows: [own(row) for row in rows])


def key_columns(openings: Sequence[Opening]) -> dict[str, object]:
    """Return the keys and waiters of `openings` as arrays."""
    return {
        "key_hashes": longs(opening.key_hash for opening in openings),
        "event_types": repeated_texts(opening.key.event_type for opening in openings),
        "correlation_keys": texts([opening.key.correlation_key.encode() for opening in openings]),
        "waiters": repeated_texts(opening.waiter for opening in openings),
    }


async def read_clock(conn: AsyncConnection) -> Pending[Clock]:
    """Return the clock and the last arrival number given out; call it after the locks."""

    def clock(rows: Rows) -> Clock:
        at, last, _ = only(rows)
        return Clock(at, last + BLOCK - 1)

    return await ask(conn, SQL["read_clock"], {}, clock)


async def waiting_on_keys(
    conn: AsyncConnection, openings: Sequence[Opening], most: int
) -> Pending[list[int]]:
    """Return how many waitpoints are active on the key of each opening, at most `most`."""
    if not openings:
        return known([])
    given = {**key_columns(openings), "most": most}
    return await ask(
        conn, SQL["waiting_on_keys"], given, lambda rows: [row[1] for row in sorted(rows)]
    )


async def look_back(
    conn: AsyncConnection, searches: Sequence[Search]
) -> Pending[Mapping[int, Sequence[Candidate]]]:
    """Return, by place in `searches`, the next page of events that an opening may take."""

    def by_place(rows: Rows) -> Mapping[int, Sequence[Candidate]]:
        found: dict[int, list[Candidate]] = {}
        for row in rows:
            found.setdefault(row[0], []).append(Candidate(*row[1:]))
        return found

    given = {
        **search_columns(searches),
        "afters": longs(search.after for search in searches),
        "pages": ints(search.page for search in searches),
    }
    return await ask(conn, SQL["look_back"], given, by_place)


def search_columns(searches: Sequence[Search]) -> dict[str, object]:
    """Return what searches have in common as arrays; places begin at 0."""
    return {
        "places": ints(range(len(searches))),
        **key_columns([search.opening for search in searches]),
        "sinces": times(search.since for search in searches),
    }


async def first_on_keys(
    conn: AsyncConnection, searches: Sequence[Search]
) -> Pending[Mapping[int, int]]:
    """Return, by place, the arrival of the first event above the waiter's floor, taken or not."""
    nothing: Mapping[int, int] = {}
    if not searches:
        return known(nothing)
    return await ask(conn, SQL["first_on_keys"], search_columns(searches), dict)


async def raise_floors(
    conn: AsyncConnection, floors: Sequence[tuple[Opening, int]], at: datetime
) -> None:
    """Remember, for each opening's waiter and key, up to which arrival nothing is left to take."""
    if floors:
        columns = key_columns([opening for opening, _ in floors])
        arrivals = longs(arrival for _, arrival in floors)
        await conn.execute(SQL["raise_floors"], {**columns, "arrivals": arrivals, "at": at})


@dataclass(frozen=True, slots=True)
class NewRow:
    """A waitpoint to store: `opened` is its rendered part, the event what it resolved by."""

    opening: Opening
    opened: bytes
    event_id: UUID | None
    event_received_at: datetime | None


async def insert_waitpoints(conn: AsyncConnection, rows: Sequence[NewRow], at: datetime) -> None:
    """Store new waitpoints with their tags and responders."""
    openings = [row.opening for row in rows]
    await conn.execute(
        SQL["insert_waitpoints"],
        {
            **key_columns(openings),
            "at": at,
            "ids": uuids([o.id.bytes for o in openings]),
            "expires_ats": times(o.expires_at for o in openings),
            "heartbeat_intervals": spans(o.heartbeat_interval for o in openings),
            "event_received_ats": times(row.event_received_at for row in rows),
            "kinds": repeated_texts(o.kind for o in openings),
            "responder_counts": shorts(len(o.responders) for o in openings),
            "event_ids": some_uuids([row.event_id and row.event_id.bytes for row in rows]),
            "conditions": repeated_texts(o.condition for o in openings),
            "deliver_topics": repeated_texts(o.deliver_topic for o in openings),
            "profiles": repeated_texts(o.profile for o in openings),
            "subject_digests": repeated_texts(o.subject_digest for o in openings),
            "schema_digests": blobs([o.schema_digest for o in openings]),
            "default_responses": blobs([o.default_response for o in openings]),
            "openeds": blobs([row.opened for row in rows]),
        },
    )
    await insert_tags(conn, openings)
    await insert_responders(conn, openings)


async def insert_tags(conn: AsyncConnection, openings: Sequence[Opening]) -> None:
    """Store the tags of new waitpoints."""
    tags = [(name, value, o.id.bytes) for o in openings for name, value in o.tags.items()]
    if tags:
        await conn.execute(
            SQL["insert_tags"],
            {
                "names": repeated_texts(name for name, _, _ in tags),
                "values": repeated_texts(value for _, value, _ in tags),
                "waitpoint_ids": uuids([waitpoint for _, _, waitpoint in tags]),
            },
        )


async def insert_responders(conn: AsyncConnection, openings: Sequence[Opening]) -> None:
    """Store the responders of new waitpoints."""
    listed = [(o.id.bytes, o.waiter, one) for o in openings for one in o.invited()]
    if listed:
        await conn.execute(
            SQL["insert_responders"],
            {
                "waitpoint_ids": uuids([waitpoint for waitpoint, _, _ in listed]),
                "waiters": repeated_texts(waiter for _, waiter, _ in listed),
                "responders": repeated_texts(one.identity for _, _, one in listed),
                "relationships": repeated_texts(one.relationship for _, _, one in listed),
            },
        )


async def expire_waitpoints(conn: AsyncConnection, overdue: Sequence[Active], at: datetime) -> None:
    """Expire locked waitpoints whose deadline has passed."""
    if overdue:
        await conn.execute(SHARED["expire_waitpoints"], {**waitpoint_columns(overdue), "at": at})
        await count_closed(conn, overdue)


async def count_closed(conn: AsyncConnection, closed: Sequence[Active]) -> None:
    """Note how many waitpoints of each waiter were closed."""
    if closed:
        await conn.execute(SHARED["count_closed"], closed_columns(closed))


async def announce(conn: AsyncConnection, messages: Sequence[OutMessage], shards: int) -> None:
    """Append messages to the outbox."""
    if messages:
        await conn.execute(outbox.INSERT, outbox.pack(messages, shards))
