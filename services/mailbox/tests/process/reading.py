"""A reader that is killed at a named point: python reading.py ADDRESS TOKEN POINT.

ADDRESS is host:port. Started as a process of its own, so that `kill -9` is real.
"""

import http.client
import json
import os
import signal
import sys


class Reader:
    """Leases four records, acknowledges two, then the other two."""

    def __init__(self, address: str, token: str, point: str) -> None:
        self.conn = http.client.HTTPConnection(address, timeout=30)
        self.token = token
        self.point = point

    def here(self, point: str) -> None:
        """Die when this is the point."""
        if point == self.point:
            os.kill(os.getpid(), signal.SIGKILL)

    def post(self, path: str, body: object, name: str) -> dict:
        """Send a request and read its answer; both are points."""
        headers = {"authorization": f"Bearer {self.token}", "content-type": "application/json"}
        headers["idempotency-key"] = name
        self.here(f"before_{name}")
        self.conn.request("POST", f"/v1/mailboxes/me{path}", json.dumps(body), headers)
        self.here(f"{name}_sent")
        answer = json.loads(self.conn.getresponse().read())
        self.here(f"after_{name}")
        return answer

    def run(self) -> None:
        """Read as far as the point allows."""
        lease = self.post("/leases", {"max_records": 4, "lease_seconds": 60}, "lease")
        epoch = lease["records"][0]["epoch"]
        for name, seqs in (("first_ack", [1, 2]), ("second_ack", [3, 4])):
            done = {"lease_id": lease["lease_id"], "epoch": epoch, "seqs": seqs}
            self.post("/acks", done, name)


if __name__ == "__main__":
    Reader(*sys.argv[1:]).run()
