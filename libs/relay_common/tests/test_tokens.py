"""Access tokens: what RFC 9068 asks, and what forgers try."""

import asyncio
import hmac
import json
import time
from collections.abc import Mapping

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from jwt.utils import base64url_encode
from relay_common.errors import AccessUnavailable, InvalidToken
from relay_common.tokens import KeyCache, TokenVerifier, usable_keys

ISSUER = "https://access.test"
RSA_KEY = rsa.generate_private_key(65537, 2048)
EC_KEY = ec.generate_private_key(ec.SECP256R1())
ED_KEY = ed25519.Ed25519PrivateKey.generate()
PRIVATE = {"RS256": RSA_KEY, "ES256": EC_KEY, "EdDSA": ED_KEY}
WRITERS = {"RS256": RSAAlgorithm, "ES256": ECAlgorithm, "EdDSA": OKPAlgorithm}


def public_jwk(algorithm: str, **more: object) -> dict[str, object]:
    public = WRITERS[algorithm].to_jwk(PRIVATE[algorithm].public_key())
    return {**json.loads(public), "kid": algorithm, "alg": algorithm, "use": "sig", **more}


JWKS = {"keys": [public_jwk(algorithm) for algorithm in PRIVATE]}


class Issuer:
    """A JWKS endpoint that counts how often it is asked, and can be down."""

    def __init__(self, jwks: Mapping[str, object] = JWKS) -> None:
        self.jwks = jwks
        self.asked = 0
        self.down = False

    async def fetch(self) -> Mapping[str, object]:
        self.asked += 1
        await asyncio.sleep(0)
        if self.down:
            raise httpx.ConnectError("down")
        return self.jwks


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture
def verifier(issuer: Issuer) -> TokenVerifier:
    return TokenVerifier(ISSUER, "relay", issuer.fetch)


def claims(**changes: object) -> dict[str, object]:
    now = int(time.time())  # noqa: TID251 - what an issuer writes into a token
    known: dict[str, object] = {
        "iss": ISSUER,
        "aud": "relay",
        "sub": "client:shop",
        "client_id": "shop",
        "jti": "t-1",
        "iat": now,
        "exp": now + 300,
        "tenant": "acme",
        "environment": "prod",
        "scope": "events:write events:read",
    }
    return {name: value for name, value in {**known, **changes}.items() if value is not None}


def token(
    algorithm: str = "ES256", header: dict[str, object] | None = None, **changes: object
) -> str:
    headers = {"typ": "at+jwt", "kid": algorithm, **(header or {})}
    return jwt.encode(claims(**changes), PRIVATE[algorithm], algorithm, headers)


@pytest.mark.parametrize("algorithm", PRIVATE)
async def test_a_token_of_access_names_its_caller(verifier: TokenVerifier, algorithm: str):
    caller = await verifier.verify(token(algorithm))
    assert (caller.sub, caller.tenant, caller.environment) == ("client:shop", "acme", "prod")
    assert caller.scopes == {"events:write", "events:read"}


@pytest.mark.parametrize("sub", ["agent:buyer-7", "subscriber:jo@example.com", "client:shop"])
async def test_the_three_kinds_of_identity(verifier: TokenVerifier, sub: str):
    assert (await verifier.verify(token(sub=sub))).sub == sub


@pytest.mark.parametrize(
    "changes",
    [
        {"iss": "https://other.test"},
        {"aud": "elsewhere"},
        {"aud": ["elsewhere"]},
        {"exp": 1},
        {"nbf": 4_000_000_000},
        {"iat": 4_000_000_000},
        {"sub": "shop"},
        {"sub": "admin:shop"},
        {"sub": "client:"},
        {"sub": "client:a\x00b"},
        {"sub": "client:a b"},
        {"sub": "client:" + "x" * 500},
        {"tenant": ""},
        {"tenant": 7},
        {"tenant": "a\x00"},
        {"environment": ["prod"]},
        {"scope": ["events:write"]},
        *(
            {name: None}
            for name in ("iss", "aud", "exp", "iat", "sub", "client_id", "jti", "tenant")
        ),
        {"environment": None},
    ],
    ids=repr,
)
async def test_a_claim_that_does_not_hold_is_refused(
    verifier: TokenVerifier, changes: dict[str, object]
):
    with pytest.raises(InvalidToken):
        await verifier.verify(token(**changes))


@pytest.mark.parametrize("typ", ["JWT", "jwt", "", "id+jwt", "at+jwt "])
async def test_another_type_of_token_is_refused(verifier: TokenVerifier, typ: str):
    with pytest.raises(InvalidToken, match="type"):
        await verifier.verify(token(header={"typ": typ}))


async def test_the_long_form_of_the_type_is_taken(verifier: TokenVerifier):
    assert await verifier.verify(token(header={"typ": "application/at+jwt"}))


@pytest.mark.parametrize("text", ["", "a", "a.b", "a.b.c", "é.b.c", "." * 20_000, "bearer x"])
async def test_what_is_no_jwt_is_refused(verifier: TokenVerifier, text: str):
    with pytest.raises(InvalidToken):
        await verifier.verify(text)


async def test_no_signature_is_no_token(verifier: TokenVerifier):
    forged = jwt.encode(claims(), None, "none", {"typ": "at+jwt", "kid": "ES256"})
    with pytest.raises(InvalidToken):
        await verifier.verify(forged)


