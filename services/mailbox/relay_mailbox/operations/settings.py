"""What operators set: the state of a mailbox, the settings of the tenant."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from relay_common import limits
from relay_common.combiner import Answer
from relay_common.db import AsyncConnection, Pool, tenant_transaction
from relay_common.errors import FieldError, LimitHit, MailboxNotFound, RelayError, ValidationFailed
from relay_common.idempotency import Call
from relay_common.limits import Limit
from relay_common.tokens import Caller

from relay_mailbox.operations.rendering import rendered
from relay_mailbox.store import mailboxes, settings
from relay_mailbox.store.mailboxes import MailboxState, Tenancy
from relay_mailbox.store.settings import Chosen

# The settings of the mailbox: name, lowest value, and the limit with default and upper value.
SETTINGS: dict[str, tuple[int, Limit]] = {
    "lease_seconds": (1, limits.LEASE_SECONDS),
    "redeliveries": (0, limits.REDELIVERIES),
    "retention_seconds": (60, limits.RETENTION_SECONDS),
    "retained_records": (1, limits.RETAINED_RECORDS),
}


@dataclass(frozen=True, slots=True)
class StateGiven:
    """The state that a mailbox gets."""

    owner: str
    state: MailboxState


async def set_state(
    conn: AsyncConnection, calls: Sequence[Call[StateGiven]]
) -> list[Answer | RelayError]:
    """Suspend, delete or reactivate mailboxes; their records are kept (spec, Mailbox: State)."""
    within = Tenancy.of(calls[0].caller)
    known = await mailboxes.find(conn, within, {c.given.owner for c in calls})
    boxes = await mailboxes.lock(conn, within, known)
    answers: list[Answer | RelayError] = []
    for call in calls:
        box = boxes.get(call.given.owner)
        if box is None:
            answers.append(MailboxNotFound())
            continue
        await settings.set_state(conn, within, box.id, call.given.state)
        answers.append(rendered(200, {"owner": box.owner, "state": call.given.state}))
    return answers


async def get_settings(pool: Pool, caller: Caller) -> Answer:
    """Answer the settings of the tenant, with default and upper value of each."""
    async with tenant_transaction(pool, caller.tenant, caller.environment) as conn:
        return settings_answer(await settings.read_settings(conn, Tenancy.of(caller)))


async def put_settings(
    conn: AsyncConnection, calls: Sequence[Call[Chosen]]
) -> list[Answer | RelayError]:
    """Replace the settings of the tenant; what is left out takes its default again."""
    answers: list[Answer | RelayError] = []
    for call in calls:
        refused = refused_settings(call.given)
        if refused is None:
            await settings.write_settings(conn, Tenancy.of(call.caller), call.given)
        answers.append(refused or settings_answer(call.given))
    return answers


def refused_settings(chosen: Chosen) -> RelayError | None:
    """Return why `chosen` is outside its limits, None when it is not."""
    errors: list[FieldError] = []
    hits: list[LimitHit] = []
    for name, value in asdict(chosen).items():
        lowest, limit = SETTINGS[name]
        if value is not None and not lowest <= value <= limit.upper:
            told = f"expected {lowest} to {limit.upper} {limit.unit}, found {value}"
            errors.append(FieldError(f"/{name}", told))
            hits.append(limit.hit(value, limit.upper))
    if not errors:
        return None
    return ValidationFailed(
        "Expected settings within their upper limits.", errors=errors, limit=hits[0]
    )


def settings_answer(chosen: Chosen) -> Answer:
    """Return the settings that hold."""
    values = asdict(chosen)
    return rendered(
        200,
        {
            name: limit.default if values[name] is None else values[name]
            for name, (_, limit) in SETTINGS.items()
        },
    )
