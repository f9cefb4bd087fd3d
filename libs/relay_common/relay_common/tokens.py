"""Access tokens of Access: RFC 9068 JWTs, checked against its JWKS (design D16, §5).

The key comes from the JWKS alone: `jku`, `jwk` and `x5u` of a token are never read, and each key
verifies with its own algorithm, whatever the token's header says.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import httpx
import jwt
import msgspec
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from relay_common.errors import AccessUnavailable, InvalidToken

ALGORITHMS = frozenset({"RS256", "ES256", "EdDSA"})
TYPES = frozenset({"at+jwt", "application/at+jwt"})
REQUIRED = ["iss", "aud", "exp", "iat", "sub", "client_id", "jti", "tenant", "environment"]
IDENTITY = re.compile(r"(agent|subscriber|client):[^\x00-\x20\x7f]{1,400}")
NAMESPACE = re.compile(r"[^\x00-\x20\x7f]{1,128}")
MAX_TOKEN_BYTES = 16 * 1024
LEEWAY_SECONDS = 30
SEEN_SECONDS = 5.0
MAX_SEEN = 4096

FetchJwks = Callable[[], Awaitable[Mapping[str, object]]]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls: `sub` is the identity; nothing in a body or URL widens tenant or scopes."""

    sub: str
    tenant: str
    environment: str
    scopes: frozenset[str]
    client_id: str
    token_id: str


@dataclass(slots=True)
class KeyCache:
    """The keys of the issuer: refreshed by age and on an unknown kid, but never below the floor.

    A fetch that fails leaves the last good keys in place. Because of the floor a storm of unknown
    kids costs one fetch a minute: within it an unknown kid stays unknown.
    """

    fetch: FetchJwks
    max_age_seconds: float = 300.0
    floor_seconds: float = 60.0
    first_floor_seconds: float = 2.0  # while there are no keys at all, Access may just be starting
    clock: Callable[[], float] = time.monotonic
    keys: Mapping[str, PyJWK] = field(default_factory=dict[str, PyJWK])
    good_at: float = float("-inf")
    tried_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def key(self, kid: str) -> PyJWK | None:
        """Return the key named `kid`, None when the issuer has none of this name.

        Raises AccessUnavailable when no keys could be fetched yet.
        """
        found = self.keys.get(kid)
        if found and (self.fresh() or self.lock.locked()):
            return found
        async with self.lock:
            if self.may_refresh() and not (kid in self.keys and self.fresh()):
                await self.refresh()
        if not self.keys:
            raise AccessUnavailable(retry_after=2)
        return self.keys.get(kid)

    def fresh(self) -> bool:
        """Tell whether the keys are young enough to be used without asking again."""
        return self.clock() - self.good_at < self.max_age_seconds

    def may_refresh(self) -> bool:
        """Tell whether the floor since the last attempt has passed."""
        floor = self.floor_seconds if self.keys else self.first_floor_seconds
        return self.clock() - self.tried_at >= floor

    async def refresh(self) -> None:
        """Fetch the keys; on any failure keep those of the last time."""
        self.tried_at = self.clock()
        try:
            usable = usable_keys(await self.fetch())
        except (httpx.HTTPError, OSError, msgspec.MsgspecError):
            return
        if usable:
            self.keys = usable
            self.good_at = self.clock()


class Jwks(msgspec.Struct):
    """A JWK Set; each member is checked on its own."""

    keys: list[dict[str, object]]


def usable_keys(jwks: Mapping[str, object]) -> dict[str, PyJWK]:
    """Return the public signing keys of `jwks` by kid, only those of an allowed algorithm.

    Raises msgspec.ValidationError when it is not a JWK Set.
    """
    found: dict[str, PyJWK] = {}
    for member in msgspec.convert(jwks, Jwks).keys:
        try:
            key = PyJWK(member)
        except PyJWTError:
            continue
        if key.algorithm_name in ALGORITHMS and key.key_id and member.get("use", "sig") == "sig":
            found[key.key_id] = key
    return found


