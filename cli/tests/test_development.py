"""`relay env` and `relay token`: lines for a shell, sentences for a person."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import jwt
import pytest
from relay_devstack.addresses import remember
from relay_devstack.daemons import Command, Daemon
from relay_devstack.tokens import SigningKey

KNOWN = {
    "RELAY_URL": "http://127.0.0.1:1",
    "RELAY_KAFKA_BOOTSTRAP": "127.0.0.1:2",
    "RELAY_DATABASE_URL": "postgresql://127.0.0.1:3/relay",
    "RELAY_ACCESS_URL": "http://127.0.0.1:4",
}


def relay(state_dir: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).with_name("relay")
    env = {**os.environ, "RELAY_STATE_DIR": str(state_dir)}
    return subprocess.run(
        [program, *words], env=env, check=False, capture_output=True, text=True, timeout=30
    )


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """A state folder whose gateway runs."""
    gateway = Daemon(tmp_path, "gateway")
    gateway.start(Command([sys.executable, "-c", "import time; time.sleep(600)"]))
    remember(tmp_path, KNOWN, {})
    SigningKey(tmp_path).create()
    yield tmp_path
    gateway.stop(signal.SIGKILL)


def test_env_prints_three_lines(running: Path) -> None:
    said = relay(running, "env")
    lines = dict(line.split("=", 1) for line in said.stdout.splitlines())
    assert lines == {name: KNOWN[name] for name in list(KNOWN)[:3]}


def test_env_without_a_stack_is_a_sentence(tmp_path: Path) -> None:
    said = relay(tmp_path, "env")
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == f"No stack is running in {tmp_path}: run `make up` first.\n"


def test_env_after_a_crash_of_the_stack_is_a_sentence(running: Path) -> None:
    Daemon(running, "gateway").stop(signal.SIGKILL)
    assert relay(running, "env").returncode == 1


def test_token_says_what_was_asked(running: Path) -> None:
    asked = ("--sub", "client:shop", "--tenant", "acme", "--environment", "prod")
    said = relay(running, "token", *asked, "--scope", "events:write events:read")
    assert said.returncode == 0
    claims = jwt.decode(said.stdout.strip(), options={"verify_signature": False})
    assert claims["sub"] == "client:shop"
    assert claims["scope"] == "events:write events:read"
    assert jwt.get_unverified_header(said.stdout.strip())["typ"] == "at+jwt"


def test_token_for_nobody_is_a_sentence(running: Path) -> None:
    said = relay(running, "token", "--sub", "shop", "--tenant", "acme", "--environment", "prod")
    assert said.returncode == 1
    assert said.stderr.startswith("sub must be agent:…, subscriber:… or client:…")


def test_token_before_the_first_start_is_a_sentence(tmp_path: Path) -> None:
    asked = ("--sub", "client:shop", "--tenant", "acme", "--environment", "prod")
    said = relay(tmp_path, "token", *asked)
    assert (said.returncode, said.stderr) == (
        1,
        "There is no signing key yet: run `make up` first.\n",
    )
