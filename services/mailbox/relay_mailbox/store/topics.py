"""Subscriptions to topics (HTTP side)."""

from collections.abc import Sequence

from relay_common import queries
from relay_common.db import AsyncConnection

from relay_mailbox.store.mailboxes import Tenancy

SQL = queries.load("relay_mailbox", "subscription")


async def subscribe(
    conn: AsyncConnection, within: Tenancy, pairs: Sequence[tuple[str, str]], *, wanted: bool
) -> None:
    """Subscribe (topic, owner) pairs, or end their subscriptions."""
    given = within.named(topics=[t for t, _ in pairs], owners=[o for _, o in pairs])
    await conn.execute(SQL["subscribe" if wanted else "unsubscribe"], given)
