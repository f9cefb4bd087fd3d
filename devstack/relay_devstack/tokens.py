"""Access tokens as Access makes them (RFC 9068), signed with the stand-in's own key."""

import json
import re
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from relay_devstack.errors import MalformedGrantError, NotRunningError, disk_faults
from relay_devstack.secrets import write_private

ISSUER = "https://access.devstack.localhost"
AUDIENCE = "relay"
IDENTITY = r"^(agent|subscriber|client):\S{1,400}$"
NAMESPACE = r"^\S{1,128}$"
DEFAULT_LIFETIME_SECONDS = 12 * 3600


@dataclass(frozen=True, slots=True)
class Grant:
    """Whom a token speaks for, where, and what it may do (`scope`: space separated)."""

    sub: str
    tenant: str
    environment: str
    scope: str
    lifetime_seconds: int = DEFAULT_LIFETIME_SECONDS


class SigningKey:
    """The stand-in's ES256 key, kept in the state folder so that tokens survive a restart."""

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / "secrets" / "access.pem"

    def create(self) -> None:
        """Make the key unless it exists. Raises DiskFullError."""
        if self._file.exists():
            return
        with disk_faults(self._file):
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(self._file, _new_key())

    def token(self, grant: Grant) -> str:
        """Return an access token for `grant`.

        Raises MalformedGrantError, or NotRunningError before the first start.
        """
        _check(grant)
        now = int(time.time())  # noqa: TID251 -- a claim of the issuer, not a rule of Relay
        claims: dict[str, object] = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": grant.sub,
            "client_id": "devstack",
            "iat": now,
            "exp": now + grant.lifetime_seconds,
            "jti": secrets.token_urlsafe(16),
            "tenant": grant.tenant,
            "environment": grant.environment,
            "scope": grant.scope,
        }
        headers = {"typ": "at+jwt", "kid": self._kid()}
        return jwt.encode(claims, self._pem(), algorithm="ES256", headers=headers)

    def jwks(self) -> dict[str, object]:
        """Return the public key as a JWK Set."""
        return {"keys": [{**self._public(), "kid": self._kid(), "use": "sig", "alg": "ES256"}]}

    def _kid(self) -> str:
        return str(self._public()["x"])[:16]

    def _public(self) -> dict[str, object]:
        key = serialization.load_pem_private_key(self._pem(), password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise NotRunningError(f"{self._file} is not the key of a stand-in: remove it.")
        return json.loads(ECAlgorithm.to_jwk(key.public_key()))

    def _pem(self) -> bytes:
        if not self._file.exists():
            raise NotRunningError("There is no signing key yet: run `make up` first.")
        return self._file.read_bytes()


def _check(grant: Grant) -> None:
    if not re.match(IDENTITY, grant.sub):
        raise MalformedGrantError(
            f"sub must be agent:…, subscriber:… or client:… without spaces, found {grant.sub!r}."
        )
    for name, value in (("tenant", grant.tenant), ("environment", grant.environment)):
        if not re.match(NAMESPACE, value):
            raise MalformedGrantError(f"{name} must be a word without spaces, found {value!r}.")


def _new_key() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
