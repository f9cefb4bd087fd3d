"""Opening: waitpoints are stored, and those that a recorded event fits are resolved at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from relay_common.combiner import Answer
from relay_common.db import AsyncConnection
from relay_common.errors import LimitExceeded, RelayError, WaitpointAlreadyActive
from relay_common.idempotency import Call
from relay_common.ids import encode_id
from relay_common.limits import ACTIVE_PER_MATCH_KEY
from relay_common.outbox import OutMessage

from relay_matcher.domain.rendering import opened_part
from relay_matcher.domain.reply import Target
from relay_matcher.domain.waitpoint import Active, Opening, deadline_fault, since_fault
from relay_matcher.operations import lifecycle
from relay_matcher.operations.counting import refuse_excess
from relay_matcher.operations.early_reply import run_held
from relay_matcher.operations.look_back import Found, look_back
from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.operations.ruling import Rulings, settle, tell_responders
from relay_matcher.store import opening as store


@dataclass(slots=True)
class Round:
    """Openings of distinct waiters and keys, and what has become of each so far."""

    openings: Sequence[Opening]
    refused: dict[UUID, RelayError] = field(default_factory=dict[UUID, RelayError])
    found: dict[UUID, Found] = field(default_factory=dict[UUID, Found])

    def standing(self) -> list[Opening]:
        """Return the openings that nothing has refused."""
        return [opening for opening in self.openings if opening.id not in self.refused]


async def open_waitpoints(
    plumbing: Plumbing, conn: AsyncConnection, calls: Sequence[Call[Opening]]
) -> list[Answer | RelayError]:
    """Open waitpoints of one tenant in the open transaction of `conn` (spec, Early replies).

    Per call the answer 201 with the waitpoint, resolved already when a held event fits; or why it
    is refused: waitpoint_already_active, deadline_passed, deadline_too_far, validation_failed (it
    looks back from the future), limit_exceeded or look_back_exceeded.
    """
    openings = [call.given for call in calls]
    await store.lock_match_keys(conn, [opening.key_hash for opening in openings])
    answers: dict[UUID, Answer | RelayError] = {}
    for distinct in rounds(openings):
        answers |= await open_round(plumbing, conn, Round(distinct))
    return [answers[opening.id] for opening in openings]


def rounds(openings: Sequence[Opening]) -> list[list[Opening]]:
    """Return `openings` so that no round has a waiter and key twice: they take turns."""
    turns: list[list[Opening]] = []
    seen: dict[tuple[str, str, str], int] = {}
    for opening in openings:
        who = (opening.waiter, opening.key.event_type, opening.key.correlation_key)
        turn = seen[who] = seen.get(who, -1) + 1
        if turn == len(turns):
            turns.append([])
        turns[turn].append(opening)
    return turns


async def open_round(
    plumbing: Plumbing, conn: AsyncConnection, this: Round
) -> dict[UUID, Answer | RelayError]:
    """Open one round in the lock order: counters, waitpoint rows, outbox (design §6)."""
    setting = await store.read_settings(conn)
    counting = await store.raise_counters(conn, [opening.waiter for opening in this.openings])
    owning = await store.lock_own(conn, this.openings)
    reading = await store.read_clock(conn)
    settings, counts = await setting.result(), await counting.result()
    this.refused |= await refuse_excess(conn, this.openings, counts, settings)
    counted = this.standing()
    own, clock = await owning.result(), await reading.result()
    overdue = [waitpoint for _, waitpoint in own if waitpoint.expires_at <= clock.at]
    await store.expire_waitpoints(conn, overdue, clock.at)
    messages = [m for w in overdue for m in lifecycle.expired(plumbing.announcer, w, clock.at)]
    messages += await tell_responders(conn, plumbing, overdue, clock.at)
    refuse_active(this, own, clock)
    refuse_times(this, clock)
    standing = this.standing()
    waiting = await store.waiting_on_keys(conn, standing, ACTIVE_PER_MATCH_KEY.default)
    events = [opening for opening in standing if opening.kind == "event"]
    found, exceeded = await look_back(conn, plumbing, events, clock, settings)
    refuse_crowded(this, standing, await waiting.result())
    this.found |= found
    this.refused |= exceeded
    answers, opened = await store_round(plumbing, conn, this, clock)
    await store.lower_counters(
        conn, [o.waiter for o in counted if o.id in this.refused or o.id in this.found]
    )
    await store.announce(conn, [*messages, *opened], plumbing.shards)
    return {**this.refused, **answers}


async def store_round(
    plumbing: Plumbing, conn: AsyncConnection, this: Round, clock: store.Clock
) -> tuple[dict[UUID, Answer], list[OutMessage]]:
    """Store what stands; return the answers and what is announced."""
    rows = [store_row(this, opening, clock) for opening in this.standing()]
    if not rows:
        return {}, []
    await store.insert_waitpoints(conn, rows, clock.at)
    rulings = Rulings(clock.at)
    asked = [(row.opening, target_of(row)) for row in rows if row.opening.kind != "event"]
    replied = await run_held(conn, plumbing, asked, rulings)
    resolving = await settle(conn, rulings)
    messages: list[OutMessage] = []
    for row in rows:
        messages += announced(plumbing, this, row, clock)
        if row.opening.id not in replied:
            invited = row.opening.invited()
            messages += lifecycle.invitations(plumbing.announcer, active(row), invited, clock.at)
    answers = {row.opening.id: shown(this, row, clock) for row in rows}
    await resolving.result()
    return {**answers, **replied}, [*messages, *rulings.messages]


def found(this: Round, row: store.NewRow) -> bool:
    """Tell whether an opening found its event."""
    return row.opening.id in this.found


def target_of(row: store.NewRow) -> Target:
    """Return a new question or review as held replies meet it."""
    opening = row.opening
    return Target(active(row), "open", opening.subject_digest, opening.schema_digest, listed=False)


def refuse_active(this: Round, own: Sequence[tuple[int, Active]], clock: store.Clock) -> None:
    """Refuse what would be a second active waitpoint of a waiter on a key (design D8)."""
    for place, waitpoint in own:
        if waitpoint.expires_at > clock.at:
            existing = encode_id("wp_", waitpoint.id.bytes)
            error = WaitpointAlreadyActive(
                f"Expected no active waitpoint of this waiter on the match key, found {existing}.",
                id=existing,
            )
            this.refused.setdefault(this.openings[place].id, error)


def refuse_times(this: Round, clock: store.Clock) -> None:
    """Refuse deadlines that have passed or are too far away (spec, Two timeouts), and to look back
    from the future.
    """
    for opening in this.standing():
        at = clock.at
        fault = deadline_fault(opening.expires_at, at) or since_fault(opening.since, at)
        if fault is not None:
            this.refused[opening.id] = fault


def refuse_crowded(this: Round, standing: Sequence[Opening], waiting: Sequence[int]) -> None:
    """Refuse openings on keys that have as many active waitpoints (`waiting`) as a key may have."""
    most = ACTIVE_PER_MATCH_KEY.default
    on_key = {opening.key: count for opening, count in zip(standing, waiting, strict=True)}
    for opening in standing:
        on_key[opening.key] += 1
        if on_key[opening.key] > most:
            this.refused[opening.id] = LimitExceeded(
                f"Expected at most {most} active waitpoints on one match key.",
                limit=ACTIVE_PER_MATCH_KEY.hit(most + 1),
            )


def store_row(this: Round, opening: Opening, clock: store.Clock) -> store.NewRow:
    """Return the row of an opening, with the event it found."""
    external = encode_id("wp_", opening.id.bytes)
    opened = opened_part(opening.opened_fields(external, clock.at))
    found = this.found.get(opening.id)
    if found is None:
        return store.NewRow(opening, opened, None, None)
    return store.NewRow(opening, opened, found.event_id, found.received_at)


def active(row: store.NewRow) -> Active:
    """Return a new waitpoint as it was for a moment: open, at its first revision."""
    opening = row.opening
    return Active(
        opening.id,
        opening.key,
        opening.key_hash,
        opening.waiter,
        opening.kind,
        opening.profile,
        opening.condition,
        opening.expires_at,
        1,
        1,
        opening.deliver_topic,
        opening.default_response,
        row.opened,
    )


def announced(
    plumbing: Plumbing, this: Round, row: store.NewRow, clock: store.Clock
) -> list[OutMessage]:
    """Return the messages of one opening: created, and what its event brought."""
    announcer = plumbing.announcer
    waitpoint = active(row)
    messages = lifecycle.created(announcer, waitpoint, clock.at)
    found = this.found.get(waitpoint.id)
    if found is not None:
        event_json = lifecycle.event_json(found.event, found.received_at)
        if found.event.recipient is None:
            messages.append(
                lifecycle.early_event(announcer, found.event, waitpoint.waiter, event_json, "acked")
            )
        messages += lifecycle.resolved_by_event(
            announcer, waitpoint, found.event, event_json, clock.at
        )
    return messages


def shown(this: Round, row: store.NewRow, clock: store.Clock) -> Answer:
    """Return the answer to one opening: the waitpoint as it is now."""
    waitpoint = active(row)
    headers = {
        **lifecycle.JSON_TYPE,
        "location": f"/v1/waitpoints/{encode_id('wp_', waitpoint.id.bytes)}",
    }
    found = this.found.get(waitpoint.id)
    if found is None:
        return Answer(201, lifecycle.open_head(waitpoint, "open", clock.at) + b"null}", headers)
    event_json = lifecycle.event_json(found.event, found.received_at)
    head = lifecycle.closed_head(waitpoint, "resolved", clock.at)
    tail = lifecycle.resolution_tail(clock.at)
    return Answer(201, head + b'{"event":' + event_json + tail, headers)
