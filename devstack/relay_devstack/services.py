"""The processes of Relay in a stack: the Access stand-in, the services and the gateway."""

import os
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from relay_devstack.daemons import Command, Daemon
from relay_devstack.database import SERVICES
from relay_devstack.errors import StartFailedError
from relay_devstack.ports import PortBook
from relay_devstack.waiting import until_none

HOST = "127.0.0.1"
READY_SECONDS = 90


@dataclass(frozen=True, slots=True)
class Process:
    """One process to be: how to start it and where it says that it is ready."""

    name: str
    arguments: tuple[str, ...]
    ready_url: str
    own: Mapping[str, str]  # variables beside the shared ones


class Processes:
    """Starts and watches the Python processes of one state folder."""

    def __init__(self, state_dir: Path, shared: Mapping[str, str]) -> None:
        self._state_dir = state_dir
        self._shared = shared

    def start(self, processes: list[Process]) -> None:
        """Start `processes` and return when each is ready. Raises StartFailedError."""
        for process in processes:
            self._daemon(process).start(self._command(process))
        with ThreadPoolExecutor(len(processes)) as pool:
            list(pool.map(self._until_ready, processes))

    def _command(self, process: Process) -> Command:
        inherited = {name: value for name, value in os.environ.items() if name != "RELAY_URL"}
        env = {**inherited, **self._shared, **process.own}
        return Command([sys.executable, "-m", *process.arguments], env, self._state_dir)

    def _until_ready(self, process: Process) -> None:
        daemon = self._daemon(process)

        def missing() -> str | None:
            if died := daemon.died():
                raise StartFailedError(f"{process.name} did not start: {died}")
            return not_ready(process.ready_url)

        until_none(missing, READY_SECONDS, f"{process.name} (see {daemon.log})")

    def _daemon(self, process: Process) -> Daemon:
        return Daemon(self._state_dir, process.name)


def not_ready(url: str) -> str | None:
    """Return None when `url` answers 200, else what it says."""
    # Asked many times a second while six processes start: nothing that costs.
    parts = urlsplit(url)
    with closing(HTTPConnection(parts.hostname or HOST, parts.port, timeout=2)) as connection:
        try:
            connection.request("GET", parts.path)
            answer = connection.getresponse()
            said = answer.read(300).decode(errors="replace")
        except (OSError, HTTPException) as error:
            return str(error)
    return None if answer.status == 200 else said


def access(state_dir: Path, ports: PortBook) -> Process:
    """Return the stand-in's process."""
    port = port_of(state_dir, ports, "access", "access")
    arguments = ("relay_devstack.access", HOST, str(port), str(state_dir))
    return Process("access", arguments, f"http://{HOST}:{port}/healthz", {})


def relay_services(state_dir: Path, ports: PortBook, passwords: Mapping[str, str]) -> list[Process]:
    """Return the process of every service; `passwords` by role."""
    return [_service(state_dir, ports, name, passwords) for name in SERVICES]


def gateway(state_dir: Path, ports: PortBook, services: list[Process]) -> Process:
    """Return the gateway's process in front of `services`."""
    port = port_of(state_dir, ports, "gateway", "gateway")
    upstreams = [f"{s.name}=http://{HOST}:{ports.known(f'{s.name}-http')}" for s in services]
    arguments = ("relay_devstack.gateway", HOST, str(port), *upstreams)
    return Process("gateway", arguments, f"http://{HOST}:{port}/healthz", {})


def port_of(state_dir: Path, ports: PortBook, name: str, process: str) -> int:
    """Return the port `name`: the known one while `process` runs, else one that is free now."""
    known = ports.known(name)
    if known is not None and Daemon(state_dir, process).process() is not None:
        return known
    return ports.claim(name)


def _service(state_dir: Path, ports: PortBook, name: str, passwords: Mapping[str, str]) -> Process:
    http = port_of(state_dir, ports, f"{name}-http", name)
    internal = port_of(state_dir, ports, f"{name}-internal", name)
    prefix = f"RELAY_{name.upper()}"
    own = {
        f"{prefix}_HTTP_HOST": HOST,
        f"{prefix}_HTTP_PORT": str(http),
        f"{prefix}_INTERNAL_PORT": str(internal),
        f"{prefix}_HTTP_PASSWORD": passwords[f"relay_{name}_http"],
        f"{prefix}_STREAM_PASSWORD": passwords[f"relay_{name}_stream"],
    }
    return Process(name, (f"relay_{name}",), f"http://{HOST}:{internal}/readyz", own)
