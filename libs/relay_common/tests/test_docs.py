"""The generated pages say what the code says."""

import subprocess
import sys

from relay_common.testing.plugin import repository


def test_the_generated_pages_are_fresh():
    script = repository() / "scripts" / "docs.py"
    found = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr
