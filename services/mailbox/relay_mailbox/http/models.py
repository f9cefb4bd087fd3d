"""Request bodies of the mailbox routes."""

from datetime import timedelta
from math import ceil
from typing import Annotated

from pydantic import Field
from relay_common import limits
from relay_common.wire import Duration, Wire

MAX_RECORDS = limits.LEASE_RECORDS.default
Seq = Annotated[int, Field(ge=1, lt=2**63)]
Seqs = Annotated[list[Seq], Field(min_length=1, max_length=MAX_RECORDS)]
AtLeastOneSecond = Annotated[Duration, Field(ge=timedelta(seconds=1))]


class LeaseBody(Wire):
    """Lease up to `max_records`; without `lease_seconds` for the tenant's setting."""

    max_records: Annotated[int, Field(ge=1, le=MAX_RECORDS)] = 1
    lease_seconds: AtLeastOneSecond | None = None


class ExtendBody(Wire):
    """Let the lease end `lease_seconds` from now."""

    lease_seconds: AtLeastOneSecond


class ReleaseBody(Wire):
    """Give `seqs` back (all of the lease when absent), to be leased again after the delay."""

    delay_seconds: Duration = timedelta(0)
    seqs: Seqs | None = None


class AckBody(Wire):
    """Say which records of a lease are done."""

    lease_id: Annotated[str, Field(min_length=1, max_length=200)]
    epoch: Annotated[int, Field(ge=0, lt=2**63)]
    seqs: Seqs


class CursorBody(Wire):
    """Say how far a reader is."""

    epoch: Annotated[int, Field(ge=0, lt=2**63)]
    seq: Annotated[int, Field(ge=0, lt=2**63)]


def whole_seconds(duration: timedelta) -> int:
    """Return `duration` in whole seconds, never shorter than asked for."""
    return ceil(duration.total_seconds())
