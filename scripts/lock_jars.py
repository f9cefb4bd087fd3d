"""Writes `devstack/jars.lock`: what Maven resolves for `devstack/pom.xml`, with SHA-256.

Needs `mvn`, unlike everything that reads the lock.
"""

import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DEVSTACK = Path(__file__).resolve().parents[1] / "devstack"
COORDINATES = re.compile(r"^\s+([\w.-]+):([\w.-]+):jar:([\w.-]+):(?:compile|runtime)")
HEADER = "# Kafka's jars: group:artifact:version SHA-256. Written by `make lock` from pom.xml.\n"


def main() -> int:
    """Resolve, download, hash, write."""
    if shutil.which("mvn") is None:
        print("No mvn here: devstack/jars.lock stays as it is.", file=sys.stderr)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        lines = sorted(locked(Path(folder)))
    (DEVSTACK / "jars.lock").write_text(HEADER + "".join(lines))
    return 0


def locked(folder: Path) -> list[str]:
    """Return one line for each jar that Maven resolves."""
    maven("dependency:list", f"-DoutputFile={folder / 'list'}", "-DincludeScope=runtime")
    maven("dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime")
    found = map(COORDINATES.match, (folder / "list").read_text().splitlines())
    return [line(folder, *match.groups()) for match in found if match]


def line(folder: Path, group: str, artifact: str, version: str) -> str:
    """Return the lock's line for one jar."""
    content = (folder / f"{artifact}-{version}.jar").read_bytes()
    return f"{group}:{artifact}:{version} {hashlib.sha256(content).hexdigest()}\n"


def maven(goal: str, *options: str) -> None:
    """Run one goal on the pom."""
    command = ["mvn", "-q", "-B", "-f", str(DEVSTACK / "pom.xml"), goal, *options]
    subprocess.run(command, check=True)


if __name__ == "__main__":
    sys.exit(main())
