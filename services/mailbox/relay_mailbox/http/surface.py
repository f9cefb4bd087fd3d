"""What the routes share: the pool, the combiners, and whose mailbox a path names."""

from dataclasses import dataclass
from typing import Annotated, TypeVar, cast

from fastapi import Depends, Request, Response
from relay_common.combiner import Combiner
from relay_common.cursors import Cursors
from relay_common.db import Pool
from relay_common.errors import MailboxNotFound
from relay_common.http import attempt, caller, render
from relay_common.idempotency import Attempt, Call, Operation, mutation
from relay_common.tokens import Caller

from relay_mailbox.operations import contacts, dead_letters, settings, topics
from relay_mailbox.operations.abuse import AbuseDesk, AbuseGiven
from relay_mailbox.operations.contacts import SenderGiven, SubscribeGiven
from relay_mailbox.operations.cursor import CursorGiven, report_cursor
from relay_mailbox.operations.dead_letters import RedriveGiven
from relay_mailbox.operations.lease import (
    AckGiven,
    ExtendGiven,
    LeaseGiven,
    ReleaseGiven,
    acknowledge,
    extend_lease,
    lease_mutation,
    release_lease,
)
from relay_mailbox.operations.locked import on_own_mailbox
from relay_mailbox.operations.settings import StateGiven
from relay_mailbox.operations.topics import SubscriptionGiven
from relay_mailbox.store.settings import Chosen

GivenT = TypeVar("GivenT")

Reading = Annotated[Caller, Depends(caller("mailbox:read", "operator"))]
Acking = Annotated[Caller, Depends(caller("mailbox:ack"))]
Redriving = Annotated[Caller, Depends(caller("mailbox:ack", "operator"))]
Subscribing = Annotated[Caller, Depends(caller("topics:subscribe"))]
Operating = Annotated[Caller, Depends(caller("operator"))]
Tried = Annotated[Attempt, Depends(attempt())]


@dataclass(frozen=True, slots=True)
class Surface:
    """The pool and cursors for reads, and a combiner for each mutating operation."""

    pool: Pool
    cursors: Cursors
    leases: Combiner[Call[LeaseGiven]]
    acks: Combiner[Call[AckGiven]]
    extensions: Combiner[Call[ExtendGiven]]
    releases: Combiner[Call[ReleaseGiven]]
    reports: Combiner[Call[CursorGiven]]
    redrives: Combiner[Call[RedriveGiven]]
    acceptances: Combiner[Call[SenderGiven]]
    blocks: Combiner[Call[SenderGiven]]
    request_subscriptions: Combiner[Call[SubscribeGiven]]
    abuse_reports: Combiner[Call[AbuseGiven]]
    subscriptions: Combiner[Call[SubscriptionGiven]]
    states: Combiner[Call[StateGiven]]
    settings: Combiner[Call[Chosen]]

    @classmethod
    def of(cls, pool: Pool, seed: int, cursors: Cursors, desk: AbuseDesk) -> "Surface":
        """Return the surface on `pool`; `seed` is the installation's."""

        def combined(operation: Operation[GivenT]) -> Combiner[Call[GivenT]]:
            return Combiner(pool, mutation(operation, seed))

        return cls(
            pool=pool,
            cursors=cursors,
            leases=Combiner(pool, lease_mutation(seed)),
            acks=combined(acknowledge),
            extensions=combined(extend_lease),
            releases=combined(on_own_mailbox(release_lease)),
            reports=combined(report_cursor),
            redrives=combined(dead_letters.redrive),
            acceptances=combined(on_own_mailbox(contacts.accept_sender)),
            blocks=combined(on_own_mailbox(contacts.change_block)),
            request_subscriptions=combined(on_own_mailbox(contacts.subscribe_requests)),
            abuse_reports=combined(on_own_mailbox(desk.report)),
            subscriptions=combined(topics.subscribe),
            states=combined(settings.set_state),
            settings=combined(settings.put_settings),
        )


async def surface(request: Request) -> Surface:
    """Return the surface of this app."""
    return cast(Surface, request.app.state.surface)


Shared = Annotated[Surface, Depends(surface)]


async def answered(
    combiner: Combiner[Call[GivenT]], who: Caller, tried: Attempt, given: GivenT
) -> Response:
    """Return the response of a mutating call."""
    call = Call(who, tried, given)
    return render(await combiner.submit(who.tenant, who.environment, call))


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
