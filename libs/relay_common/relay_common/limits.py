"""Every published limit: served at `GET /v1/limits`, quoted in error bodies (spec, Limits; D18)."""

from collections.abc import Sequence
from dataclasses import dataclass

from relay_common.errors import Json, LimitHit

KIB = 1024
MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit and its unit; a tenant may set `default` to anything up to `upper`."""

    name: str
    default: int
    upper: int
    unit: str
    description: str

    def hit(self, got: int, value: int | None = None) -> LimitHit:
        """Return what an error body says about `got`; `value` is the tenant's setting, if any."""
        return LimitHit(self.name, self.default if value is None else value, got)


def fixed(name: str, value: int, unit: str, description: str) -> Limit:
    """Return a limit that no tenant setting moves."""
    return Limit(name, value, value, unit, description)


KEY_BYTES = fixed(
    "key_bytes", 512, "bytes", "Event type or correlation key: UTF-8 without NUL, at least 1 byte"
)
IDENTITY_BYTES = fixed("identity_bytes", 512, "bytes", "Waiter, responder, recipient or owner")
SOURCE_BYTES = fixed("source_bytes", 1 * KIB, "bytes", "Source or id of an event")
EVENT_DATA_BYTES = fixed(
    "event_data_bytes", 256 * KIB, "bytes", "Data of one event; larger data by `dataref`"
)
EVENTS_PER_BATCH = fixed("events_per_batch", 1_000, "events", "Events in one POST /v1/events")
REQUEST_BYTES = fixed("request_bytes", 1024 * KIB, "bytes", "Body of one request")
EVENTS_REQUEST_BYTES = fixed(
    "events_request_bytes", 16 * 1024 * KIB, "bytes", "Body of one POST /v1/events"
)
JSON_DEPTH = fixed("json_depth", 64, "levels", "Nesting of a JSON document")
REPLY_BYTES = fixed("reply_bytes", 64 * KIB, "bytes", "Response, decision or default response")
MESSAGE_BYTES = fixed("message_bytes", 256 * KIB, "bytes", "Content or envelope of one message")
CONTENT_BYTES = fixed("content_bytes", 256 * KIB, "bytes", "Content of one waitpoint")
RESPONSE_SCHEMA_BYTES = fixed("response_schema_bytes", 32 * KIB, "bytes", "Response schema")
CONDITION_BYTES = fixed("condition_bytes", 1 * KIB, "bytes", "Condition of one waitpoint")
RESPONDERS = fixed("responders", 100, "responders", "Responders of one waitpoint")
TIERS = fixed("escalation_tiers", 16, "tiers", "Tiers of one escalation policy")
SURFACE_STEPS = fixed("surface_steps", 16, "steps", "Steps of one surface policy and recipient")
TAGS = fixed("tags", 64, "tags", "Tags of one waitpoint")
TAG_CHARACTERS = fixed("tag_characters", 256, "characters", "Name or value of a tag")
ACTIONS = fixed("actions", 64, "actions", "Actions of one review")
ACTION_CHARACTERS = fixed("action_characters", 128, "characters", "Name of an action")
CLAIM_CHARACTERS = fixed("claim_text_characters", 16 * KIB, "characters", "Claim text")
CANCEL_REASON_CHARACTERS = fixed(
    "cancel_reason_characters", 1 * KIB, "characters", "Reason of a cancellation"
)
HELD_REPLIES = fixed(
    "held_replies", 100, "replies", "Replies held for one waiter and match key until it opens"
)
REPLY_SESSION_SECONDS = fixed(
    "reply_session_seconds", 15 * MINUTE, "seconds", "Reply session, or to the deadline if sooner"
)
WAIT_SECONDS = fixed("wait_seconds", 30 * DAY, "seconds", "Longest wait of a waitpoint")
HEARTBEAT_SECONDS_LEAST = fixed("heartbeat_seconds_least", 1, "seconds", "Shortest heartbeat")
HEARTBEAT_SECONDS = fixed("heartbeat_seconds", DAY, "seconds", "Longest heartbeat interval")
OPEN_PER_WAITER = Limit(
    "open_waitpoints_per_waiter", 100_000, 1_000_000, "waitpoints", "Active waitpoints of a waiter"
)
OPEN_PER_TENANT = Limit(
    "open_waitpoints_per_tenant",
    1_000_000,
    100_000_000,
    "waitpoints",
    "Active waitpoints of a tenant",
)
ACTIVE_PER_MATCH_KEY = fixed(
    "active_waitpoints_per_match_key", 10_000, "waitpoints", "Active waitpoints on one match key"
)
LOOK_BACK_EVENTS = fixed(
    "look_back_events", 10_000, "events", "Recorded events that one opening looks back over"
)
MESSAGES_PER_WAITPOINT = fixed(
    "messages_per_waitpoint", 1_000, "messages", "Messages that one waitpoint may cause"
)
INLINE_RECORD_BYTES = fixed(
    "inline_record_bytes", 16 * KIB, "bytes", "Event data inside a record; larger by reference"
)
LEASE_SECONDS = Limit("lease_seconds", 30, 12 * HOUR, "seconds", "Duration of one lease")
RELEASE_DELAY_SECONDS = fixed(
    "release_delay_seconds", 12 * HOUR, "seconds", "Delay of a released record"
)
REDELIVERIES = Limit("redeliveries", 5, 100, "deliveries", "Redeliveries before dead-lettering")
LEASE_RECORDS = fixed("lease_records", 1_000, "records", "Records of one lease or acknowledgement")
RETENTION_SECONDS = Limit(
    "retention_seconds", 7 * DAY, 90 * DAY, "seconds", "Retention of events and mailbox records"
)
CLOSED_WAITPOINT_SECONDS = Limit(
    "closed_waitpoint_seconds",
    90 * DAY,
    730 * DAY,
    "seconds",
    "A closed waitpoint is kept at least this long, and 30 days longer at most",
)
RETAINED_RECORDS = Limit(
    "retained_records", 1_000_000, 10_000_000, "records", "Retained records of one mailbox"
)
LIST_ITEMS = Limit("list_items", 100, 1_000, "items", "Items on one page of a list")

LIMITS: Sequence[Limit] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Limit)
)


def published(limits: Sequence[Limit] = LIMITS) -> dict[str, Json]:
    """Return the body of `GET /v1/limits`."""
    return {
        "limits": [
            {
                "name": limit.name,
                "value": limit.default,
                "upper": limit.upper,
                "unit": limit.unit,
                "description": limit.description,
            }
            for limit in limits
        ]
    }
