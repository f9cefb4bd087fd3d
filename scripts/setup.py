"""Makes `.venv` with the locked tools and the workspace's own packages; quick when nothing changed.

Standard library only, and readable by old Pythons, so that those get a sentence and not a syntax
error. `uv` installs, because it is fast; plain pip does when uv cannot.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "relay-setup"
LOCK = ROOT / "requirements-dev.lock"
OLDEST = (3, 11)
NEWER = [f"python3.{minor}" for minor in range(15, 10, -1)]
# What pip calls it, and where uv reads it.
UV_NAMES = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}


class SetupError(Exception):
    """A sentence that says what to do."""


def main() -> int:
    """Bring `.venv` up to date; 1 and a sentence when that cannot be."""
    try:
        use_new_python()
        if stamp() == digest() and os.access(str(PYTHON), os.X_OK):
            return 0
        make_venv()
        install()
        STAMP.write_text(digest())
    except SetupError as error:
        sys.stderr.write("\n" + str(error) + "\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def use_new_python() -> None:
    """Go on in a newer Python of the PATH when this one is too old."""
    if sys.version_info >= OLDEST:
        return
    for name in NEWER:
        program = shutil.which(name)
        if program:
            os.execv(program, [program] + sys.argv)  # noqa: RUF005, S606 -- old Pythons; becomes it
    found = ".".join(str(part) for part in sys.version_info[:3])
    raise SetupError(
        "Relay needs Python 3.11 or later and this is " + found + ": install a newer one, or name "
        "it with `make PYTHON=/path/to/python3.12 setup`."
    )


def digest() -> str:
    """Return what the environment depends on: this folder, the lock and the members."""
    seen = hashlib.sha256()
    for file in [LOCK] + [member / "pyproject.toml" for member in members()]:
        seen.update(str(file).encode() + b"\0" + file.read_bytes())
    return str(ROOT) + "\n" + seen.hexdigest()


def stamp() -> str:
    """Return what the environment was made for."""
    return STAMP.read_text() if STAMP.exists() else ""


def members() -> list:
    """Return the folders of the workspace's packages."""
    files = list(ROOT.glob("*/pyproject.toml")) + list(ROOT.glob("*/*/pyproject.toml"))
    return sorted(file.parent for file in files if ".venv" not in file.parts)


def make_venv() -> None:
    """Make `.venv` unless there is one that works."""
    if works():
        return
    try:
        import ensurepip  # noqa: F401, PLC0415 -- only to see whether it is there
        import venv  # noqa: PLC0415
    except ImportError:
        raise SetupError(
            "This Python cannot make virtual environments: install its venv package (Debian and "
            "Ubuntu: `apt install python3-venv`) and run the command again."
        ) from None
    say("making .venv")
    try:
        venv.create(str(VENV), with_pip=True, clear=True, symlinks=True)
    except (OSError, subprocess.CalledProcessError) as error:
        shutil.rmtree(str(VENV), ignore_errors=True)
        raise SetupError(
            ".venv could not be made (" + str(error) + "): see that the folder is writable and the "
            "disk has room for 1 GB, then run the command again."
        ) from error


def works() -> bool:
    """Return whether `.venv` runs, is new enough, and was made where it lies (not moved)."""
    if stamp() and stamp().splitlines()[0] != str(ROOT):
        return False
    program = f"import sys, pip; sys.exit(sys.version_info < {OLDEST!r})"
    try:
        return (
            subprocess.run(
                [str(PYTHON), "-c", program], check=False, capture_output=True
            ).returncode
            == 0
        )
    except OSError:
        return False


def install() -> None:
    """Install the lock, then the members on top of it."""
    count = len(re.findall(r"^[\w.-]+==", LOCK.read_text(), re.MULTILINE))
    say(f"installing {count} packages; the first time this downloads about 400 MB")
    locked = ["--require-hashes", "-r", str(LOCK)]
    own = ["--no-deps", "--no-build-isolation"]
    for member in members():
        own += ["-e", str(member)]
    if not (install_uv() and uv(locked) and uv(own)):
        pip(locked)
        pip(own)
    say("the environment is ready")


def install_uv() -> bool:
    """Install the locked uv; False where there is no wheel of it."""
    block = re.search(r"^uv==.*?(?=^\S(?<!#)|\Z)", LOCK.read_text(), re.MULTILINE | re.DOTALL)
    if block is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        pinned = Path(folder) / "uv.txt"
        pinned.write_text(block.group(0))
        return run(
            [str(PYTHON), "-m", "pip", "install", "-q", "--require-hashes", "-r", str(pinned)]
        )


def uv(arguments: list) -> bool:
    """Install with uv, which is told what pip is configured to."""
    program = [str(VENV / "bin" / "uv"), "pip", "install", "--python", str(PYTHON)]
    environment = dict(pip_configuration())
    environment.update(os.environ)
    if run(program + arguments, environment):
        return True
    say("uv could not do it; going on with pip")
    return False


def pip(arguments: list) -> None:
    """Install with pip."""
    if not run([str(PYTHON), "-m", "pip", "install", *arguments]):
        raise SetupError(
            "The packages could not be installed; the lines above say why. Without a network or "
            "behind a proxy, tell pip where to look (`pip config set global.index-url …`, "
            "HTTPS_PROXY); then run the command again."
        )


def pip_configuration() -> dict:
    """Return pip's configuration as variables of uv."""
    command = [str(PYTHON), "-m", "pip", "config", "list"]
    said = subprocess.run(command, check=False, stdout=subprocess.PIPE).stdout.decode()
    found = {}
    for name, value in re.findall(r"^[\w:]+\.([\w-]+)='(.*)'$", said, re.MULTILINE):
        usable = name != "find-links" or not value.startswith("/") or Path(value).is_dir()
        if name in UV_NAMES and usable:
            found[UV_NAMES[name]] = value
    return found


def run(command: list, environment: dict = os.environ) -> bool:
    """Run `command` in view of the developer; True when it did its work."""
    try:
        return subprocess.run(command, check=False, env=environment).returncode == 0
    except OSError:
        return False


def say(text: str) -> None:
    """Tell the developer what is going on."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(main())
