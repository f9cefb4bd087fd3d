"""Prints the targets of a Makefile by group: `## Group`, then `target: … # what it does`."""

import re
import sys
from pathlib import Path


def main() -> None:
    """Print the groups and targets of the Makefile that is the first argument."""
    for line in Path(sys.argv[1]).read_text(encoding="utf-8").splitlines():
        group = re.match(r"## (.*)", line)
        target = re.match(r"([a-z-]+):[^#]*# (.*)", line)
        if group:
            print(f"\n{group[1]}")
        if target:
            print(f"  make {target[1]:<18}{target[2]}")


if __name__ == "__main__":
    main()