class TokenVerifier:
    """Checks access tokens of one issuer for one audience."""

    def __init__(self, issuer: str, audience: str, fetch_jwks: FetchJwks) -> None:
        """Trust tokens of `issuer` for `audience`, signed by a key that `fetch_jwks` returns."""
        self.issuer = issuer
        self.audience = audience
        self.keys = KeyCache(fetch_jwks)
        self.seen: dict[str, tuple[float, Caller]] = {}

    async def verify(self, token: str) -> Caller:
        """Return who `token` speaks for; a check holds for a few seconds, less than the leeway.

        Raises InvalidToken when any check of RFC 9068 fails, AccessUnavailable when the keys of
        the issuer are not known yet.
        """
        now = self.keys.clock()
        checked_at, known = self.seen.get(token, (0.0, None))
        if known is not None and now - checked_at < SEEN_SECONDS:
            return known
        caller = await self.check(token)
        if len(self.seen) >= MAX_SEEN:
            self.seen.clear()
        self.seen[token] = (now, caller)
        return caller

    async def check(self, token: str) -> Caller:
        """Return who `token` speaks for, by its signature. Raises like verify."""
        if len(token) > MAX_TOKEN_BYTES or not token.isascii():
            raise InvalidToken
        key = await self.keys.key(key_id(token))
        if key is None:
            raise InvalidToken("Expected a token signed by a key of the issuer, found another key.")
        return caller_of(self.verified_claims(token, key))

    def verified_claims(self, token: str, key: PyJWK) -> Mapping[str, object]:
        """Return the claims of `token` once signature, type, times, issuer and audience hold."""
        try:
            whole = jwt.decode_complete(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=self.issuer,
                audience=self.audience,
                leeway=LEEWAY_SECONDS,
                options={"require": REQUIRED},
            )
        except PyJWTError as error:
            raise InvalidToken(reason(error)) from error
        if str(whole["header"].get("typ", "")).lower() not in TYPES:
            raise InvalidToken("Expected a token of type at+jwt, found another type.")
        return whole["payload"]


def key_id(token: str) -> str:
    """Return the `kid` of the still unverified header; nothing else of it is used."""
    try:
        kid = jwt.get_unverified_header(token).get("kid")
    except PyJWTError as error:
        raise InvalidToken("Expected a signed JWT, found something else.") from error
    if not isinstance(kid, str):
        raise InvalidToken("Expected a token that names its key (`kid`), found none.")
    return kid


def reason(error: PyJWTError) -> str:
    """Say what was expected of a token that PyJWT refused; nothing of the token is repeated."""
    match error:
        case jwt.ExpiredSignatureError():
            return "Expected a token that is still valid, found an expired one."
        case jwt.ImmatureSignatureError():
            return "Expected a token that is valid already, found one for later."
        case jwt.InvalidAudienceError():
            return "Expected a token for Relay (`aud`), found one for another audience."
        case jwt.InvalidIssuerError():
            return "Expected a token of the configured issuer, found one of another."
        case jwt.MissingRequiredClaimError():
            return f"Expected the claim {error.claim}, found none."
        case _:
            return "Expected a token with a valid signature, found another."


def caller_of(claims: Mapping[str, object]) -> Caller:
    """Return the caller that verified `claims` name. Raises InvalidToken for a malformed one."""
    scope = claims.get("scope", "")
    if not isinstance(scope, str):
        raise InvalidToken("Expected the claim scope as text, found something else.")
    return Caller(
        sub=text(claims, "sub", IDENTITY),
        tenant=text(claims, "tenant", NAMESPACE),
        environment=text(claims, "environment", NAMESPACE),
        scopes=frozenset(scope.split()),
        client_id=text(claims, "client_id", NAMESPACE),
        token_id=text(claims, "jti", NAMESPACE),
    )


def text(claims: Mapping[str, object], name: str, form: re.Pattern[str]) -> str:
    """Return the claim `name`. Raises InvalidToken when it is not text of `form`."""
    value = claims.get(name)
    if not isinstance(value, str) or not form.fullmatch(value):
        raise InvalidToken(f"Expected the claim {name} in the form of Access, found another form.")
    return value


def jwks_over_http(url: str, timeout_seconds: float = 3.0) -> FetchJwks:
    """Return a fetch of the JWKS at `url`: no redirects, no proxy of the environment."""

    async def fetch() -> Mapping[str, object]:
        async with httpx.AsyncClient(
            timeout=timeout_seconds, trust_env=False, follow_redirects=False
        ) as client:
            answer = await client.get(url)
        answer.raise_for_status()
        return msgspec.json.decode(answer.content, type=dict[str, object])

    return fetch
