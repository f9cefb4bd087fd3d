"""The job for DBOS, in its own environment: N workflows wait, N events come, N results.

`python job.py SYSTEM_DATABASE_URL N recv|get_event`; prints one JSON object of rates.
"""

import json
import sys
import time
from collections.abc import Callable

from dbos import DBOS, SetWorkflowID, WorkflowHandle

URL, COUNT, KIND = sys.argv[1], int(sys.argv[2]), sys.argv[3]
SECONDS = 600

DBOS(config={"name": "bench", "system_database_url": URL, "log_level": "ERROR"})


@DBOS.workflow()
def wait_for_message() -> str:
    """Wait for one message, durably."""
    return DBOS.recv("event", timeout_seconds=SECONDS)


@DBOS.workflow()
def wait_for_event(source: str) -> str:
    """Wait for the event of another workflow, durably."""
    return DBOS.get_event(source, "event", timeout_seconds=SECONDS)


@DBOS.workflow()
def give_event(value: str) -> None:
    """Set the event of this workflow."""
    DBOS.set_event("event", value)


def started(name: str, workflow: Callable[..., object], *given: str) -> WorkflowHandle:
    """Start `workflow` under the id `name`."""
    with SetWorkflowID(name):
        return DBOS.start_workflow(workflow, *given)


def open_waits() -> list[WorkflowHandle]:
    """Start the waiting workflows."""
    if KIND == "recv":
        return [started(f"wait-{n}", wait_for_message) for n in range(COUNT)]
    return [started(f"wait-{n}", wait_for_event, f"source-{n}") for n in range(COUNT)]


def deliver() -> None:
    """Send each waiter its event and return when all are durable."""
    if KIND == "recv":
        for number in range(COUNT):
            DBOS.send(f"wait-{number}", f"event-{number}", "event")
        return
    sources = [started(f"source-{n}", give_event, f"event-{n}") for n in range(COUNT)]
    for source in sources:
        source.get_result()


def main() -> None:
    """Open, deliver, see; time each."""
    DBOS.launch()
    begun = time.perf_counter()
    waits = open_waits()
    opened = time.perf_counter()
    deliver()
    delivered = time.perf_counter()
    seen = [wait.get_result() for wait in waits]
    done = time.perf_counter()
    if seen != [f"event-{number}" for number in range(COUNT)]:
        raise SystemExit("a waiter saw another event than its own")
    rates = {
        "open": COUNT / (opened - begun),
        "deliver": COUNT / (delivered - opened),
        "seen": COUNT / (done - opened),
    }
    print(json.dumps(rates), flush=True)
    DBOS.destroy()


main()
