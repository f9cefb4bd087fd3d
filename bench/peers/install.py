"""The peers' own environments: a folder each, pinned and hashed, made anew when a pin changes."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Sequence
from pathlib import Path

from relay_devstack.layout import state_dir

PINS = Path(__file__).parent
TOOL = re.compile(r"^tool (\S+)$", re.MULTILINE)
REQUIRED = re.compile(r"^\t(\S+) (v\S+)", re.MULTILINE)


class LeftOut(Exception):
    """A sentence that says why a peer is not measured here."""


def home(peer: str) -> Path:
    """Return the folder of everything that `peer` has on this machine."""
    return state_dir() / "peers" / peer


def python(peer: str) -> Path:
    """Return the interpreter with the locked packages of `peer`. Raises LeftOut."""
    folder = home(peer) / "python"
    interpreter = folder / "bin" / "python"

    def make() -> None:
        venv.create(folder, clear=True, with_pip=True, symlinks=True)
        lock = PINS / peer / "requirements.lock"
        install = ("-m", "pip", "install", "--quiet", "--require-hashes", "-r", str(lock))
        run([str(interpreter), *install], PINS)

    unless_made(folder, [PINS / peer / "requirements.lock"], make)
    return interpreter


def node_modules(peer: str) -> Path:
    """Return the folder of the locked npm packages of `peer`. Raises LeftOut."""
    folder = home(peer) / "node"
    pins = [PINS / peer / name for name in ("package.json", "package-lock.json")]

    def make() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for file in pins:
            shutil.copy(file, folder)
        run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)

    unless_made(folder, pins, make)
    return folder / "node_modules"


def go_program(peer: str) -> Path:
    """Return the tool of `peer`'s module, built from the locked modules. Raises LeftOut.

    On one core: a build beside other work should not be the reason that that one fails.
    """
    folder = home(peer) / "go"
    program = folder / "program"
    pins = [PINS / peer / name for name in ("go.mod", "go.sum")]
    build = ["go", "build", "-mod=readonly", "-p", "1", "-o", str(program), tool(pins[0])]
    unless_made(folder, pins, lambda: run(build, PINS / peer))
    return program


def tool(module: Path) -> str:
    """Return the package that the module file `module` names as its tool."""
    return TOOL.findall(module.read_text())[0]


def versions(peer: str) -> list[str]:
    """Return what `peer` is pinned to, the server first: `name version`."""
    found: list[str] = []
    if (module := PINS / peer / "go.mod").exists():
        required = REQUIRED.findall(module.read_text())
        found += [f"{name} {number}" for name, number in required if tool(module).startswith(name)]
    if (package := PINS / peer / "package.json").exists():
        needed = json.loads(package.read_text())["dependencies"]
        found += [f"{name} {number}" for name, number in needed.items()]
    lines = (PINS / peer / "requirements.in").read_text().splitlines()
    return found + [line.replace("==", " ") for line in lines]


def unless_made(folder: Path, pins: Sequence[Path], make: Callable[[], None]) -> None:
    """Call `make` for `folder` unless it was made from these `pins`."""
    wanted = hashlib.sha256(b"".join(file.read_bytes() for file in pins)).hexdigest()
    stamp = folder / "made-from"
    if stamp.exists() and stamp.read_text() == wanted:
        return
    sys.stderr.write(f"installing {folder.parent.name} ({folder.name}); once, up to some minutes\n")
    make()
    stamp.write_text(wanted)


def run(command: Sequence[str], folder: Path) -> None:
    """Run an installation in `folder`. Raises LeftOut when it cannot be done."""
    if shutil.which(command[0]) is None:
        raise LeftOut(f"`{command[0]}` is not installed on this machine")
    ran = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=1800
    )
    if ran.returncode != 0:
        said = (ran.stderr or ran.stdout).strip().splitlines()
        raise LeftOut(f"`{' '.join(command[:3])}` failed: {said[-1] if said else 'without a word'}")
