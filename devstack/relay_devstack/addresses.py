"""Where the parts of a running stack answer, kept in `stack.json` of its state folder."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from relay_devstack.daemons import Daemon
from relay_devstack.errors import NotRunningError, disk_faults
from relay_devstack.secrets import write_private


def running_addresses(state_dir: Path) -> dict[str, str]:
    """Return the addresses of the running stack. Raises NotRunningError when it is not up."""
    known = remembered(state_dir, "addresses")
    if not known or Daemon(state_dir, "gateway").process() is None:
        raise NotRunningError(f"No stack is running in {state_dir}: run `make up` first.")
    return known


def remember(state_dir: Path, addresses: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Keep all `addresses`, and which of them are of servers that this stack started itself."""
    with disk_faults(state_dir):
        content = json.dumps({"addresses": dict(addresses), "own": dict(own)}, indent=1)
        write_private(state_dir / "stack.json", content.encode())


def remembered(state_dir: Path, part: Literal["addresses", "own"]) -> dict[str, str]:
    """Return what the last start kept; nothing before the first."""
    file = state_dir / "stack.json"
    return json.loads(file.read_text())[part] if file.exists() else {}
