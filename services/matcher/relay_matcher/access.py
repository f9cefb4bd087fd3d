"""What the matcher asks Access: guardians of a child, and decisions of its approval surface."""

from dataclasses import dataclass
from typing import TypeVar

import httpx
import msgspec
from relay_common.errors import AccessUnavailable

SECONDS = 5.0
Answered = TypeVar("Answered")


class Guardians(msgspec.Struct):
    """Who answers for a child."""

    guardians: list[str]


class Approval(msgspec.Struct):
    """A decision taken on the approval surface."""

    responder: str
    decision: str
    subject_digest: str


@dataclass(frozen=True, slots=True)
class Access:
    """Access over HTTP (design D16); `url` is None where an installation has none."""

    url: str | None

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
            async with httpx.AsyncClient(timeout=SECONDS, trust_env=False) as client:
                found = await client.get(f"{self.url.rstrip('/')}{path}", params=params)
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
