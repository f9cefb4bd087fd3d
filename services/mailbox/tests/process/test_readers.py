"""A reader killed anywhere between lease and acknowledgement loses nothing (spec, Mailbox)."""

import subprocess
import sys
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from relay_common.testing import wait

READING = Path(__file__).with_name("reading.py")
# Where the reader dies, and which records were certainly delivered, and acked, by then.
POINTS = {
    "before_lease": (set(), set()),
    "lease_sent": (set(), set()),
    "after_lease": ({1, 2, 3, 4}, set()),
    "first_ack_sent": ({1, 2, 3, 4}, set()),
    "after_first_ack": ({1, 2, 3, 4}, {1, 2}),
    "second_ack_sent": ({1, 2, 3, 4}, {1, 2}),
    "after_second_ack": ({1, 2, 3, 4}, {1, 2, 3, 4}),
}


class Successor:
    """The reader who takes over: leases and acknowledges until everything is acked."""

    def __init__(self, caller, clock) -> None:
        self.caller = caller
        self.clock = clock
        self.deliveries: dict[int, int] = {}

    def done(self) -> bool:
        """Lease once more, acknowledge what came, and say whether all four are acked."""
        body = {"max_records": 10, "lease_seconds": 60}
        lease = self.caller.post("/leases", body, uuid.uuid4().hex).json()
        if records := lease["records"]:
            self.deliveries |= {record["seq"]: record["deliveries"] for record in records}
            seqs = [record["seq"] for record in records]
            done = {"lease_id": lease["lease_id"], "epoch": records[0]["epoch"], "seqs": seqs}
            results = self.caller.post("/acks", done, uuid.uuid4().hex).json()["results"]
            assert {one["result"] for one in results} == {"acked"}
        else:
            self.clock.shift(timedelta(seconds=61))  # the lease of the dead one ends
        return self.caller.get()["counts"]["acked"] == 4


@pytest.mark.spec("MB-LEASE", "MB-AT-LEAST-ONCE")
def test_a_reader_killed_at_any_point_leaves_every_record_to_the_next(
    process, producing, caller, issuer, clock
):
    for point in POINTS:
        producing.send(f"agent:{point}", 4)
    process.start()
    for point, (delivered, acked) in POINTS.items():
        agent = f"agent:{point}"
        wait.until(lambda agent=agent: caller(agent).get()["head"] == 4, 20)
        token = issuer.token(agent, scope="mailbox:read mailbox:ack")
        argv = [sys.executable, str(READING), f"127.0.0.1:{process.port}", token, point]
        assert subprocess.run(argv, check=False, timeout=30).returncode == -9, point

        successor = Successor(caller(agent), clock)
        wait.until(successor.done, 20, point)
        assert set(successor.deliveries).isdisjoint(acked), point
        again = {seq for seq, count in successor.deliveries.items() if count == 2}
        if not point.endswith("_sent"):
            assert set(successor.deliveries) == {1, 2, 3, 4} - acked, point
            assert again == delivered - acked, point
