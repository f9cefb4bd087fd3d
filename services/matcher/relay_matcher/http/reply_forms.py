"""Bodies of replies, and who is speaking in them (design D15)."""

from typing import Annotated, cast

from pydantic import Field, JsonValue
from relay_common.errors import (
    FieldError,
    InsufficientScope,
    Json,
    ValidationFailed,
)
from relay_common.limits import REPLY_BYTES
from relay_common.tokens import Caller
from relay_common.wire import IdentityText, KeyText, Wire

from relay_matcher.domain.reply import Channel, Identity
from relay_matcher.domain.waitpoint import Part
from relay_matcher.http.forms import refuse_large

ADAPTER = "replies:channel"
Digest = Annotated[str, Field(min_length=1, max_length=128)]


class SessionIn(Wire):
    """`POST /v1/waitpoints/{id}/reply-sessions`; an adapter names responder and channel."""

    responder: IdentityText | None = None
    channel: Channel | None = None


class ReplyPart(SessionIn):
    """What replies have in common: exactly one of `response` and `decision`."""

    subject_digest: Digest
    response: JsonValue = None
    decision: JsonValue = None
    access_reference: Annotated[str, Field(min_length=1, max_length=512)] | None = None


class ReplyIn(ReplyPart):
    """`POST /v1/waitpoints/{id}/replies`."""

    reply_session: Annotated[str, Field(min_length=1, max_length=128)]


class EarlyReplyIn(ReplyPart):
    """`POST /v1/replies`."""

    waiter: IdentityText
    event_type: KeyText
    correlation_key: KeyText


def identity_of(who: Caller, form: SessionIn) -> Identity:
    """Return who replies: what a channel adapter claims, or the caller itself (design D15)."""
    claimed = [name for name in ("responder", "channel") if getattr(form, name) is not None]
    if claimed and ADAPTER not in who.scopes:
        raise InsufficientScope(
            f"Expected a token with the scope {ADAPTER}, found others.", scope=ADAPTER
        )
    if form.responder is not None and form.channel is not None:
        return Identity(form.responder, form.channel, "channel_claim")
    if claimed:
        missing = "channel" if claimed == ["responder"] else "responder"
        raise ValidationFailed(errors=[FieldError(f"/{missing}", "expected a value, found none")])
    if "waitpoints:reply" not in who.scopes:
        raise InsufficientScope(
            "Expected responder and channel, or a token with the scope waitpoints:reply.",
            scope="waitpoints:reply",
        )
    channel: Channel = "inbox" if who.sub.startswith("subscriber:") else "api"
    return Identity(who.sub, channel, "relay_session")


def value_of(form: ReplyPart) -> tuple[Part, Json]:
    """Return the field that a reply came in and its value, within its size."""
    given = [name for name in ("response", "decision") if name in form.model_fields_set]
    if len(given) != 1:
        fault = "expected exactly one of response and decision"
        raise ValidationFailed(errors=[FieldError("", fault)])
    part = cast(Part, given[0])
    value = cast(Json, getattr(form, part))
    refuse_large("a reply", value, REPLY_BYTES)
    return part, value
