"""Request bodies of the matcher, and the rules that a single request can break."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal, cast

import orjson
from pydantic import Field, JsonValue
from relay_common.errors import (
    DeadlineRequired,
    DefaultResponseForbidden,
    FieldError,
    InsufficientScope,
    Json,
    PayloadTooLarge,
    ResponderIsWaiter,
    SubjectDigestMismatch,
    ValidationFailed,
)
from relay_common.ids import new_id
from relay_common.limits import (
    ACTION_CHARACTERS,
    ACTIONS,
    CANCEL_REASON_CHARACTERS,
    CLAIM_CHARACTERS,
    CONTENT_BYTES,
    HEARTBEAT_SECONDS,
    HEARTBEAT_SECONDS_LEAST,
    REPLY_BYTES,
    RESPONDERS,
    SURFACE_STEPS,
    TAG_CHARACTERS,
    TAGS,
    Limit,
)
from relay_common.match_key import MatchKey
from relay_common.tokens import Caller
from relay_common.wire import Duration, IdentityText, KeyText, Time, Wire, at_most, rfc3339

from relay_matcher.domain.condition import compiled
from relay_matcher.domain.digest import subject_digest
from relay_matcher.domain.reply import Acceptable
from relay_matcher.domain.response_schema import check_schema
from relay_matcher.domain.waitpoint import Kind, Opening

TagText = Annotated[str, Field(min_length=1), at_most(TAG_CHARACTERS)]
ActionText = Annotated[str, Field(min_length=1), at_most(ACTION_CHARACTERS)]


# The ordered steps of one recipient; what is in a step is escalation's to judge.
Steps = Annotated[list[dict[str, JsonValue]], at_most(SURFACE_STEPS)]


class MatchIn(Wire):
    """The match key of a waitpoint, without what the token says."""

    event_type: KeyText
    correlation_key: KeyText


class DeliverTo(Wire):
    """Where result events go besides the waiter's mailbox."""

    topic: KeyText


class WaitpointIn(Wire):
    """`POST /v1/waitpoints` (api.md)."""

    kind: Kind
    match: MatchIn
    condition: str | None = None
    expires_at: Time | None = None
    heartbeat_interval: Duration | None = None
    response_schema: dict[str, JsonValue] | None = None
    responders: Annotated[list[IdentityText], at_most(RESPONDERS)] | None = None
    content: dict[str, JsonValue] | None = None
    claim_text: Annotated[str, at_most(CLAIM_CHARACTERS)] | None = None
    subject_digest: Annotated[str, Field(max_length=128)] | None = None
    actions: Annotated[list[ActionText], Field(min_length=1), at_most(ACTIONS)] | None = None
    default_response: JsonValue = None
    deliver_to: DeliverTo | None = None
    escalation_policy: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    surface_policy: dict[IdentityText, Steps] | None = None
    profile: Literal["guardian_approval", "access_approval"] | None = None
    accept_events_since: Time | None = None
    tags: Annotated[dict[TagText, TagText], at_most(TAGS)] | None = None


class CancelIn(Wire):
    """`POST /v1/waitpoints/{id}/cancel`."""

    reason: Annotated[str, at_most(CANCEL_REASON_CHARACTERS)] | None = None


ONLY_EVENTS = ("condition", "accept_events_since")
ONLY_REPLIES = (
    "response_schema",
    "responders",
    "content",
    "claim_text",
    "subject_digest",
    "actions",
    "escalation_policy",
    "surface_policy",
    "profile",
)


def opening_of(form: WaitpointIn, caller: Caller, seed: int) -> Opening:
    """Return what `form` asks to open for `caller`. Raises the error of the first broken rule."""
    if form.expires_at is None:
        raise DeadlineRequired(errors=[FieldError("/expires_at", "expected a time, found none")])
    refuse_misplaced(form)
    refuse_topic(form, caller)
    heartbeat = heartbeat_of(form)
    if form.condition is not None:
        compiled(form.condition)
    bound = bound_part(form, caller)
    refuse_default(form, bound)
    key = MatchKey(
        caller.tenant, caller.environment, form.match.event_type, form.match.correlation_key
    )
    default = form.default_response
    return Opening(
        id=new_id(),
        key=key,
        key_hash=key.hash(seed),
        waiter=caller.sub,
        kind=form.kind,
        expires_at=form.expires_at,
        fields=fields_of(form, bound),
        condition=form.condition,
        since=form.accept_events_since,
        heartbeat_interval=heartbeat,
        deliver_topic=None if form.deliver_to is None else form.deliver_to.topic,
        profile=form.profile,
        responders=tuple(form.responders or ()),
        subject_digest=bound.subject_digest if bound else None,
        schema_digest=bound.acceptable.digest() if bound else None,
        default_response=None if default is None else orjson.dumps(default),
        tags=form.tags or {},
    )


@dataclass(frozen=True, slots=True)
class Bound:
    """What a reply is bound to: the digest of the subject, and which replies are acceptable."""

    subject_digest: str
    acceptable: Acceptable


def refuse_misplaced(form: WaitpointIn) -> None:
    """Refuse fields of another kind of waitpoint."""
    foreign = ONLY_REPLIES if form.kind == "event" else ONLY_EVENTS
    faults = [
        FieldError(f"/{name}", f"expected no such field on kind {form.kind}, found one")
        for name in foreign
        if getattr(form, name) is not None
    ]
    if form.profile is not None and form.kind != "review":
        faults.append(FieldError("/profile", "expected a profile on kind review only"))
    if faults:
        raise ValidationFailed(errors=faults)


