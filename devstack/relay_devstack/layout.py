"""Where things lie: the repository, and the state folder of one stack."""

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def state_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the state folder: RELAY_STATE_DIR, else `.relay` of this clone."""
    given = environ.get("RELAY_STATE_DIR")
    return Path(given).absolute() if given else ROOT / ".relay"
