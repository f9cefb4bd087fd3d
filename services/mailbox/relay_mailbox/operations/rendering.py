"""Mailboxes, records and leases in the shapes of the API."""

from collections.abc import Mapping, Sequence

import orjson
from relay_common.combiner import Answer
from relay_common.errors import ResyncRequired
from relay_common.ids import encode_id
from relay_common.wire import rfc3339

from relay_mailbox.domain.cursor import ResyncReason, Stream
from relay_mailbox.domain.record import Record

JSON = {"content-type": "application/json"}


def rendered(status: int, body: Mapping[str, object]) -> Answer:
    """Return `body` as an answer; bodies of records go in as the bytes they are."""
    return Answer(status, orjson.dumps(body), JSON)


def record_view(record: Record) -> dict[str, object]:
    """Return a record as readers get it."""
    view: dict[str, object] = {
        "stream": record.stream,
        "epoch": record.epoch,
        "seq": record.seq,
        "id": encode_id("ms_", record.message_id.bytes),
        "kind": record.kind,
        "type": record.type,
        "state": record.state,
        "deliveries": record.deliveries,
        "appended_at": rfc3339(record.appended_at),
    }
    if record.trust is not None:
        view["trust"] = record.trust
    if record.relationship is not None:
        view["relationship"] = record.relationship
    view["body"] = orjson.Fragment(record.body)
    return view


def stream_view(stream: Stream) -> dict[str, object]:
    """Return where a stream stands."""
    return {"epoch": stream.epoch, "head": stream.head, "oldest": stream.oldest}


def page_view(stream: Stream, records: Sequence[Record], since: int) -> dict[str, object]:
    """Return a page; `next_since` is where the next one begins."""
    return {
        **stream_view(stream),
        "records": [record_view(record) for record in records],
        "next_since": records[-1].seq if records else max(since, stream.oldest - 1),
    }


def resync(reason: ResyncReason, stream: Stream) -> ResyncRequired:
    """Return the answer to a position that cannot be followed, with where to go on."""
    return ResyncRequired(
        "Expected a position between oldest and head of this epoch; read again with"
        f" epoch={stream.epoch} and since={stream.oldest - 1}.",
        reason=reason,
        epoch=stream.epoch,
        oldest=stream.oldest,
        head=stream.head,
    )
