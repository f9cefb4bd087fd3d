"""`python -m bench.peers [--waits N]`: Relay and DBOS at the same job, on the same Postgres.

Every peer is installed into an environment of its own under the ignored state folder. Fairness:
the Postgres is one and the same, with fsync and synchronous_commit on, for both; DBOS also runs and
journals the waiter's code, Relay stops at a durable record in the waiter's mailbox; DBOS gets its
events one call at a time from one process, Relay's come through Kafka (acks=all, one broker).
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict

from bench import report
from bench.clients import Connection, drive
from bench.database import open_database, remove_waitpoints, restore
from bench.events import message, push
from bench.figures import Figure
from bench.pipeline import Pipeline, running_pipeline
from bench.profile import QUICK
from bench.runs import MATCHER_TOPIC, until
from bench.stage import Stage, open_stage

DBOS = "dbos==3.4.0"
DATABASE = "bench_peer_dbos"
CALLERS = 32
STEPS = {
    "open": "waits opened",
    "deliver": "events delivered",
    "seen": "events delivered and seen by their waiters",
}


def main() -> int:
    """Run both and print the table."""
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("--waits", type=int, default=1000)
    waits = parser.parse_args().waits
    with open_stage(QUICK, keep=False) as stage:
        relay = job_of_relay(stage, waits)
        dbos = job_of_dbos(stage, waits)
    figures = [
        Figure("peers", f"Relay: {what}", "1/s", (relay[step],), {"DBOS": dbos[step]})
        for step, what in STEPS.items()
    ]
    figures += [
        Figure("peers", f"DBOS: {what}", "1/s", (dbos[step],)) for step, what in STEPS.items()
    ]
    report.show(figures, f"{waits:,} waits, {waits:,} events")
    report.say(str(__doc__).split("\n\n", 1)[1])
    report.say(
        f"Postgres: {stage.profile.shared_buffers} of buffers, fsync and synchronous_commit on"
    )
    return 0


def job_of_relay(stage: Stage, waits: int) -> dict[str, float]:
    """Return the rates of Relay: openings over HTTP, events over the topic, mailbox records."""
    database = open_database(stage, QUICK.open_sizes[0])
    restore(database)
    remove_waitpoints(database, "peer-")
    with running_pipeline(stage, database) as pipeline:
        rate = asyncio.run(openings(pipeline, waits))
        chance = random.Random(waits)
        events = [message(f"peer-{n}", f"peer{n}", chance) for n in range(waits)]
        begun = time.perf_counter()
        push(stage.bootstrap, MATCHER_TOPIC, events)
        delivered = time.perf_counter()
        query = "select count(*) from mailbox.record where type = 'waitpoint.resolved'"
        with psycopg.connect(database.url, autocommit=True) as conn:
            until(lambda: conn.execute(query).fetchone()[0] == waits, "all records", 120)
        done = time.perf_counter()
    remove_waitpoints(database, "peer-")
    return {
        "open": rate,
        "deliver": waits / (delivered - begun),
        "seen": waits / (done - begun),
    }


async def openings(pipeline: Pipeline, waits: int) -> float:
    """Open `waits` event waitpoints over HTTP; return how many per second."""
    expires_at = (datetime.now(UTC) + timedelta(days=1)).isoformat()  # noqa: TID251 - a client
    done = asyncio.Event()

    async def work(connection: Connection, number: int) -> int:
        if number >= waits:
            done.set()
            return 0
        match = {"event_type": "payment.settled", "correlation_key": f"peer-{number}"}
        body = {"kind": "event", "match": match, "expires_at": expires_at}
        status, answer = await connection.call("POST", "/v1/waitpoints", body)
        if status != 201:
            raise RuntimeError(f"expected 201, found {status}: {answer[:300]!r}")
        return 1

    tokens = [pipeline.token(f"agent:peer-{number}") for number in range(CALLERS)]
    begun = time.perf_counter()
    await drive(pipeline.matcher_port, tokens.__getitem__, CALLERS, 600, work, done)
    return waits / (time.perf_counter() - begun)


def job_of_dbos(stage: Stage, waits: int) -> dict[str, float]:
    """Return the rates of DBOS, installed apart, on the same server."""
    python = environment(stage.folder.parent / "bench-peers" / "dbos", DBOS)
    with psycopg.connect(stage.postgres_url, autocommit=True) as conn:
        conn.execute(f"drop database if exists {DATABASE}")
        conn.execute(f"create database {DATABASE}")
    parts = conninfo_to_dict(stage.postgres_url)
    login = f"{parts['user']}:{parts['password']}@{parts['host']}:{parts['port']}"
    script = Path(__file__).with_name("dbos_job.py")
    ran = subprocess.run(
        [python, str(script), f"postgresql://{login}/{DATABASE}", str(waits)],
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    if ran.returncode != 0:
        raise RuntimeError(f"DBOS ended with {ran.returncode}: {ran.stderr[-2000:]}")
    return json.loads(ran.stdout.strip().splitlines()[-1])


def environment(folder: Path, *packages: str) -> str:
    """Return the interpreter of an environment that has `packages`, made if it is not there."""
    python = folder / "bin" / "python"
    mark = folder / "installed"
    if not mark.exists():
        uv = str(Path(sys.executable).with_name("uv"))
        subprocess.run([uv, "venv", "--quiet", "--clear", str(folder)], check=True)
        install = [uv, "pip", "install", "--quiet", "--python", str(python), *packages]
        subprocess.run(install, check=True)
        mark.write_text("\n".join(packages))
    return str(python)


if __name__ == "__main__":
    sys.exit(main())
