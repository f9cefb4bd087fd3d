"""JSON at the surface, spliced from parts that are rendered once (api.md).

A waitpoint's fixed part is rendered at its opening and stored; what changes is appended here. An
event's data are never decoded on the way from the topic to the waiter.
"""

import base64
from collections.abc import Mapping
from functools import lru_cache

import orjson
from relay_common.errors import Json
from relay_common.limits import INLINE_RECORD_BYTES, JSON_DEPTH
from relay_common.strict_json import nests_too_deep

from relay_matcher.domain.event import Event
from relay_matcher.domain.protocol_state import protocol_state
from relay_matcher.domain.waitpoint import REPLY_PART

LARGE_MEMBERS = frozenset(
    {"content", "claim_text", "response_schema", "default_response", "surface_policy", "actions"}
)


def opened_part(fields: Mapping[str, Json]) -> bytes:
    """Return the fixed part of a waitpoint: its JSON object without the closing brace."""
    return orjson.dumps(fields)[:-1]


def changing_part(state: str, revision: int, activation: int, updated_at: str) -> bytes:
    """Return the members of a waitpoint that change, to follow its fixed part."""
    return (
        f',"state":"{state}","revision":{revision},"activation":{activation},'
        f'"updated_at":"{updated_at}"'
    ).encode()


def waitpoint_head(
    opened: bytes,
    kind: str,
    profile: str | None,
    state: str,
    counts: tuple[int, int],
    times: tuple[str, str | None],
) -> bytes:
    """Return a waitpoint up to and without the value of `resolution`.

    `counts` are revision and activation, `times` the last update and the closing.
    """
    parts = [opened, changing_part(state, *counts, times[0])]
    if times[1] is not None:
        parts.append(f',"closed_at":"{times[1]}"'.encode())
    parts.append(protocol_part(kind, profile, state))
    parts.append(b',"resolution":')
    return b"".join(parts)


@lru_cache
def protocol_part(kind: str, profile: str | None, state: str) -> bytes:
    """Return the member `protocol_state` (spec, Protocol state mapping)."""
    return b',"protocol_state":' + orjson.dumps(protocol_state(kind, profile, state))


def event_head(external_id: str, attributes: Mapping[str, Json], received_at: str) -> bytes:
    """Return an event as a resolution shows it, without its data and closing brace."""
    known = {name: value for name, value in attributes.items() if value is not None}
    return orjson.dumps({"id": external_id, **known, "received_at": received_at})[:-1]


def data_member(event: Event, whole: bool) -> bytes:
    """Return `,"data":…` for JSON data, else base64; large data by reference unless `whole`."""
    data = event.data
    if event.dataref is not None:
        reference = {"uri": event.dataref[0], "digest": event.dataref[1]}
        return b',"dataref":' + orjson.dumps({n: v for n, v in reference.items() if v is not None})
    if data is None:
        return b""
    if len(data) > INLINE_RECORD_BYTES.default and not whole:
        return b',"dataref":' + orjson.dumps({"uri": f"/v1/events/{event.external_id}"})
    if is_json(data):
        return b',"data":' + data
    return b',"data_base64":"' + base64.b64encode(data) + b'"'


def is_json(data: bytes) -> bool:
    """Tell whether `data` may stand in a JSON document as they are."""
    if nests_too_deep(data, JSON_DEPTH.default):
        return False
    try:
        orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    return True


def reply_resolution(
    kind: str, identity: tuple[str, str, str], value: bytes, responded_at: str, subject_digest: str
) -> bytes:
    """Return the resolution of a question or review; `value` is the reply as JSON (api.md).

    `identity` is responder, channel and evidence level.
    """
    part = REPLY_PART["review" if kind == "review" else "question"]
    members = {
        "responder": identity[0],
        "channel": identity[1],
        "evidence_level": identity[2],
        "responded_at": responded_at,
        "subject_digest": subject_digest,
    }
    return f'{{"{part}":'.encode() + value + b"," + orjson.dumps(members)[1:]


def slim_part(opened: bytes, location: str) -> bytes:
    """Return a fixed part that fits into a record: large members by reference (design D18)."""
    if len(opened) <= INLINE_RECORD_BYTES.default:
        return opened
    fields: dict[str, Json] = orjson.loads(opened + b"}")
    kept = {name: value for name, value in fields.items() if name not in LARGE_MEMBERS}
    return orjson.dumps({**kept, "ref": location})[:-1]


def slim_value(value: bytes) -> bytes:
    """Return a reply that fits into a record: null for one that is too large, beside `ref`."""
    return value if len(value) <= INLINE_RECORD_BYTES.default else b"null"


def lifecycle_head(event_name: str, message_id: str, revision: int, occurred_at: str) -> bytes:
    """Return a lifecycle event up to and without the value of `waitpoint`."""
    return (
        f'{{"type":"{event_name}","id":"{message_id}","revision":{revision},'
        f'"occurred_at":"{occurred_at}","waitpoint":'
    ).encode()
