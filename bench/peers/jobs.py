"""The job for each peer: its server on free ports with an empty data folder, N waits, N events.

Every job returns rates per second: `open` waits opened; `deliver` events accepted by the peer;
`seen` events delivered and seen by their waiters, from the first delivery to the last waiter.
"""

import asyncio
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench import runs
from bench.clients import Connection, drive
from bench.peers import install
from bench.processes import launch, running
from bench.stage import Stage, free_port

CALLERS = 32
SECONDS = 300.0
DBOS_DATABASE = "bench_peer_dbos"
NATS_TIMES = 20  # it is so much faster that N events would not fill a clock

Rates = dict[str, float]
Job = Callable[[Stage, int], Rates]


def dbos(kind: str) -> Job:
    """Return the job for DBOS on the stage's Postgres; `kind` is recv or get_event."""

    def job(stage: Stage, waits: int) -> Rates:
        python = install.python("dbos")
        with psycopg.connect(stage.postgres_url, autocommit=True) as conn:
            conn.execute(f"drop database if exists {DBOS_DATABASE} (force)")
            conn.execute(f"create database {DBOS_DATABASE}")
        parts = conninfo_to_dict(stage.postgres_url)
        login = f"{parts['user']}:{parts['password']}@{parts['host']}:{parts['port']}"
        return script(python, "dbos", f"postgresql://{login}/{DBOS_DATABASE}", str(waits), kind)

    return job


def nats(sync_interval: str) -> Job:
    """Return the job for JetStream with a file store; `sync_interval` is always or a duration."""

    def job(_: Stage, waits: int) -> Rates:
        python, program = install.python("nats"), install.go_program("nats")
        data, port = emptied("nats"), free_port()
        settings = data / "server.conf"
        settings.write_text(
            f'listen: "127.0.0.1:{port}"\n'
            f'jetstream {{ store_dir: "{data / "store"}", sync_interval: {sync_interval} }}\n'
        )
        with server("nats", [str(program), "-c", str(settings)]) as log:
            runs.until(lambda: "Server is ready" in log.read_text(), "NATS to be ready")
            return script(python, "nats", f"nats://127.0.0.1:{port}", str(waits * NATS_TIMES))

    return job


def temporal(_: Stage, waits: int) -> Rates:
    """Return the rates of Temporal's development server on an SQLite file that is synced."""
    python, program = install.python("temporal"), install.go_program("temporal")
    port = free_port()
    command = [str(program), "server", "start-dev", "--headless", "--ip", "127.0.0.1"]
    command += ["--port", str(port), "--db-filename", str(emptied("temporal") / "store.sqlite")]
    command += ["--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=FULL"]
    with server("temporal", [*command, "--log-level", "error"]):
        health = [str(program), "operator", "cluster", "health", "--address", f"127.0.0.1:{port}"]
        runs.until(lambda: succeeds(health), "Temporal to be ready")
        return script(python, "temporal", f"127.0.0.1:{port}", str(waits))


def restate(_: Stage, waits: int) -> Rates:
    """Return the rates of Restate: awakeables resolved over HTTP, the waiters in a process."""
    python, modules = install.python("restate"), install.node_modules("restate")
    program = next(modules.glob("@restatedev/restate-server-*/bin/restate-server"))
    ports = {name: free_port() for name in ("ingress", "admin", "fabric", "waiters")}
    bind = ["-m", "hypercorn", "service:app", "--bind", f"127.0.0.1:{ports['waiters']}"]
    folder = install.PINS / "restate"
    with (
        server("restate", [str(program), "--no-logo"], settings_of_restate(ports, waits)),
        server("restate-waiters", [str(python), *bind], {}, folder),
    ):
        admin, waiters = (f"http://127.0.0.1:{ports[name]}" for name in ("admin", "waiters"))
        runs.until(lambda: fetched(f"{admin}/health") is not None, "Restate to be ready")
        runs.until(lambda: fetched(f"{waiters}/seen/0") is not None, "its waiters to be ready")
        fetch(f"{admin}/deployments", {"uri": waiters})
        return asyncio.run(resolved(ports["ingress"], waiters, waits))


