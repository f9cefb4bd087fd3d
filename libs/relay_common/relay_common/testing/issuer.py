"""A stand-in for the issuer of access tokens: signs what a test asks for."""

import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm


class Issuer:
    """One signing key and the tokens made with it (RFC 9068)."""

    def __init__(self) -> None:
        self.url = "https://access.test"
        self.audience = "relay"
        self.kid = "test-key"
        self.key = ec.generate_private_key(ec.SECP256R1())

    def token(
        self,
        sub: str = "client:test",
        tenant: str = "acme",
        environment: str = "test",
        scope: str = "",
        headers: Mapping[str, object] | None = None,
        **claims: object,
    ) -> str:
        """Return an access token for an hour; `claims` replace the usual ones, None removes one."""
        now = datetime.now(UTC)  # noqa: TID251 -- an issuer's clock, not a rule of Relay
        usual: dict[str, object] = {
            "iss": self.url,
            "aud": self.audience,
            "sub": sub,
            "client_id": "test-client",
            "iat": now,
            "exp": now + timedelta(hours=1),
            "jti": uuid.uuid4().hex,
            "tenant": tenant,
            "environment": environment,
            "scope": scope,
        }
        payload = {name: value for name, value in {**usual, **claims}.items() if value is not None}
        head = {"typ": "at+jwt", "kid": self.kid, **(headers or {})}
        return jwt.encode(payload, self.key, algorithm="ES256", headers=head)

    def jwks(self) -> dict[str, object]:
        """Return the public key as a JWK Set."""
        jwk = ECAlgorithm.to_jwk(self.key.public_key(), as_dict=True)
        return {"keys": [{**jwk, "kid": self.kid, "alg": "ES256", "use": "sig"}]}

    async def fetch_jwks(self) -> Mapping[str, object]:
        """Return the JWK Set, for `TokenVerifier`."""
        return self.jwks()
