"""Routes beside the mailbox: subscriptions to topics, the tenant's settings."""

from fastapi import Response
from relay_common.http import create_router, render

from relay_mailbox.http.models import SettingsBody
from relay_mailbox.http.paths import Topic
from relay_mailbox.http.surface import Operating, Shared, Subscribing, Tried, answered
from relay_mailbox.operations.settings import get_settings
from relay_mailbox.operations.topics import SubscriptionGiven
from relay_mailbox.store.settings import Chosen

router = create_router("/v1")


@router.put("/topics/{topic:name}/subscriptions/me")
async def subscribe(topic: Topic, who: Subscribing, shared: Shared, tried: Tried) -> Response:
    """Put every message of the topic into the caller's mailbox."""
    given = SubscriptionGiven(who.sub, topic, wanted=True)
    return await answered(shared.subscriptions, who, tried, given)


@router.delete("/topics/{topic:name}/subscriptions/me")
async def unsubscribe(topic: Topic, who: Subscribing, shared: Shared, tried: Tried) -> Response:
    """Put no more messages of the topic into the caller's mailbox."""
    given = SubscriptionGiven(who.sub, topic, wanted=False)
    return await answered(shared.subscriptions, who, tried, given)


@router.get("/settings")
@router.get("/settings/mailbox")
async def settings(who: Operating, shared: Shared) -> Response:
    """The tenant's settings of the mailbox."""
    return render(await get_settings(shared.pool, who))


@router.put("/settings")
@router.put("/settings/mailbox")
async def change_settings(
    who: Operating, shared: Shared, tried: Tried, body: SettingsBody
) -> Response:
    """Replace the tenant's settings of the mailbox."""
    return await answered(shared.settings, who, tried, Chosen(**body.model_dump()))
