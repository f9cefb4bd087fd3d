"""What every operation needs besides its connection."""

from dataclasses import dataclass

from relay_common.avro import Codec

from relay_matcher.announcement import Announcer


@dataclass(frozen=True, slots=True)
class Plumbing:
    """The codec of stored events, the announcer, the outbox shards, the installation's seed."""

    codec: Codec
    announcer: Announcer
    shards: int
    seed: int
