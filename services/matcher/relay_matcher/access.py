"""What the matcher asks Access: guardians, decisions of its approval surface, relationships."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, TypeVar

import httpx
import msgspec
from relay_common.errors import AccessUnavailable

SECONDS = 5.0
AT_ONCE = 10
CONNECTIONS = 100
# Shorter than servers keep an idle connection: one that is used again is still open.
IDLE_SECONDS = 2.0
UNKNOWN = "unknown"
Answered = TypeVar("Answered")


class Guardians(msgspec.Struct):
    """Who answers for a child."""

    guardians: list[str]


class Approval(msgspec.Struct):
    """A decision taken on the approval surface."""

    responder: str
    decision: str
    subject_digest: str


class Relationship(msgspec.Struct):
    """What a sender is to a recipient, in a few characters that every store can hold."""

    relationship: Annotated[str, msgspec.Meta(pattern=r"^[^\x00-\x1f]{1,64}$")]


def open_client() -> httpx.AsyncClient:
    """Return a client that keeps its connections for a moment."""
    limits = httpx.Limits(max_connections=CONNECTIONS, keepalive_expiry=IDLE_SECONDS)
    return httpx.AsyncClient(timeout=SECONDS, trust_env=False, limits=limits)


@dataclass(frozen=True, slots=True)
class Access:
    """Access over HTTP (design D16); `url` is None where an installation has none."""

    url: str | None
    client: httpx.AsyncClient = field(default_factory=open_client)

    async def close(self) -> None:
        """Let go of the connections."""
        await self.client.aclose()

    async def relationships(
        self, tenant: str, environment: str, sender: str, recipients: Sequence[str]
    ) -> dict[str, str]:
        """Return what `sender` is to each of `recipients` (spec, First contact).

        Ten are asked at a time, and all of them within five seconds. Raises AccessUnavailable.
        """
        found: dict[str, str] = {}
        try:
            async with asyncio.timeout(SECONDS):
                for start in range(0, len(recipients), AT_ONCE):
                    some = recipients[start : start + AT_ONCE]
                    asked = (self.relationship(tenant, environment, sender, one) for one in some)
                    found.update(zip(some, await asyncio.gather(*asked), strict=True))
        except TimeoutError as error:
            raise AccessUnavailable("Expected all answers of Access in time.") from error
        return found

    async def relationship(self, tenant: str, environment: str, sender: str, recipient: str) -> str:
        """Return what `sender` is to `recipient`: unknown where Access has nothing about them.

        Raises AccessUnavailable.
        """
        pair = {"sender": sender, "recipient": recipient}
        found = await self.ask("/relationships", tenant, environment, **pair)
        return UNKNOWN if found is None else read(found, Relationship).relationship

    async def guardians(self, tenant: str, environment: str, child: str) -> frozenset[str]:
        """Return the guardians of `child`. Raises AccessUnavailable."""
        found = await self.ask("/guardians", tenant, environment, child=child)
        if found is None:
            return frozenset()
        return frozenset(read(found, Guardians).guardians)

    async def approval(self, tenant: str, environment: str, reference: str) -> Approval | None:
        """Return the decision behind `reference`, None for an unknown one.

        Raises AccessUnavailable.
        """
        if "/" in reference or reference in (".", ".."):
            return None
        found = await self.ask(f"/approvals/{reference}", tenant, environment)
        return None if found is None else read(found, Approval)

    async def ask(self, path: str, tenant: str, environment: str, **query: str) -> bytes | None:
        """Return the body of an answer, None for 404."""
        if self.url is None:
            raise AccessUnavailable("Expected an installation that knows Access, found none.")
        params = {"tenant": tenant, "environment": environment, **query}
        try:
            found = await self.client.get(f"{self.url.rstrip('/')}{path}", params=params)
            if found.status_code == 404:
                return None
            found.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise AccessUnavailable("Expected an answer of Access, found none.") from error
        return found.content


def read(body: bytes, shape: type[Answered]) -> Answered:
    """Return an answer of Access as a value. Raises AccessUnavailable for another shape."""
    try:
        return msgspec.json.decode(body, type=shape)
    except msgspec.MsgspecError as error:
        raise AccessUnavailable("Expected an answer of Access in its form.") from error
