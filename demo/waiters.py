"""The programs that wait: they open waitpoints, and lease and acknowledge from their mailboxes."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx

from demo.plan import Wait

SCOPES = "waitpoints:write waitpoints:read mailbox:read mailbox:ack events:read"
AT_ONCE = 32
SERVICE_UNAVAILABLE = 503
Json = dict[str, Any]


@dataclass(slots=True)
class Waiters:
    """The waiters' side: one HTTP client, a token for each identity, what came back."""

    http: httpx.AsyncClient
    token: Callable[[str], str]  # identity → access token
    opened: dict[str, Json] = field(default_factory=dict)  # id → the answer to the opening
    waits: dict[str, Wait] = field(default_factory=dict)
    acked: dict[str, list[Json]] = field(default_factory=lambda: defaultdict(list))

    def headers(self, identity: str) -> dict[str, str]:
        """Return what authenticates one request of `identity` and makes it safe to repeat."""
        return {"Authorization": f"Bearer {self.token(identity)}", "Idempotency-Key": str(uuid4())}

    async def open_all(self, waits: Sequence[Wait], progress: Callable[[int], None]) -> None:
        """Open `waits`, 32 at a time."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(wait: Wait) -> None:
            async with gate:
                await self.open(wait)
            progress(1)

        await asyncio.gather(*(one(wait) for wait in waits))

    async def open(self, wait: Wait) -> None:
        """Open one waitpoint, and cancel it again where the story says so."""
        deadline = datetime.now(UTC) + timedelta(seconds=wait.seconds)  # noqa: TID251  the client's own wish
        body: Json = {
            "kind": "event",
            "expires_at": deadline.isoformat(),
            "match": {"event_type": wait.event_type, "correlation_key": wait.key},
        }
        if wait.condition:
            body["condition"] = wait.condition
        made = await self.post(wait.waiter, "/v1/waitpoints", body)
        self.opened[str(made["id"])] = made
        self.waits[str(made["id"])] = wait
        if wait.ends == "cancelled":
            await self.post(
                wait.waiter, f"/v1/waitpoints/{made['id']}/cancel", {"reason": "changed my mind"}
            )

    async def read_mailbox(
        self, identity: str, expected: int, progress: Callable[[int], None]
    ) -> None:
        """Lease and acknowledge until `expected` records have come to `identity`."""
        while len(self.acked[identity]) < expected:
            lease = await self.post(identity, "/v1/mailboxes/me/leases", {"max_records": 100})
            records = lease["records"]
            if not records:
                await asyncio.sleep(0.05)
                continue
            await self.acknowledge(identity, lease)
            self.acked[identity] += records
            progress(len(records))

    async def acknowledge(self, identity: str, lease: Json) -> None:
        """Acknowledge all records of one lease; every single result must be `acked`."""
        records = lease["records"]
        seqs = [record["seq"] for record in records]
        body: Json = {"lease_id": lease["lease_id"], "epoch": records[0]["epoch"], "seqs": seqs}
        answer = await self.post(identity, "/v1/mailboxes/me/acks", body)
        if any(result["result"] != "acked" for result in answer["results"]):
            raise RuntimeError(f"expected every record acked, found {answer['results']}")

    async def post(self, identity: str, path: str, body: Json) -> Json:
        """POST as `identity`; raises RuntimeError with the problem when it is refused.

        Without an answer the request is repeated: its key makes that safe.
        """
        headers = self.headers(identity)
        for last in (False, False, True):
            try:
                answer = await self.http.post(path, json=body, headers=headers)
            except httpx.TransportError:
                if last:
                    raise
                continue
            if answer.status_code != SERVICE_UNAVAILABLE or last:
                break
        return answered(answer)

    async def get(self, identity: str, path: str, params: dict[str, str] | None = None) -> Json:
        """GET as `identity`; raises RuntimeError with the problem when it is refused."""
        return answered(await self.http.get(path, params=params, headers=self.headers(identity)))

    async def pages(self, identity: str, path: str, params: dict[str, str]) -> AsyncIterator[Json]:
        """Yield the items of a list, page by page."""
        cursor: object = None
        while True:
            page = await self.get(
                identity, path, params | ({"cursor": str(cursor)} if cursor else {})
            )
            for item in page["items"]:
                yield item
            cursor = page["next_cursor"]
            if not cursor:
                return


def answered(answer: httpx.Response) -> Json:
    """Return the JSON of a good answer; raises RuntimeError with the problem otherwise."""
    if answer.is_error:
        raise RuntimeError(f"{answer.request.method} {answer.request.url.path}: {answer.text}")
    return answer.json()