async def test_hmac_with_the_public_key_is_no_signature(verifier: TokenVerifier):
    public = RSA_KEY.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    header = {"typ": "at+jwt", "kid": "RS256", "alg": "HS256"}
    signed = ".".join(
        base64url_encode(json.dumps(part).encode()).decode() for part in (header, claims())
    )
    signature = hmac.digest(public, signed.encode(), "sha256")
    with pytest.raises(InvalidToken):
        await verifier.verify(f"{signed}.{base64url_encode(signature).decode()}")


async def test_a_key_signs_only_by_its_own_algorithm(verifier: TokenVerifier):
    with pytest.raises(InvalidToken):
        await verifier.verify(token("ES256", {"kid": "EdDSA"}))
    longer = jwt.encode(claims(), RSA_KEY, "RS512", {"typ": "at+jwt", "kid": "RS256"})
    with pytest.raises(InvalidToken):
        await verifier.verify(longer)


async def test_a_key_inside_the_token_is_not_believed(verifier: TokenVerifier, issuer: Issuer):
    own = ec.generate_private_key(ec.SECP256R1())
    jwk = json.loads(ECAlgorithm.to_jwk(own.public_key()))
    headers = {
        "typ": "at+jwt",
        "kid": "mine",
        "jwk": jwk,
        "jku": "http://evil.test/jwks",
        "x5u": "file:///etc/passwd",
    }
    with pytest.raises(InvalidToken):
        await verifier.verify(jwt.encode(claims(), own, "ES256", headers))
    assert issuer.asked == 1


async def test_a_changed_claim_breaks_the_signature(verifier: TokenVerifier):
    head, _, signature = token().split(".")
    _, payload, _ = token(tenant="other").split(".")
    with pytest.raises(InvalidToken, match="signature"):
        await verifier.verify(f"{head}.{payload}.{signature}")


def test_only_public_signing_keys_of_allowed_algorithms_are_used():
    symmetric = {"kty": "oct", "k": "c2VjcmV0", "kid": "hmac", "alg": "HS256"}
    encryption = public_jwk("RS256", kid="enc", use="enc")
    weak = public_jwk("RS256", kid="weak", alg="RS512")
    broken = {"kty": "EC", "kid": "broken"}
    nameless = {name: value for name, value in public_jwk("ES256").items() if name != "kid"}
    found = usable_keys({"keys": [symmetric, encryption, weak, broken, nameless, *JWKS["keys"]]})
    assert set(found) == set(PRIVATE)


async def test_a_storm_of_unknown_kids_asks_once_a_minute(issuer: Issuer):
    clock = Clock()
    cache = KeyCache(issuer.fetch, clock=clock)
    assert await cache.key("ES256")
    clock.now += 61
    found = await asyncio.gather(*(cache.key(f"unknown-{index}") for index in range(1000)))
    assert found == [None] * 1000
    assert issuer.asked == 2


async def test_a_new_key_is_found_without_a_restart(issuer: Issuer):
    clock = Clock()
    cache = KeyCache(issuer.fetch, clock=clock)
    issuer.jwks = {"keys": [public_jwk("ES256")]}
    assert await cache.key("ES256")
    issuer.jwks = {"keys": [public_jwk("ES256"), public_jwk("EdDSA")]}
    assert await cache.key("EdDSA") is None
    clock.now += 61
    assert await cache.key("EdDSA")


async def test_a_withdrawn_key_is_forgotten_at_the_next_refresh(issuer: Issuer):
    clock = Clock()
    cache = KeyCache(issuer.fetch, clock=clock)
    assert await cache.key("RS256")
    issuer.jwks = {"keys": [public_jwk("ES256")]}
    clock.now += 301
    assert await cache.key("RS256") is None


@pytest.mark.parametrize("broken", [{}, {"keys": 5}, {"keys": []}, {"keys": ["x"]}, None])
async def test_the_last_good_keys_outlive_a_failing_issuer(
    issuer: Issuer, broken: dict[str, object] | None
):
    clock = Clock()
    cache = KeyCache(issuer.fetch, clock=clock)
    assert await cache.key("ES256")
    issuer.down = broken is None
    issuer.jwks = broken or {}
    clock.now += 10_000
    assert await cache.key("ES256")
    assert issuer.asked == 2


async def test_without_any_keys_the_answer_is_unavailable_not_invalid(issuer: Issuer):
    clock = Clock()
    cache = KeyCache(issuer.fetch, clock=clock)
    issuer.down = True
    for _ in range(100):
        with pytest.raises(AccessUnavailable):
            await cache.key("ES256")
    assert issuer.asked == 1
    issuer.down = False
    clock.now += 3
    assert await cache.key("ES256")


async def test_concurrent_first_callers_share_one_fetch(issuer: Issuer):
    cache = KeyCache(issuer.fetch, clock=Clock())
    found = await asyncio.gather(*(cache.key("ES256") for _ in range(50)))
    assert all(found)
    assert issuer.asked == 1


async def test_a_check_holds_for_seconds_and_no_longer(verifier: TokenVerifier, issuer: Issuer):
    clock = Clock()
    verifier.keys = KeyCache(issuer.fetch, clock=clock, max_age_seconds=1)
    given = token("RS256")
    assert await verifier.verify(given)
    issuer.jwks = {"keys": [public_jwk("ES256")]}
    clock.now += 4
    assert await verifier.verify(given)
    clock.now += 60
    with pytest.raises(InvalidToken):
        await verifier.verify(given)
