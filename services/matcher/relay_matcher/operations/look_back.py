"""Look-back: which recorded event an opening takes (spec, Early replies; design D2, D3)."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from relay_common.db import AsyncConnection
from relay_common.errors import LookBackExceeded, RelayError
from relay_common.limits import LOOK_BACK_EVENTS, RETENTION_SECONDS

from relay_matcher.domain.condition import compiled, view_of
from relay_matcher.domain.event import Event, stored_event
from relay_matcher.domain.waitpoint import Opening
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.store import opening as store

PAGE = 200
BUDGET_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Found:
    """The event that an opening takes."""

    event: Event
    event_id: UUID
    received_at: datetime


@dataclass(slots=True)
class Progress:
    """How far one look-back has come."""

    search: store.Search
    scanned: int = 0
    seconds: float = 0.0
    found: Found | None = None
    ended: bool = False

    @property
    def exceeded(self) -> bool:
        """Whether there is more to look at than one opening may."""
        return self.scanned > LOOK_BACK_EVENTS.default or self.seconds > BUDGET_SECONDS


async def look_back(
    conn: AsyncConnection,
    plumbing: Plumbing,
    openings: Sequence[Opening],
    clock: store.Clock,
    settings: Mapping[str, int],
) -> tuple[dict[UUID, Found], dict[UUID, RelayError]]:
    """Return what each opening finds, and which look back over too much.

    The oldest event by arrival that is within retention and `accept_events_since`, not taken by
    this waiter before, not meant for another, and of which the condition is true.
    """
    progress = [Progress(search_of(opening, clock, settings)) for opening in openings]
    whole = [one.search for one in progress if one.search.opening.since is None]
    firsts = await store.first_on_keys(conn, whole)
    pending = progress
    first: dict[UUID, int] = {}
    while pending:
        paging = await store.look_back(conn, [one.search for one in pending])
        pages = await paging.result()
        for place, one in enumerate(pending):
            page = pages.get(place, ())
            if page:
                first.setdefault(one.search.opening.id, page[0].arrival)
            scan(plumbing, one, page)
        pending = [one for one in pending if not one.ended and not one.exceeded]
    await raise_floors(conn, whole, await firsts.result(), first, clock)
    found = {one.search.opening.id: one.found for one in progress if one.found is not None}
    exceeded: dict[UUID, RelayError] = {
        one.search.opening.id: too_much(one) for one in progress if not one.ended
    }
    return found, exceeded


def search_of(opening: Opening, clock: store.Clock, settings: Mapping[str, int]) -> store.Search:
    """Return where the look-back of `opening` begins."""
    since = clock.at - retention(settings)
    page = 1 if opening.condition is None else PAGE
    return store.Search(opening, 0, max(since, opening.since or since), page)


def retention(settings: Mapping[str, int]) -> timedelta:
    """Return how long this tenant's events stay matchable."""
    seconds = settings.get(RETENTION_SECONDS.name, RETENTION_SECONDS.default)
    return timedelta(seconds=min(seconds, RETENTION_SECONDS.upper))


def scan(plumbing: Plumbing, one: Progress, page: Sequence[store.Candidate]) -> None:
    """Go through one page in order of arrival and note where the look-back stands."""
    opening = one.search.opening
    started = time.monotonic()
    for candidate in page:
        one.scanned += 1
        event = event_of(plumbing, opening, candidate)
        if accepts(opening.condition, event):
            one.found = Found(event, candidate.event_id, candidate.received_at)
            one.ended = True
            return
    one.seconds += time.monotonic() - started
    one.ended = len(page) < one.search.page
    if page:
        one.search = store.Search(opening, page[-1].arrival, one.search.since, one.search.page)


def accepts(condition: str | None, event: Event) -> bool:
    """Tell whether `condition` (none accepts all) is exactly true of `event`."""
    return condition is None or compiled(condition).evaluate(view_of(event)).matches


def event_of(plumbing: Plumbing, opening: Opening, candidate: store.Candidate) -> Event:
    """Return the event of a candidate."""
    offset = plumbing.codec.split(candidate.value)[1]
    return stored_event(candidate.value, offset, opening.key_hash, candidate.event_id)


async def raise_floors(
    conn: AsyncConnection,
    whole: Sequence[store.Search],
    on_key: Mapping[int, int],
    first: Mapping[UUID, int],
    clock: store.Clock,
) -> None:
    """Let the next look-back of a waiter on a key begin at the first event it may still take.

    Only where events were passed over because they are taken or for somebody else: a key that is
    used once leaves no trace. A narrower `accept_events_since` proves nothing about older ones, so
    only searches of the `whole` past count; `on_key` is the first event of each on its key.
    """
    floors: list[tuple[Opening, int]] = []
    for place, search in enumerate(whole):
        takeable = first.get(search.opening.id, clock.arrival + 1)
        if place in on_key and on_key[place] < takeable:
            floors.append((search.opening, takeable - 1))
    await store.raise_floors(conn, floors, clock.at)


def too_much(one: Progress) -> RelayError:
    """Return the error that names the way out."""
    return LookBackExceeded(
        f"Expected at most {LOOK_BACK_EVENTS.default} recorded events to look back over;"
        " name a later accept_events_since.",
        limit=LOOK_BACK_EVENTS.hit(one.scanned),
    )
