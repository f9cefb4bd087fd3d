"""The subject digest: what a reply is bound to (spec, Invariants; RFC 8785)."""

import base64
import hashlib

import rfc8785
from relay_common.errors import FieldError, Json, ValidationFailed

PREFIX = "sha-256:"


def subject_digest(content: Json) -> str:
    """Return `sha-256:` and base64url of the canonical JSON of `content`.

    Raises ValidationFailed for content that has no canonical form: integers beyond 2^53 are
    different numbers to different readers, so amounts travel as text.
    """
    try:
        canonical = rfc8785.dumps(content)  # pyright: ignore[reportArgumentType]
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        fault = FieldError("/content", "expected numbers that every reader reads alike")
        raise ValidationFailed("Expected content with a canonical form.", errors=[fault]) from error
    return (
        PREFIX + base64.urlsafe_b64encode(hashlib.sha256(canonical).digest()).rstrip(b"=").decode()
    )
