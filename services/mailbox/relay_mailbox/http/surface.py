"""What the routes share: the pool, the combiners, and whose mailbox a path names."""

from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends, Request
from relay_common.combiner import Combiner
from relay_common.db import Pool
from relay_common.errors import MailboxNotFound
from relay_common.http import attempt, caller
from relay_common.idempotency import Attempt, Call, mutation
from relay_common.tokens import Caller

from relay_mailbox.operations.cursor import CursorGiven, report_cursor
from relay_mailbox.operations.lease import (
    AckGiven,
    ExtendGiven,
    LeaseGiven,
    ReleaseGiven,
    acknowledge,
    extend_lease,
    lease_records,
    release_lease,
)

Reading = Annotated[Caller, Depends(caller("mailbox:read", "operator"))]
Acking = Annotated[Caller, Depends(caller("mailbox:ack"))]
Tried = Annotated[Attempt, Depends(attempt())]


@dataclass(frozen=True, slots=True)
class Surface:
    """The pool for reads, and a combiner for each mutating operation."""

    pool: Pool
    leases: Combiner[Call[LeaseGiven]]
    acks: Combiner[Call[AckGiven]]
    extensions: Combiner[Call[ExtendGiven]]
    releases: Combiner[Call[ReleaseGiven]]
    cursors: Combiner[Call[CursorGiven]]

    @classmethod
    def of(cls, pool: Pool, seed: int) -> "Surface":
        """Return the surface on `pool`; `seed` is the installation's."""
        return cls(
            pool=pool,
            leases=Combiner(pool, mutation(lease_records, seed)),
            acks=Combiner(pool, mutation(acknowledge, seed)),
            extensions=Combiner(pool, mutation(extend_lease, seed)),
            releases=Combiner(pool, mutation(release_lease, seed)),
            cursors=Combiner(pool, mutation(report_cursor, seed)),
        )


def surface(request: Request) -> Surface:
    """Return the surface of this app."""
    return cast(Surface, request.app.state.surface)


Shared = Annotated[Surface, Depends(surface)]


def own(who: Caller, owner: str) -> str:
    """Return whose mailbox the path names. Raises MailboxNotFound for anybody else's."""
    if owner not in ("me", who.sub):
        raise MailboxNotFound
    return who.sub


def visible(who: Caller, owner: str) -> str:
    """Return whose mailbox the path names; an operator may look into every one of the tenant.

    Raises MailboxNotFound for a foreign one: the same answer as for an unknown one (design D6).
    """
    if owner == "me":
        return who.sub
    if owner != who.sub and "operator" not in who.scopes:
        raise MailboxNotFound
    return owner
