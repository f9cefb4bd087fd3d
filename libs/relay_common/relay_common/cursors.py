"""Cursors of lists: opaque, signed, and valid for one list of one tenant only."""

import base64
import binascii
import hashlib
import hmac

import orjson

from relay_common.errors import CursorInvalid, Json
from relay_common.match_key import prefixed

MAC_BYTES = 16
MAX_TEXT = 4096


class Cursors:
    """Writes and reads the cursors of all lists of a service."""

    def __init__(self, secret: bytes) -> None:
        """Sign with `secret`; every process that serves the same lists needs the same one."""
        self.key = hashlib.sha256(b"relay-cursor" + secret).digest()

    def write(self, scope: tuple[str, ...], position: list[Json]) -> str:
        """Return the cursor at `position` of the list that `scope` names.

        `scope` holds all that makes it this list: tenant, environment, route, caller, filters.
        """
        payload = orjson.dumps(position)
        return base64.urlsafe_b64encode(self.mac(scope, payload) + payload).rstrip(b"=").decode()

    def read(self, scope: tuple[str, ...], cursor: str) -> list[Json]:
        """Return the position. Raises CursorInvalid for a foreign, altered or broken cursor."""
        if len(cursor) > MAX_TEXT or not cursor.isascii():
            raise CursorInvalid
        try:
            raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError) as error:
            raise CursorInvalid from error
        mac, payload = raw[:MAC_BYTES], raw[MAC_BYTES:]
        if not hmac.compare_digest(mac, self.mac(scope, payload)):
            raise CursorInvalid
        return orjson.loads(payload)

    def mac(self, scope: tuple[str, ...], payload: bytes) -> bytes:
        """Return the signature of `payload` within `scope`."""
        return hmac.digest(self.key, prefixed(*scope) + payload, "sha256")[:MAC_BYTES]