def settings_of_restate(ports: Mapping[str, int], waits: int) -> dict[str, str]:
    """Return the settings of one node; everything that concerns durability is its default."""
    return {
        "RESTATE_BASE_DIR": str(emptied("restate")),
        "RESTATE_NODE_NAME": "bench",
        "RESTATE_LISTEN_MODE": "tcp",
        "RESTATE_BIND_IP": "127.0.0.1",
        "RESTATE_BIND_PORT": str(ports["fabric"]),
        "RESTATE_INGRESS__BIND_PORT": str(ports["ingress"]),
        "RESTATE_ADMIN__BIND_PORT": str(ports["admin"]),
        "RESTATE_WORKER__INVOKER__CONCURRENT_INVOCATIONS_LIMIT": str(waits + 1000),
        "RESTATE_DISABLE_TELEMETRY": "true",
        "RESTATE_LOG_FILTER": "warn",
    }


async def resolved(ingress: int, waiters: str, waits: int) -> Rates:
    """Open, deliver, see; time each."""
    begun = time.perf_counter()
    await calls(ingress, waits, lambda n: ("/Waiter/wait/send", n))
    names = await asyncio.to_thread(fetch, f"{waiters}/names/{waits}")
    opened = time.perf_counter()
    path = "/restate/awakeables/{}/resolve"
    await calls(ingress, waits, lambda n: (path.format(names[str(n)]), f"event-{n}"))
    delivered = time.perf_counter()
    seen = await asyncio.to_thread(fetch, f"{waiters}/seen/{waits}")
    done = time.perf_counter()
    if not all(seen.values()):
        raise RuntimeError("a waiter saw another event than its own")
    return {
        "open": waits / (opened - begun),
        "deliver": waits / (delivered - opened),
        "seen": waits / (done - opened),
    }


async def calls(port: int, count: int, request: Callable[[int], tuple[str, object]]) -> None:
    """POST what `request` returns for every number below `count`, 32 at a time."""
    done = asyncio.Event()

    async def work(connection: Connection, number: int) -> int:
        if number >= count:
            done.set()
            return 0
        status, answer = await connection.call("POST", *request(number))
        if status != 202:
            raise RuntimeError(f"expected 202, found {status}: {answer[:300]!r}")
        return 1

    await drive(port, lambda _: None, CALLERS, SECONDS, work, done)


def script(python: Path, peer: str, *arguments: str) -> Rates:
    """Run `peer`'s job in its own environment and return what it printed."""
    job = install.PINS / peer / "job.py"
    command = [str(python), str(job), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    if ran.returncode != 0:
        raise RuntimeError(f"{peer} ended with {ran.returncode}: {ran.stderr[-2000:]}")
    return json.loads(ran.stdout.strip().splitlines()[-1])


@contextmanager
def server(
    name: str,
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Iterator[Path]:
    """Run a peer's server while the job runs; yield its log. Raises RuntimeError when it died."""
    log = install.home("logs") / f"{name}.log"
    child = launch(command, environment or {}, log, folder)
    with running([child]):
        yield log
        child.check()


def succeeds(command: Sequence[str]) -> bool:
    """Return whether `command` ends well."""
    return subprocess.run(command, check=False, capture_output=True, timeout=30).returncode == 0


def emptied(peer: str) -> Path:
    """Return the data folder of `peer`, empty."""
    data = install.home(peer) / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir(parents=True)
    return data


def fetch(url: str, body: object = None) -> dict[str, object]:
    """Return the JSON that `url` answers with, to a POST when there is a body."""
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
        text = answer.read()
        return json.loads(text) if text else {}


def fetched(url: str) -> dict[str, object] | None:
    """Return what `fetch` returns, None while nobody answers."""
    try:
        return fetch(url)
    except (urllib.error.URLError, OSError):
        return None
