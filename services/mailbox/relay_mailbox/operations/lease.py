"""Lease, extend, release, acknowledge: set-based over the calls that came together."""

import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import msgspec
import orjson
from relay_common import limits
from relay_common.combiner import Answer, Run
from relay_common.db import AsyncConnection
from relay_common.errors import (
    FieldError,
    LeaseLost,
    LeaseNotFound,
    LeaseTooLong,
    MailboxDeleted,
    MailboxSuspended,
    RelayError,
    ValidationFailed,
)
from relay_common.idempotency import Call, mutation
from relay_common.ids import derive_id
from relay_common.telemetry import counter
from relay_common.wire import rfc3339

from relay_mailbox.domain.lease import AckResult, Lease, decode_lease
from relay_mailbox.domain.record import Record
from relay_mailbox.operations.rendering import JSON, record_view, rendered, resync
from relay_mailbox.store import leases, mailboxes
from relay_mailbox.store.leases import Item, Leased, Named, Wanted
from relay_mailbox.store.mailboxes import Mailbox, Tenancy


@dataclass(frozen=True, slots=True)
class LeaseGiven:
    """Lease up to `max_records` for `seconds` (None: the tenant's setting)."""

    owner: str
    max_records: int
    seconds: int | None


@dataclass(frozen=True, slots=True)
class AckGiven:
    """What a reader has done."""

    owner: str
    lease_id: str
    epoch: int
    seqs: Sequence[int]


@dataclass(frozen=True, slots=True)
class ExtendGiven:
    """Let a lease end `seconds` from now."""

    owner: str
    lease_id: str
    seconds: int


@dataclass(frozen=True, slots=True)
class ReleaseGiven:
    """Give records of a lease back (None: all of them), to be leased again after the delay."""

    owner: str
    lease_id: str
    seqs: Sequence[int] | None
    delay_seconds: float


class LeaseNote(msgspec.Struct, frozen=True):
    """A lease as its idempotency key keeps it."""

    lease_id: str | None = None
    expires_at: str | None = None
    mailbox_id: int = 0
    epoch: int = 0
    seqs: list[int] = []
    deliveries: list[int] = []


NOTHING = LeaseNote()


async def lease_records(
    conn: AsyncConnection, calls: Sequence[Call[LeaseGiven]]
) -> list[Answer | RelayError]:
    """Lease records in seq order; two leases never share one (spec, Lease then acknowledge).

    The answers are notes, which `with_records` turns into leases.
    """
    within = Tenancy.of(calls[0].caller)
    boxes = await mailboxes.lock(conn, within, {c.given.owner for c in calls})
    answers: list[Answer | RelayError | None] = [
        refused_lease(call.given, boxes[call.given.owner]) for call in calls
    ]
    asking = [place for place, refusal in enumerate(answers) if refusal is None]
    wishes = [wish(calls[place], boxes) for place in asking]
    leased = await leases.lease_records(conn, within, wishes) if wishes else []
    for place, asked, got in zip(asking, wishes, leased, strict=True):
        epoch = boxes[asked.owner].stream.epoch
        answers[place] = lease_note(asked, epoch, got)
    return [answer for answer in answers if answer is not None]


def refused_lease(given: LeaseGiven, box: Mailbox) -> RelayError | None:
    """Return why nothing is leased from `box`, None when it may be."""
    if given.seconds is not None and given.seconds > limits.LEASE_SECONDS.upper:
        return too_long(given.seconds)
    return refused_state(box)


def too_long(seconds: int) -> LeaseTooLong:
    """Return the refusal of a lease beyond the upper limit."""
    upper = limits.LEASE_SECONDS.upper
    return LeaseTooLong(
        f"Expected a lease of at most {upper} seconds, found {seconds}.",
        limit=limits.LEASE_SECONDS.hit(seconds, upper),
    )


def refused_state(box: Mailbox) -> RelayError | None:
    """Return why readers may not change deliveries in `box` now (design §5)."""
    match box.state:
        case "active":
            return None
        case "suspended":
            return MailboxSuspended()
        case "deleted":
            return MailboxDeleted()


def wish(call: Call[LeaseGiven], boxes: Mapping[str, Mailbox]) -> Wanted:
    """Return the wish of `call`; its token derives from the idempotency key, as for any retry."""
    given, attempt = call.given, call.attempt
    token = derive_id(
        "lease", attempt.tenant, attempt.environment, attempt.client, attempt.route, attempt.key
    )
    box = boxes[given.owner]
    return Wanted(box.owner, box.id, given.max_records, given.seconds, uuid.UUID(bytes=token))


def lease_note(wish: Wanted, epoch: int, leased: Leased | None) -> Answer:
    """Return what the idempotency key keeps of a lease: it names records, never content.

    The content can be megabytes and belongs to the mailbox's retention, not to the key's.
    """
    if leased is None:
        return Answer(200, msgspec.json.encode(NOTHING), JSON)
    lease = Lease(wish.token, leased.seqs[0], leased.seqs[-1])
    note = LeaseNote(
        lease_id=lease.encoded(),
        expires_at=rfc3339(leased.until),
        mailbox_id=wish.mailbox_id,
        epoch=epoch,
        seqs=leased.seqs,
        deliveries=leased.deliveries,
    )
    return Answer(201, msgspec.json.encode(note), JSON)


def lease_mutation(seed: int) -> Run[Call[LeaseGiven]]:
    """Return what a Combiner runs for leases: idempotent like every mutation, and the content is
    put together from the records, for a repeated request too."""
    noted = mutation(lease_records, seed)

    async def run(
        conn: AsyncConnection, calls: Sequence[Call[LeaseGiven]], *, alone: bool
    ) -> Sequence[Answer]:
        answers = await noted(conn, calls, alone=alone)
        return await with_records(conn, Tenancy.of(calls[0].caller), answers)

    return run


