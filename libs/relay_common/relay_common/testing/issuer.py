"""A stand-in for the issuer of access tokens: signs what a test asks for."""

import threading
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
import orjson
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

    @contextmanager
    def serve_jwks(self) -> Generator[str]:
        """Serve the JWK Set over HTTP, for processes; give its URL."""
        body = orjson.dumps(self.jwks())

        class Keys(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        with ThreadingHTTPServer(("127.0.0.1", 0), Keys) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield f"http://127.0.0.1:{server.server_port}/jwks"
            server.shutdown()
            thread.join()

    async def fetch_jwks(self) -> Mapping[str, object]:
        """Return the JWK Set, for `TokenVerifier`."""
        return self.jwks()
