"""Who waits for what: 2,000 waits made from the committed events, and how each must end."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from demo.generate import Event

TENANT, ENVIRONMENT = "acme", "demo"
CHECKOUT, BILLING, ANALYTICS = "client:checkout", "client:billing", "agent:analytics"
LARGE = 20_000
SECONDS_UNTIL_GIVEN_UP = 20
SECONDS_PATIENT = 24 * 3600


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait: who, for which event, opened when, and the state it must end in."""

    waiter: str
    event_type: str
    key: str
    moment: str  # before | during | after the events
    ends: str  # resolved | expired | cancelled
    condition: str | None = None

    @property
    def seconds(self) -> int:
        """How long the waiter is ready to wait: short only where nothing will come."""
        return SECONDS_UNTIL_GIVEN_UP if self.ends == "expired" else SECONDS_PATIENT


def waits(events: Sequence[Event]) -> list[Wait]:
    """Return the 2,000 waits of the story."""
    captured = [e for e in events if e["event_type"] == "payment.captured"]
    sent = [e for e in events if e["event_type"] == "shipment.dispatched"]
    return [
        *(wait(CHECKOUT, e, "before") for e in captured[:700]),
        *(wait(ANALYTICS, e, "before") for e in captured[:100]),
        *(large_payment(e) for e in captured[700:800]),
        *(wait(CHECKOUT, e, "during") for e in captured[-500:]),
        *(wait(CHECKOUT, e, "after") for e in captured[1000:1400]),
        *(wait(str(e["recipient"]), e, "after") for e in sent[:100]),
        *(wait(CHECKOUT, e, "before", ends="expired") for e in sent[100:130]),
        *nothing_comes("expired", 50),
        *nothing_comes("cancelled", 20),
    ]


def wait(waiter: str, event: Event, moment: str, ends: str = "resolved") -> Wait:
    """Return a wait for one event of the file."""
    return Wait(waiter, str(event["event_type"]), str(event["correlation_key"]), moment, ends)


def large_payment(event: Event) -> Wait:
    """Return a wait with a condition; whether it is met stands in the event itself."""
    data = event["data"]
    amount = int(str(data["amount_cents"])) if isinstance(data, dict) else 0
    ends = "resolved" if amount >= LARGE else "expired"
    key = str(event["correlation_key"])
    condition = f"event.data.amount_cents >= {LARGE}"
    return Wait(BILLING, "payment.captured", key, "before", ends, condition)


def nothing_comes(ends: str, count: int) -> Iterator[Wait]:
    """Yield waits for payments that are never made."""
    for number in range(count):
        yield Wait(CHECKOUT, "payment.captured", f"pi_{ends}_{number:04d}", "before", ends)
