"""Free ports, chosen once and remembered: addresses survive a restart and stacks do not collide.

They lie below the range from which systems hand out client ports, so a remembered one is rarely
taken by chance.
"""

import json
import socket
import zlib
from collections.abc import Mapping
from pathlib import Path

import psutil

from relay_devstack.errors import PortTakenError
from relay_devstack.locks import only_one

FIRST, COUNT = 20000, 12000
NO_PINS: Mapping[str, str] = {}


class PortBook:
    """The ports of one state folder, by name; kept in `ports.json`.

    `RELAY_<NAME>_PORT` in `environ` pins one.
    """

    def __init__(self, state_dir: Path, environ: Mapping[str, str] = NO_PINS) -> None:
        self._file = state_dir / "ports.json"
        self._environ = environ

    def known(self, name: str) -> int | None:
        """Return the port that `name` was given, or None."""
        return self._read().get(name)

    def claim(self, name: str) -> int:
        """Return a port that is free now for `name`: pinned, remembered or new.

        Raises PortTakenError when a pinned port is taken.
        """
        with only_one(self._file.with_name("ports.lock")):
            return self._claim(name)

    def _claim(self, name: str) -> int:
        variable = f"RELAY_{name.upper().replace('-', '_')}_PORT"
        pinned = self._environ.get(variable)
        if pinned:
            return self._remember(name, _pinned(variable, pinned))
        known = self.known(name)
        if known is not None and is_free(known):
            return known
        return self._remember(name, self._search())

    def _search(self) -> int:
        start = zlib.crc32(str(self._file).encode()) % COUNT
        used = set(self._read().values())
        for step in range(COUNT):
            port = FIRST + (start + step) % COUNT
            if port not in used and is_free(port):
                return port
        raise PortTakenError(f"No port from {FIRST} to {FIRST + COUNT} is free: stop something.")

    def _read(self) -> dict[str, int]:
        return json.loads(self._file.read_text()) if self._file.exists() else {}

    def _remember(self, name: str, port: int) -> int:
        self._file.write_text(json.dumps({**self._read(), name: port}, indent=1))
        return port


def is_free(port: int) -> bool:
    """Return whether nobody listens on `port` of the loopback address."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _pinned(variable: str, text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise PortTakenError(f"{variable} must be a port number, found {text!r}.")
    if not is_free(int(text)):
        raise PortTakenError(
            f"Port {text} is taken by {holder(int(text))}: stop it, or set {variable} to another."
        )
    return int(text)


def holder(port: int) -> str:
    """Return who listens on `port`, as far as this account may see it."""
    try:
        listening = [c for c in psutil.net_connections("tcp") if c.laddr and c.laddr[1] == port]
        pids = [c.pid for c in listening if c.pid]
        return f"{psutil.Process(pids[0]).name()} (pid {pids[0]})" if pids else "another process"
    except psutil.Error:
        return "another process"
