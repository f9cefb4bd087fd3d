"""The lifecycle of waitpoints, as escalation reads it."""

from collections.abc import Sequence

from relay_common.avro import Codec
from relay_common.db import Connection
from relay_common.errors import Poison
from relay_common.records import DeadLetter, Record

SCHEMA = "relay.waitpoints.v1"


class LifecycleConsumer:
    """Reads `relay.waitpoints`. Tiers will follow from it; until then only the position is kept."""

    def __init__(self, codec: Codec) -> None:
        """Read with `codec`."""
        self.codec = codec

    def __call__(self, _conn: Connection, records: Sequence[Record]) -> Sequence[DeadLetter]:
        """Return the records that are no lifecycle events."""
        letters: list[DeadLetter] = []
        for record in records:
            try:
                self.check(record)
            except Poison as poison:
                letters.append(DeadLetter(record, poison.reason, poison.detail))
        return letters

    def check(self, record: Record) -> None:
        """Raise Poison unless `record` is a lifecycle event."""
        schema, _ = self.codec.decode(record.value)
        if schema != SCHEMA:
            raise Poison("unexpected_schema", f"expected {SCHEMA}, found {schema}")
