"""A whole stack: up, again, down; two side by side; with servers that were brought along."""

import io
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from relay_devstack import providers
from relay_devstack.database import create_database
from relay_devstack.errors import DevstackError
from relay_devstack.stack import Stack
from relay_devstack.terminal import Terminal

ROOT = Path(__file__).parents[2]


def devstack(verb: str, state_dir: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("RELAY_")}
    return subprocess.run(
        [sys.executable, "-m", "relay_devstack", verb],
        env={**inherited, "RELAY_STATE_DIR": str(state_dir), **more},
        capture_output=True,
        check=False,
        text=True,
        timeout=120,
    )


def addresses(state_dir: Path) -> dict[str, str]:
    return json.loads((state_dir / "stack.json").read_text())["addresses"]


def started(state_dir: Path) -> set[str]:
    return {file.stem for file in (state_dir / "run").glob("*.json")}


@pytest.fixture(scope="module")
def neighbour(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Servers of another stack on the same machine."""
    folder = tmp_path_factory.mktemp("neighbour")
    postgres, kafka = providers.choose().postgres(folder), providers.choose().kafka(folder)
    postgres.start()
    kafka.start()
    create_database(postgres.url, "brought")
    database = f"{postgres.url.rpartition('/')[0]}/brought"
    yield {"RELAY_DATABASE_URL": database, "RELAY_KAFKA_BOOTSTRAP": kafka.bootstrap}
    kafka.destroy()
    postgres.destroy()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    state_dir = tmp_path_factory.mktemp("stack")
    done = devstack("up", state_dir)
    assert done.returncode == 0, done.stderr
    assert "Relay is ready" in done.stderr
    yield state_dir
    assert devstack("reset", state_dir).returncode == 0


def assert_answers(known: dict[str, str]) -> None:
    with psycopg.connect(known["RELAY_DATABASE_URL"]) as conn:
        conn.execute("select hash_seed from relay.installation")
    topics = AdminClient(
        {"bootstrap.servers": known["RELAY_KAFKA_BOOTSTRAP"], "log_level": 0}
    ).list_topics(timeout=10)
    assert "relay.events" in topics.topics
    assert httpx.get(f"{known['RELAY_URL']}/healthz").status_code == 200
    assert httpx.get(f"{known['RELAY_ACCESS_URL']}/jwks").json()["keys"]


def test_up_makes_everything_ready(stack: Path) -> None:
    assert_answers(addresses(stack))


def test_down_stops_only_its_own_and_the_next_start_is_quick(
    stack: Path, neighbour: dict[str, str]
) -> None:
    before = addresses(stack)
    done = devstack("down", stack)
    assert "kafka, postgres" in done.stdout
    assert not started(stack)
    with psycopg.connect(neighbour["RELAY_DATABASE_URL"]) as conn:
        assert conn.execute("select 1").fetchone() == (1,)
    admin = AdminClient({"bootstrap.servers": neighbour["RELAY_KAFKA_BOOTSTRAP"], "log_level": 0})
    assert len(admin.list_topics(timeout=10).brokers) == 1
    crowd = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    begun = time.monotonic()
    assert devstack("up", stack).returncode == 0
    assert time.monotonic() - begun < 15 * crowd
    assert addresses(stack) == before
    assert_answers(before)


def test_up_again_leaves_what_runs(stack: Path) -> None:
    records = {file.name: file.read_text() for file in (stack / "run").glob("*.json")}
    # A shell that has exported the stack's own addresses brings nothing along.
    assert devstack("up", stack, **addresses(stack)).returncode == 0
    assert {file.name: file.read_text() for file in (stack / "run").glob("*.json")} == records


def test_brought_servers_are_used_and_nothing_starts_in_their_place(
    neighbour: dict[str, str], tmp_path: Path
) -> None:
    for _ in range(2):  # the second start must not take them for its own
        done = devstack("up", tmp_path, **neighbour)
        assert done.returncode == 0, done.stderr
        assert not started(tmp_path) & {"kafka", "postgres"}
        assert neighbour.items() <= addresses(tmp_path).items()
    assert_answers(addresses(tmp_path))
    stopped = devstack("down", tmp_path).stdout
    assert "gateway" in stopped
    assert "kafka" not in stopped
    with psycopg.connect(neighbour["RELAY_DATABASE_URL"]) as conn:
        assert conn.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("RELAY_DATABASE_URL", "postgresql://127.0.0.1:9/x", "unset RELAY_DATABASE_URL"),
        ("RELAY_POSTGRES_PORT", "none", "RELAY_POSTGRES_PORT must be a port number"),
    ],
)
def test_a_fault_of_a_start_is_a_sentence(
    variable: str, value: str, sentence: str, neighbour: dict[str, str], tmp_path: Path
) -> None:
    brought = {"RELAY_KAFKA_BOOTSTRAP": neighbour["RELAY_KAFKA_BOOTSTRAP"], variable: value}
    stack = Stack(tmp_path, Terminal(io.StringIO()), brought)
    with pytest.raises(DevstackError, match=sentence):
        stack.up()
    assert stack.down() == []


def test_a_fault_is_printed_without_a_traceback(tmp_path: Path) -> None:
    done = devstack("logs", tmp_path)
    assert done.returncode == 1
    assert done.stderr == "\nThere is no log of anything; there is: none.\n"


def test_down_where_nothing_was_started_says_so(tmp_path: Path) -> None:
    assert devstack("down", tmp_path / "none").stdout == "Nothing of this stack was running.\n"
    assert not (tmp_path / "none").exists()


def test_the_compose_file_is_valid() -> None:
    program = Path(sys.executable).with_name("docker-compose")
    command = [program, "--env-file", ".env.example", "config", "-q"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
