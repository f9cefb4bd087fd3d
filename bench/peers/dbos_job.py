"""The job for DBOS, in its own environment: N workflows wait in recv, N sends, N results.

`python dbos_job.py SYSTEM_DATABASE_URL N`; prints one JSON object of rates.
"""

import json
import sys
import time

from dbos import DBOS, SetWorkflowID

URL, COUNT = sys.argv[1], int(sys.argv[2])

DBOS(config={"name": "bench", "system_database_url": URL, "log_level": "ERROR"})


@DBOS.workflow()
def wait_for_event() -> str:
    """Wait for one event, durably."""
    return DBOS.recv("event", timeout_seconds=600)


def main() -> None:
    """Open, deliver, see; time each."""
    DBOS.launch()
    handles = []
    begun = time.perf_counter()
    for number in range(COUNT):
        with SetWorkflowID(f"wait-{number}"):
            handles.append(DBOS.start_workflow(wait_for_event))
    opened = time.perf_counter()
    for number in range(COUNT):
        DBOS.send(f"wait-{number}", f"event-{number}", "event")
    delivered = time.perf_counter()
    seen = [handle.get_result() for handle in handles]
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
