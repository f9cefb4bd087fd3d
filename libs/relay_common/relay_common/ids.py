"""Identifiers: opaque outside, and derived where a retry must give the same one (design D17)."""

import base64
import binascii
import hashlib
import uuid
from struct import Struct

import uuid_utils

SIZE = Struct(">I").pack
URL_SAFE = bytes.maketrans(b"+/", b"-_")
PADDING = b"="


def new_id() -> uuid.UUID:
    """Return a new UUIDv7: random, but neighbours in time are neighbours in an index."""
    return uuid.UUID(bytes=uuid_utils.uuid7().bytes)


def encode_id(prefix: str, raw: bytes) -> str:
    """Return the outside form of `raw`: `prefix` (`wp_`, …) and base64url without padding."""
    digits = binascii.b2a_base64(raw, newline=False).translate(URL_SAFE, PADDING)
    return prefix + digits.decode("ascii")


def decode_id(prefix: str, text: str, length: int) -> bytes | None:
    """Return the `length` bytes behind `text`, None when it is not exactly what encode_id writes.

    A caller answers None like an unknown id: the same 404 (design D6).
    """
    if not text.startswith(prefix) or not text.isascii():
        return None
    body = text[len(prefix) :]
    try:
        raw = base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    # Base64 has spare bits: without the second comparison one id would have several spellings.
    return raw if len(raw) == length and encode_id(prefix, raw) == text else None


def derive_id(*parts: bytes | str) -> bytes:
    """Return 16 bytes of SHA-256 over `parts`, each with its length before it (u32, big-endian).

    The lengths keep ("a", "bc") and ("ab", "c") apart.
    """
    sized = bytearray()
    for part in parts:
        raw = part.encode() if isinstance(part, str) else part
        sized += SIZE(len(raw)) + raw
    return hashlib.sha256(sized).digest()[:16]