async def with_records(
    conn: AsyncConnection, within: Tenancy, answers: Sequence[Answer]
) -> list[Answer]:
    """Return `answers` with notes replaced by leases; refusals stay."""
    notes = {
        place: msgspec.json.decode(answer.body, type=LeaseNote)
        for place, answer in enumerate(answers)
        if answer.status in (200, 201)
    }
    named = [
        Named(place, note.mailbox_id, note.epoch, note.seqs, note.deliveries)
        for place, note in notes.items()
    ]
    records = await leases.leased_records(conn, within, named) if named else {}
    return [
        lease_answer(answer, notes[place], records[place]) if place in notes else answer
        for place, answer in enumerate(answers)
    ]


def lease_answer(noted: Answer, note: LeaseNote, records: Sequence[Record]) -> Answer:
    """Return the answer to a lease request."""
    body = {
        "lease_id": note.lease_id,
        "expires_at": note.expires_at,
        "records": [record_view(record) for record in records],
    }
    return Answer(noted.status, orjson.dumps(body), noted.headers)


async def acknowledge(
    conn: AsyncConnection, calls: Sequence[Call[AckGiven]]
) -> list[Answer | RelayError]:
    """Acknowledge records: one of four results for each (spec, Acknowledgement results)."""
    within = Tenancy.of(calls[0].caller)
    boxes = await mailboxes.find(conn, within, {c.given.owner for c in calls})
    answers: list[Answer | RelayError | None] = [
        refused_ack(call.given, boxes.get(call.given.owner)) for call in calls
    ]
    items: list[Item] = []
    for call, refusal in zip(calls, answers, strict=True):
        if refusal is None:
            items += acked_items(call.given, boxes[call.given.owner])
    results = iter(await leases.acknowledge(conn, within, items) if items else [])
    for place, call in enumerate(calls):
        if answers[place] is None:
            answers[place] = ack_answer(call.given.seqs, [next(results) for _ in call.given.seqs])
    return [answer for answer in answers if answer is not None]


def refused_ack(given: AckGiven, box: Mailbox | None) -> RelayError | None:
    """Return why nothing is acknowledged, None when each record gets its result."""
    if box is None or decode_lease(given.lease_id) is None:
        return LeaseNotFound()
    if given.epoch != box.stream.epoch:
        return resync("epoch_changed", box.stream)
    return refused_state(box)


def acked_items(given: AckGiven, box: Mailbox) -> list[Item]:
    """Return the records to acknowledge."""
    lease = decode_lease(given.lease_id)
    if lease is None:
        return []
    return [Item(box.id, lease.token, seq) for seq in given.seqs]


def ack_answer(seqs: Sequence[int], results: Sequence[AckResult]) -> Answer:
    """Return the answer to an acknowledgement, in the order of the request."""
    for result, count in Counter(results).items():
        counter("relay_mailbox_acks_total").labels(result).inc(count)
    listed = [{"seq": s, "result": r} for s, r in zip(seqs, results, strict=True)]
    return rendered(200, {"results": listed})


async def extend_lease(
    conn: AsyncConnection, calls: Sequence[Call[ExtendGiven]]
) -> list[Answer | RelayError]:
    """Move the end of running leases."""
    return [await extended(conn, call) for call in calls]


async def extended(conn: AsyncConnection, call: Call[ExtendGiven]) -> Answer | RelayError:
    """Move the end of one lease; LeaseLost when nothing of it is held any more."""
    given, within = call.given, Tenancy.of(call.caller)
    if given.seconds > limits.LEASE_SECONDS.upper:
        return too_long(given.seconds)
    found = await leased_from(conn, within, given.owner, given.lease_id)
    if isinstance(found, RelayError):
        return found
    box, lease = found
    until = await leases.extend(conn, within, box.id, lease, given.seconds)
    if until is None:
        return LeaseLost()
    return rendered(200, {"lease_id": given.lease_id, "expires_at": rfc3339(until)})


async def release_lease(
    conn: AsyncConnection, box: Mailbox, call: Call[ReleaseGiven]
) -> Answer | RelayError:
    """Give records of one lease back before it ends; LeaseLost when none is held any more."""
    given, lease = call.given, decode_lease(call.given.lease_id)
    refusal = refused_delay(given.delay_seconds) or refused_state(box)
    if lease is None or refusal is not None:
        return refusal or LeaseNotFound()
    what = (given.seqs, given.delay_seconds)
    seqs = await leases.release(conn, Tenancy.of(call.caller), box.id, lease, what)
    return rendered(200, {"released": seqs}) if seqs else LeaseLost()


def refused_delay(seconds: float) -> RelayError | None:
    """Return why records are not held back for `seconds`, None when they may be."""
    limit = limits.RELEASE_DELAY_SECONDS
    if seconds <= limit.upper:
        return None
    told = f"expected at most {limit.upper} seconds, found {seconds:.0f}"
    errors = [FieldError("/delay_seconds", told)]
    return ValidationFailed(errors=errors, limit=limit.hit(ceil(seconds)))


async def leased_from(
    conn: AsyncConnection, within: Tenancy, owner: str, lease_id: str
) -> tuple[Mailbox, Lease] | RelayError:
    """Return the mailbox and the lease that `lease_id` names, or why there is none to change."""
    lease = decode_lease(lease_id)
    box = (await mailboxes.find(conn, within, [owner])).get(owner)
    if lease is None or box is None:
        return LeaseNotFound()
    return refused_state(box) or (box, lease)
