"""The tenant's settings of the matcher, under their upper limits (design D18, D21)."""

from collections.abc import Mapping, Sequence

from relay_common.combiner import Answer, answer
from relay_common.db import AsyncConnection
from relay_common.errors import FieldError, Json, LimitHit, RelayError, ValidationFailed
from relay_common.idempotency import Call
from relay_common.limits import (
    CLOSED_WAITPOINT_SECONDS,
    DAY,
    OPEN_PER_TENANT,
    OPEN_PER_WAITER,
    RETENTION_SECONDS,
    Limit,
)

from relay_matcher.operations.plumbing import Plumbing
from relay_matcher.store import settings as store

# Name, lowest value, and the limit with default and upper value.
NUMBERS: Mapping[str, tuple[int, Limit]] = {
    RETENTION_SECONDS.name: (60, RETENTION_SECONDS),
    # Not shorter than a retry finds its stored answer.
    CLOSED_WAITPOINT_SECONDS.name: (2 * DAY, CLOSED_WAITPOINT_SECONDS),
    OPEN_PER_WAITER.name: (0, OPEN_PER_WAITER),
    OPEN_PER_TENANT.name: (0, OPEN_PER_TENANT),
}
SOURCES = "event_sources"  # the source prefixes accepted from the topic; not set: every source

Chosen = Mapping[str, Json]


async def replace_settings(
    _plumbing: Plumbing, conn: AsyncConnection, calls: Sequence[Call[Chosen]]
) -> list[Answer | RelayError]:
    """Replace the settings of the tenant; what is left out takes its default again."""
    answers: list[Answer | RelayError] = []
    for call in calls:
        refused = refusal(call.given)
        if refused is None:
            await store.replace_settings(conn, call.given)
        answers.append(refused or shown(call.given))
    return answers


def refusal(chosen: Chosen) -> RelayError | None:
    """Return why `chosen` is outside its limits, None when it is not."""
    faults: list[FieldError] = []
    hits: list[LimitHit] = []
    for name, (lowest, limit) in NUMBERS.items():
        value = chosen.get(name)
        if isinstance(value, int) and not lowest <= value <= limit.upper:
            detail = f"expected {lowest} to {limit.upper} {limit.unit}, found {value}"
            faults.append(FieldError(f"/{name}", detail))
            hits.append(limit.hit(value, limit.upper))
    if not faults:
        return None
    return ValidationFailed(
        "Expected settings within their upper limits.", errors=faults, limit=hits[0]
    )


async def read_settings(conn: AsyncConnection) -> Answer:
    """Return the settings that hold for the tenant."""
    return shown(await store.read_settings(conn))


def shown(chosen: Chosen) -> Answer:
    """Return settings as the API shows them, defaults filled in."""
    numbers: dict[str, Json] = {
        name: chosen.get(name, limit.default) for name, (_, limit) in NUMBERS.items()
    }
    return answer(200, {**numbers, SOURCES: chosen.get(SOURCES)})
