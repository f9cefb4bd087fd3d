"""The life of a process: how it starts, tells the truth, and ends."""

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psycopg
import pytest
from relay_common import db
from relay_common.runtime import Loop, Readiness, every, silent_loop
from relay_common.telemetry import counter
from relay_common.testing import wait
from relay_common.testing.databases import Database

PROCESS = str(Path(__file__).with_name("service_process.py"))


def free_port() -> int:
    """Return a port of which it and the next are free."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts service processes; what still runs at the end of the test is killed."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(port: int, *kinds: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, PROCESS, str(port), *kinds]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))
        return started[-1]

    yield begin
    for process in started:
        process.kill()
        process.wait()


def readiness(port: int) -> httpx.Response | None:
    try:
        return httpx.get(f"http://127.0.0.1:{port + 1}/readyz", timeout=5)
    except httpx.TransportError:
        return None


def until_ready(port: int) -> None:
    wait.until(lambda: (found := readiness(port)) is not None and found.status_code == 200, 60)


def test_sigterm_turns_readiness_off_drains_requests_and_exits_clean(start: Start) -> None:
    port = free_port()
    process = start(port, "steady")
    until_ready(port)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(httpx.get, f"http://127.0.0.1:{port}/slow", timeout=10)
        wait.until(lambda: httpx.get(f"http://127.0.0.1:{port}/under-way").text == "1")
        process.terminate()
        refused = wait.until(
            lambda: (r := readiness(port)) is not None and r.status_code == 503 and r
        )
        assert refused.json()["checks"]["process"] == "stopping"
        assert answer.result().text == "done"
    assert process.wait(10) == 0


def test_process_ends_with_an_error_when_a_loop_dies(start: Start) -> None:
    process = start(free_port(), "steady", "dying")
    assert process.wait(60) == 1


def test_loop_that_returns_by_itself_is_a_death(start: Start) -> None:
    process = start(free_port(), "returning")
    assert process.wait(60) == 1


def test_taken_port_ends_the_process_with_an_error(start: Start) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        process = start(port, "steady")
        assert process.wait(60) == 1


def test_stuck_loop_does_not_hold_the_process_longer_than_it_may(start: Start) -> None:
    port = free_port()
    process = start(port, "stuck")
    until_ready(port)
    process.terminate()
    started = time.monotonic()
    assert process.wait(25) == 1
    assert time.monotonic() - started < 13


def test_readiness_names_what_is_missing_even_when_a_check_fails() -> None:
    checks = Readiness()
    checks.add("fine", lambda: None)
    checks.add("missing", lambda: "no database")
    checks.add("broken", lambda: str(1 // 0))
    assert checks.report() == {
        "fine": None,
        "missing": "no database",
        "broken": "the check itself failed: ZeroDivisionError",
    }


def test_silent_loop_is_noticed() -> None:
    loops = [Loop("quiet", lambda _: None), Loop("hung", lambda _: None, lambda: 500.0)]
    assert silent_loop(loops) == "hung has been silent for 500 s"
    assert silent_loop(loops[:1]) is None


def test_duty_is_repeated_counted_and_survives_a_lost_connection(database: Database) -> None:
    stop, runs = threading.Event(), list[int]()

    def duty(conn: db.Connection) -> Mapping[str, int]:
        row = db.one_row(conn, "select pg_backend_pid()")
        runs.append(row[0])
        if len(runs) == 2:
            conn.execute("select pg_terminate_backend(pg_backend_pid())")
        if len(runs) == 4:
            raise ValueError("a bad day")
        if len(runs) == 6:
            stop.set()
        return {"expired": 2}

    every(0.01, duty, lambda: db.connect(database.conninfo(), "sweeper"), stop, "test_duty")
    assert len(runs) == 6
    assert runs[0] == runs[1] != runs[2]
    rows = counter("relay_sweep_rows_total").labels("test_duty", "expired")
    assert rows._value.get() == 8.0
    failures = counter("relay_sweep_failures_total").labels("test_duty")
    assert failures._value.get() == 2.0


def test_duty_waits_for_a_database_that_is_away() -> None:
    stop, tries = threading.Event(), list[float]()

    def connect() -> db.Connection:
        tries.append(time.monotonic())
        if len(tries) == 3:
            stop.set()
        raise psycopg.OperationalError("away")

    every(0.001, lambda _: {}, connect, stop, "away")
    assert tries[2] - tries[1] > tries[1] - tries[0] > 0.1
