"""The long profile: faults in a random order, for as long as RELAY_FAULT_SECONDS says."""

import os
import random
import time
from collections.abc import Callable

import psycopg
import pytest

from tests.integration.clients import Program
from tests.integration.conftest import Place
from tests.integration.deployment import SERVICES, Deployment
from tests.integration.load import Load

SECONDS = float(os.environ.get("RELAY_FAULT_SECONDS", "600"))
SEED = int(os.environ.get("RELAY_FAULT_SEED", "20261130"))
ROUNDS_BETWEEN = 5
CUT = """
select count(pg_terminate_backend(pid)) from pg_stat_activity
where usename like 'relay\\_%' and pid <> pg_backend_pid()
"""


def kill(stack: Deployment, service: str) -> None:
    """Kill a service and start it again."""
    stack.kill(service)
    stack.start(service)


def stop(stack: Deployment, service: str) -> None:
    """End a service as an update would, and start it again."""
    stack.stop(service)
    stack.start(service)


def freeze(stack: Deployment, service: str) -> None:
    """Freeze a service until the load has felt it."""
    stack.pause(service)
    time.sleep(8)  # past the session timeout: this fault is a time
    stack.resume(service)


def kill_broker(stack: Deployment, _service: str) -> None:
    """Kill the broker and start it again."""
    stack.kafka.kill()
    stack.kafka.start_broker()


def crash_postgres(stack: Deployment, _service: str) -> None:
    """Stop Postgres without a checkpoint and start it again."""
    stack.postgres.restart("immediate")


def cut_connections(stack: Deployment, _service: str) -> None:
    """End every connection of the services."""
    with psycopg.connect(stack.database_url, autocommit=True) as conn:
        conn.execute(CUT)


FAULTS = (kill, kill, stop, freeze, kill_broker, crash_postgres, cut_connections)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 300)
def test_faults_in_any_order_lose_nothing_and_double_nothing(
    stack: Deployment,
    program: Callable[..., Program],
    place: Place,
    verify: Callable[[], None],
) -> None:
    chance, done = random.Random(SEED), []
    end = time.monotonic() + SECONDS
    try:
        with Load(stack, program, place) as load:
            while time.monotonic() < end:
                fault, service = chance.choice(FAULTS), chance.choice(SERVICES)
                done.append(f"{fault.__name__} {service}")
                fault(stack, service)
                load.until_rounds(ROUNDS_BETWEEN, 90)
            stack.until_ready()
        load.until_all_acknowledged()
        verify()
    finally:
        print(f"seed {SEED}: {done}")
