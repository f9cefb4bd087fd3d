"""Processes and ports: only what is ours is stopped, and what is taken is said."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from relay_devstack.daemons import Command, Daemon
from relay_devstack.errors import DiskFullError, PortTakenError, StartFailedError, disk_faults
from relay_devstack.ports import PortBook, is_free
from relay_devstack.waiting import until_none

SLEEP = Command([sys.executable, "-c", "import time; time.sleep(600)"])


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path, "sleeper")
    yield daemon
    daemon.stop(signal.SIGKILL)


@pytest.fixture
def foreign() -> Iterator["subprocess.Popen[bytes]"]:
    process = subprocess.Popen(SLEEP.argv)
    yield process
    process.kill()
    process.wait()


def test_stop_ends_what_start_began(daemon: Daemon) -> None:
    daemon.start(SLEEP)
    process = daemon.process()
    assert process is not None
    assert daemon.stop()
    assert daemon.process() is None
    assert not process.is_running()
    assert not daemon.stop()


def test_a_reused_pid_is_left_alone(
    daemon: Daemon, tmp_path: Path, foreign: "subprocess.Popen[bytes]"
) -> None:
    daemon.start(SLEEP)
    daemon.stop()
    kept = {"pid": foreign.pid, "started": 1.0, "command": ""}
    (tmp_path / "run" / "sleeper.json").write_text(json.dumps(kept))
    assert daemon.process() is None
    assert not daemon.stop()
    assert foreign.poll() is None


def test_starting_again_keeps_the_process(daemon: Daemon) -> None:
    daemon.start(SLEEP)
    first = daemon.process()
    daemon.start(SLEEP)
    assert daemon.process() == first


def test_changed_settings_restart_the_process(daemon: Daemon) -> None:
    daemon.start(SLEEP)
    first = daemon.process()
    daemon.start(Command(SLEEP.argv, {**os.environ, "RELAY_LOG_LEVEL": "debug"}))
    assert daemon.process() not in (None, first)


def test_a_dead_process_says_its_last_words(daemon: Daemon) -> None:
    daemon.start(Command([sys.executable, "-c", "raise SystemExit('no such thing')"]))
    until_none(lambda: None if daemon.died() else "alive", 10, "the end of the process")
    assert "no such thing" in (daemon.died() or "")


def test_a_missing_program_is_a_sentence(daemon: Daemon) -> None:
    with pytest.raises(StartFailedError, match="make setup"):
        daemon.start(Command(["/nowhere/program"]))


def test_waiting_reports_what_it_last_saw() -> None:
    with pytest.raises(StartFailedError, match="Thing was not ready after 0 seconds: asleep"):
        until_none(lambda: "asleep", 0, "Thing")


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_pinned_port_that_is_taken_is_a_sentence(tmp_path: Path, listener: int) -> None:
    book = PortBook(tmp_path, {"RELAY_GATEWAY_PORT": str(listener)})
    with pytest.raises(PortTakenError, match=f"Port {listener} is taken by .*RELAY_GATEWAY_PORT"):
        book.claim("gateway")


def test_a_pinned_port_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(PortTakenError, match="must be a port number"):
        PortBook(tmp_path, {"RELAY_KAFKA_PORT": "many"}).claim("kafka")


def test_a_port_is_remembered_until_it_is_taken(tmp_path: Path) -> None:
    port = PortBook(tmp_path, {}).claim("gateway")
    assert PortBook(tmp_path, {}).claim("gateway") == port
    with socket.create_server(("127.0.0.1", port)):
        assert not is_free(port)
        assert PortBook(tmp_path, {}).claim("gateway") != port


def test_one_book_gives_no_port_twice(tmp_path: Path) -> None:
    book = PortBook(tmp_path, {})
    ports = [book.claim(f"part-{number}") for number in range(20)]
    assert len(set(ports)) == 20


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with pytest.raises(DiskFullError, match="free some space"), disk_faults(tmp_path):
        Path("/dev/full").write_text("x")


def test_a_folder_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DiskFullError, match="RELAY_STATE_DIR"), disk_faults(tmp_path):
        raise PermissionError(13, "Permission denied", str(tmp_path))
