"""Request bodies of the mailbox routes."""

from datetime import timedelta
from math import ceil
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from relay_common import limits
from relay_common.wire import Duration, Wire, at_most, expected

MAX_RECORDS = at_most(limits.LEASE_RECORDS)
Seq = Annotated[int, Field(ge=1, lt=2**63)]
Seqs = Annotated[list[Seq], Field(min_length=1), MAX_RECORDS]


def at_least_one_second(value: timedelta) -> timedelta:
    """Refuse a shorter time."""
    if value < timedelta(seconds=1):
        raise expected("at least 1 second", "less")
    return value


AtLeastOneSecond = Annotated[Duration, AfterValidator(at_least_one_second)]


class LeaseBody(Wire):
    """Lease up to `max_records`; without `lease_seconds` for the tenant's setting."""

    max_records: Annotated[int, Field(ge=1), MAX_RECORDS] = 1
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


class RedriveBody(Wire):
    """Which dead letters come back: some or all; `dry_run` only counts them."""

    seqs: Seqs | None = None
    all: bool = False
    dry_run: bool = False

    @model_validator(mode="after")
    def some_or_all(self) -> "RedriveBody":
        """Refuse both and neither."""
        if (self.seqs is not None) == self.all:
            raise expected("either seqs or all", "both" if self.all else "neither")
        return self

    def chosen(self) -> list[int] | None:
        """Return the seqs, None for all."""
        return None if self.all else self.seqs


class StateBody(Wire):
    """The state a mailbox gets."""

    state: Literal["active", "suspended", "deleted"]


class AbuseBody(Wire):
    """Why a message is abuse."""

    reason: Annotated[str, Field(max_length=2000)] | None = None


class SettingsBody(Wire):
    """The tenant's settings; what is left out takes its default."""

    lease_seconds: int | None = None
    redeliveries: int | None = None
    retention_seconds: int | None = None
    retained_records: int | None = None


def whole_seconds(duration: timedelta) -> int:
    """Return `duration` in whole seconds, never shorter than asked for."""
    return ceil(duration.total_seconds())
