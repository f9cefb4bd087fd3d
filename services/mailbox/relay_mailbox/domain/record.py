"""Records: what a mailbox holds, and the delivery states a record goes through."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypeAlias, get_args

import msgspec
from relay_common.errors import Poison

RecordKind: TypeAlias = Literal["message", "waitpoint_event", "early_event"]
DeliveryState: TypeAlias = Literal["available", "leased", "acked", "dead_lettered", "held"]
AppendedState: TypeAlias = Literal["available", "held", "acked"]

RECORD_KINDS: tuple[RecordKind, ...] = get_args(RecordKind)
DELIVERY_STATES: tuple[DeliveryState, ...] = get_args(DeliveryState)
APPENDED_STATES: tuple[AppendedState, ...] = get_args(AppendedState)

# Who goes where: a lease that expires or is released goes back, a redrive revives the dead.
TRANSITIONS: Mapping[DeliveryState, frozenset[DeliveryState]] = {
    "available": frozenset({"leased", "dead_lettered"}),
    "leased": frozenset({"available", "acked", "dead_lettered"}),
    "held": frozenset({"acked"}),
    "dead_lettered": frozenset({"available"}),
    "acked": frozenset(),
}

DEAD_LETTER_NOTICE = "mailbox.record_dead_lettered"


# Structs: a batch makes thousands of both, at a sixth of a dataclass's cost.
class Owner(msgspec.Struct, frozen=True, gc=False):
    """Whose mailbox: there is one for each owner, created on first use."""

    tenant: str
    environment: str
    owner: str


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    """What to append to the mailbox of `to`.

    Ids are 16 raw bytes. `supersedes` names a record of the same owner that is acked in the same
    step, held, leased or not; `wakes` says whether a hint may go out; `sender` is set on messages
    only; `body` is JSON.
    """

    to: Owner
    message_id: bytes
    kind: RecordKind
    type: str
    state: AppendedState
    body: bytes
    wakes: bool = True
    trust: str | None = None
    relationship: str | None = None
    sender: str | None = None
    waitpoint_id: str | None = None
    supersedes: bytes | None = None


@dataclass(frozen=True, slots=True)
class Record:
    """A record as a reader sees it; `stream` is the owner, `deliveries` counts leases."""

    stream: str
    epoch: int
    seq: int
    message_id: uuid.UUID
    kind: str
    type: str
    state: str
    deliveries: int
    appended_at: datetime
    trust: str | None
    relationship: str | None
    body: bytes


class Sender(msgspec.Struct):
    """What a mailbox has to know of a message's content: who sent it."""

    sender: str | None = None


JSON = msgspec.json.Decoder()
SENDER = msgspec.json.Decoder(Sender)


def sender_of(kind: RecordKind, body: bytes) -> str | None:
    """Return who sent a message; other kinds have no sender. Raises Poison for broken JSON."""
    check_json(body)
    if kind != "message":
        return None
    try:
        sender = SENDER.decode(body).sender
    except msgspec.MsgspecError as error:
        raise Poison("invalid_body", str(error)) from error
    return None if sender is None else checked_name(sender)


def check_json(body: bytes) -> None:
    """Raise Poison for broken JSON, also where another decoder would skip it: readers get the body
    as it is."""
    try:
        JSON.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Poison("invalid_body", str(error)) from error


def checked_name(value: str) -> str:
    """Return a name of 1 to 512 bytes. Raises Poison for another length, or a NUL."""
    if not 1 <= len(value.encode()) <= 512 or "\x00" in value:
        raise Poison("invalid_field", "expected names of 1 to 512 bytes without NUL")
    return value
