"""What intake does: one function per verb of the contract."""

from collections.abc import Sequence
from dataclasses import dataclass

from relay_common.avro import Codec
from relay_common.errors import BrokerUnavailable, InternalError
from relay_common.producer import Outcome, Outgoing, Producer
from relay_common.telemetry import logger, trace_headers
from relay_common.wire import rfc3339

from relay_intake.domain.event import Event, Request, event_id, given_id, match_key, outside_id

SCHEMA = "relay.events.v1"
log = logger(__name__)


@dataclass(frozen=True, slots=True)
class EventTopic:
    """Where events go: the topic, and the seed by which their ids carry the key's hash."""

    producer: Producer
    codec: Codec
    topic: str
    hash_seed: int


async def publish_events(
    out: EventTopic, request: Request, events: Sequence[Event]
) -> Sequence[str]:
    """Return the id of each event once the broker has acknowledged all of them (design D17).

    Ids derive from what the request says, so a repeat publishes the same events, which the matcher
    records once. Raises BrokerUnavailable when one was not acknowledged: nothing is pretended.
    """
    trace = trace_headers()
    keys = [match_key(request, event) for event in events]
    accepted = [
        outside_id(key.hash(out.hash_seed), event_id(request, event, index))
        for index, (event, key) in enumerate(zip(events, keys, strict=True))
    ]
    messages = [
        Outgoing(
            topic=out.topic,
            key=key.encoded(),
            value=out.codec.encode(SCHEMA, record(request, event, index)),
            headers=cloud_headers(request, event, accepted[index]) + trace,
        )
        for index, (event, key) in enumerate(zip(events, keys, strict=True))
    ]
    require_acknowledged(await out.producer.send(messages))
    return accepted


def require_acknowledged(outcomes: Sequence[Outcome]) -> None:
    """Raise BrokerUnavailable or InternalError unless the broker has every message."""
    failed = [outcome for outcome in outcomes if outcome.state != "delivered"]
    if not failed:
        return
    log.warning("events_not_acknowledged", events=len(failed), reason=failed[0].reason)
    if any(outcome.state == "refused" for outcome in failed):
        raise InternalError("The broker refuses an event that the published limits allow.")
    raise BrokerUnavailable


def record(request: Request, event: Event, index: int) -> dict[str, object]:
    """Return the event as the topic's schema has it."""
    return {
        "tenant": request.tenant,
        "environment": request.environment,
        "event_type": event.event_type,
        "correlation_key": event.correlation_key,
        "recipient": event.recipient,
        "source": event.source,
        "id": event.id,
        "event_id": given_id(request, event, index),
        "occurred_at": event.occurred_at,
        "accepted_by": request.client,
        "dataref_uri": event.dataref_uri,
        "dataref_digest": event.dataref_digest,
        "data": event.data,
    }


def cloud_headers(request: Request, event: Event, outside: str) -> tuple[tuple[str, bytes], ...]:
    """Return the CloudEvents attributes as Kafka headers; nothing is ever matched by them (D21)."""
    attributes = {
        "specversion": "1.0",
        "id": event.id or outside,
        "source": event.source or f"/tenants/{request.tenant}/environments/{request.environment}",
        "type": event.event_type,
        "correlationkey": event.correlation_key,
        "recipient": event.recipient,
        "time": rfc3339(event.occurred_at) if event.occurred_at else None,
        "dataref": event.dataref_uri,
        "datarefdigest": event.dataref_digest,
        **dict(event.attributes),
    }
    return tuple((f"ce_{n}", value.encode()) for n, value in attributes.items() if value)
