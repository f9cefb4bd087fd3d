"""A small stand-in for Access, for development and tests only (design D16).

It gives a token to whoever asks, and answers what Relay asks Access: relationships, guardians and
decisions of the approval surface. `PUT` the facts a test needs; they are kept in the state folder.
"""

import json
import sys
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, ConfigDict, Field

from relay_devstack.errors import disk_faults
from relay_devstack.tokens import (
    DEFAULT_LIFETIME_SECONDS,
    IDENTITY,
    NAMESPACE,
    Grant,
    SigningKey,
)

Identity = Annotated[str, Field(pattern=IDENTITY)]
Namespace = Annotated[str, Field(pattern=NAMESPACE)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class TokenRequest(_Strict):
    """What a development token should say."""

    sub: Identity
    tenant: Namespace
    environment: Namespace
    scope: str = ""
    lifetime_seconds: Annotated[int, Field(gt=0)] = DEFAULT_LIFETIME_SECONDS


class Place(_Strict):
    """The tenant and environment that a fact belongs to."""

    tenant: Namespace
    environment: Namespace


class Relationship(Place):
    """How `recipient` knows `sender`."""

    sender: Identity
    recipient: Identity
    relationship: str


class Guardians(Place):
    """Who answers for `child`."""

    child: Identity
    guardians: list[Identity]


class Approval(Place):
    """A decision taken on the approval surface."""

    responder: Identity
    decision: str
    subject_digest: str


class Facts:
    """What the stand-in knows, in one JSON file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._known: dict[str, dict[str, object]] = (
            json.loads(file.read_text()) if file.exists() else {}
        )

    def get(self, *key: str) -> dict[str, object] | None:
        """Return the fact under `key`, or None."""
        return self._known.get(json.dumps(key))

    def put(self, fact: BaseModel, *key: str) -> None:
        """Keep `fact` under `key`."""
        self._known[json.dumps(key)] = fact.model_dump()
        with disk_faults(self._file):
            self._file.write_text(json.dumps(self._known, indent=1))


def create_app(state_dir: Path) -> FastAPI:
    """Return the stand-in whose key and facts lie in `state_dir`."""
    key = SigningKey(state_dir)
    key.create()
    app = FastAPI(title="Access stand-in", version="1", docs_url=None, redoc_url=None)
    _add_tokens(app, key)
    _add_facts(app, Facts(state_dir / "access.json"))
    return app


def _add_tokens(app: FastAPI, key: SigningKey) -> None:
    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/jwks")
    async def jwks() -> dict[str, object]:
        return key.jwks()

    @app.post("/token")
    async def token(wanted: TokenRequest) -> dict[str, object]:
        made = key.token(Grant(**wanted.model_dump()))
        return {
            "access_token": made,
            "token_type": "Bearer",
            "expires_in": wanted.lifetime_seconds,
            "scope": wanted.scope,
        }


def _add_facts(app: FastAPI, facts: Facts) -> None:
    @app.put("/relationships", status_code=204)
    async def put_relationship(fact: Relationship) -> None:
        place = (fact.tenant, fact.environment)
        facts.put(fact, "relationship", *place, fact.sender, fact.recipient)

    @app.get("/relationships")
    async def relationship(
        tenant: Namespace, environment: Namespace, sender: Identity, recipient: Identity
    ) -> dict[str, object]:
        fact = facts.get("relationship", tenant, environment, sender, recipient)
        fact = fact or {"relationship": "unknown"}
        return {"sender": sender, "recipient": recipient, "relationship": fact["relationship"]}

    @app.put("/guardians", status_code=204)
    async def put_guardians(fact: Guardians) -> None:
        facts.put(fact, "guardians", fact.tenant, fact.environment, fact.child)

    @app.get("/guardians")
    async def guardians(
        tenant: Namespace, environment: Namespace, child: Identity
    ) -> dict[str, object]:
        fact = facts.get("guardians", tenant, environment, child) or {"guardians": []}
        return {"child": child, "guardians": fact["guardians"]}

    @app.put("/approvals/{reference}", status_code=204)
    async def put_approval(reference: str, fact: Approval) -> None:
        facts.put(fact, "approval", fact.tenant, fact.environment, reference)

    @app.get("/approvals/{reference}")
    async def approval(
        reference: str, tenant: Namespace, environment: Namespace
    ) -> dict[str, object]:
        fact = facts.get("approval", tenant, environment, reference)
        if fact is None:
            raise HTTPException(404, "no such decision")
        return {"reference": reference, **fact}


if __name__ == "__main__":
    host, port, state = sys.argv[1:]
    uvicorn.run(create_app(Path(state)), host=host, port=int(port), log_level="warning")