def refuse_topic(form: WaitpointIn, caller: Caller) -> None:
    """Refuse delivery to a topic by somebody who may not publish."""
    if form.deliver_to is not None and "topics:publish" not in caller.scopes:
        raise InsufficientScope(
            "Expected a token with the scope topics:publish, found others.", scope="topics:publish"
        )


def heartbeat_of(form: WaitpointIn) -> timedelta | None:
    """Return the heartbeat interval. Raises ValidationFailed outside its bounds."""
    interval = form.heartbeat_interval
    shortest = timedelta(seconds=HEARTBEAT_SECONDS_LEAST.default)
    longest = timedelta(seconds=HEARTBEAT_SECONDS.default)
    if interval is not None and not shortest <= interval <= longest:
        limit = HEARTBEAT_SECONDS if interval > longest else HEARTBEAT_SECONDS_LEAST
        fault = FieldError("/heartbeat_interval", "expected 1 second to 24 hours")
        raise ValidationFailed(errors=[fault], limit=limit.hit(int(interval.total_seconds())))
    return interval


def bound_part(form: WaitpointIn, caller: Caller) -> Bound | None:
    """Return what replies are bound to; None for an event waitpoint. Raises the first fault."""
    if form.kind == "event":
        return None
    acceptable = acceptable_of(form)
    require(form, acceptable)
    if caller.sub in (form.responders or ()):
        raise ResponderIsWaiter(errors=[FieldError("/responders", "expected no waiter among them")])
    if len(set(form.responders or ())) != len(form.responders or ()):
        raise ValidationFailed(errors=[FieldError("/responders", "expected each of them once")])
    content = cast(Json, form.content)
    refuse_large("content", content, CONTENT_BYTES)
    refuse_evidence(content)
    digest = subject_digest(content)
    if form.subject_digest is not None and form.subject_digest != digest:
        raise SubjectDigestMismatch(f"Expected the digest of content, {digest}, found another.")
    return Bound(digest, acceptable)


def acceptable_of(form: WaitpointIn) -> Acceptable:
    """Return which replies a waitpoint accepts. Raises SchemaInvalid or PayloadTooLarge."""
    schema = cast("Mapping[str, Json] | None", form.response_schema)
    if schema is not None:
        check_schema(schema)
    if form.kind == "question" and form.actions is not None:
        raise ValidationFailed(errors=[FieldError("/actions", "expected actions on reviews only")])
    return Acceptable(schema, None if form.actions is None else tuple(form.actions))


def require(form: WaitpointIn, acceptable: Acceptable) -> None:
    """Raise ValidationFailed when a question or review lacks one of its parts."""
    missing = [name for name in ("content", "responders") if not getattr(form, name)]
    if form.kind == "question" and acceptable.schema is None:
        missing.append("response_schema")
    if form.kind == "review" and acceptable.schema is None and acceptable.actions is None:
        missing.append("actions")
    if missing:
        raise ValidationFailed(
            errors=[FieldError(f"/{name}", "expected a value, found none") for name in missing]
        )


def refuse_large(what: str, value: Json, limit: Limit) -> None:
    """Raise PayloadTooLarge for a value that is larger than `limit` as JSON."""
    size = len(orjson.dumps(value))
    if size > limit.default:
        raise PayloadTooLarge(
            f"Expected {what} of at most {limit.default} bytes, found {size}.",
            limit=limit.hit(size),
        )


def refuse_evidence(content: Json) -> None:
    """Raise ValidationFailed for evidence by reference that has no digest to check it by."""
    evidence = content.get("evidence") if isinstance(content, Mapping) else None
    several = isinstance(evidence, list | tuple)
    items = {f"/{n}": one for n, one in enumerate(evidence)} if several else {"": evidence}
    faults = [
        FieldError(f"/content/evidence{place}/digest", "expected a digest beside the uri")
        for place, item in items.items()
        if isinstance(item, Mapping)
        and "uri" in item
        and not str(item.get("digest", "")).startswith("sha-256:")
    ]
    if faults:
        raise ValidationFailed(errors=faults)


def refuse_default(form: WaitpointIn, bound: Bound | None) -> None:
    """Refuse a default response where silence is not consent, or one that is no valid reply.

    It stands whole in the event and the record of the expiry.
    """
    default = cast(Json, form.default_response)
    if default is None:
        return
    refuse_large("a default response", default, REPLY_BYTES)
    if form.profile == "guardian_approval":
        raise DefaultResponseForbidden(
            errors=[FieldError("/default_response", "expected none under guardian_approval")]
        )
    faults = bound.acceptable.faults(default, "/default_response") if bound else ()
    if faults:
        raise ValidationFailed("Expected a default response that is a valid reply.", errors=faults)


def fields_of(form: WaitpointIn, bound: Bound | None) -> dict[str, Json]:
    """Return the request as the waitpoint shows it (api.md)."""
    shown = cast(
        dict[str, Json],
        form.model_dump(
            mode="python",
            exclude_none=True,
            exclude={"expires_at", "heartbeat_interval", "accept_events_since", "subject_digest"},
        ),
    )
    if bound is not None:
        shown["subject_digest"] = bound.subject_digest
    for name in ("expires_at", "accept_events_since"):
        moment: datetime | None = getattr(form, name)
        if moment is not None:
            shown[name] = rfc3339(moment)
    if form.heartbeat_interval is not None:
        shown["heartbeat_interval"] = form.heartbeat_interval.total_seconds()
    return shown
