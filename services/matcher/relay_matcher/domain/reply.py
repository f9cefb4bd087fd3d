"""Replies: what is acceptable, and in which order a reply is judged (spec, Invariants)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from relay_common.errors import FieldError, Json

from relay_matcher.domain.response_schema import faults_of, schema_text


@dataclass(frozen=True, slots=True)
class Acceptable:
    """Which replies a waitpoint accepts: those that fit the schema and name an allowed action."""

    schema: Mapping[str, Json] | None
    actions: tuple[str, ...] | None

    def digest(self) -> bytes:
        """Return the digest that a stored reply names as what it was validated against."""
        schema = b"" if self.schema is None else schema_text(self.schema)
        return hashlib.sha256(orjson.dumps(self.actions) + schema).digest()

    def faults(self, reply: Json, pointer: str) -> list[FieldError]:
        """Return what keeps `reply` (at `pointer` of its body) from being acceptable."""
        found: list[FieldError] = []
        if self.actions is not None and action_of(reply) not in self.actions:
            found.append(FieldError(pointer, "expected one of the actions of this review"))
        if self.schema is not None:
            found += faults_of(schema_text(self.schema), reply, pointer)
        return found


def action_of(decision: Json) -> Json:
    """Return the action of a decision: the decision itself, or its member `action`."""
    return decision.get("action") if isinstance(decision, Mapping) else decision
