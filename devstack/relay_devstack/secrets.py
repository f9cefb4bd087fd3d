"""The secrets of one stack: random, kept in its state folder, readable by its owner only."""

import hashlib
import hmac
import os
import secrets
from pathlib import Path

from relay_devstack.errors import disk_faults


def kept_secret(state_dir: Path, name: str) -> str:
    """Return the random secret `name` of this state folder, made at first use."""
    file = state_dir / "secrets" / name
    if not file.exists():
        with disk_faults(file):
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_private(file, secrets.token_urlsafe(24).encode())
    return file.read_text()


def derived_password(secret: str, role: str) -> str:
    """Return the password of `role` under `secret`: the same for everybody who knows the secret."""
    return hmac.new(secret.encode(), role.encode(), hashlib.sha256).hexdigest()[:40]


def write_private(file: Path, content: bytes) -> None:
    """Write `content` to `file`, which only the owner can read from its first byte on."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(content)
