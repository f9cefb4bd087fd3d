"""A writer for the loss test: appends through the service's own function until it is killed.

Slow commits, rollbacks, and its log says only what was acknowledged: the ids go to a file after the
commit. Started as a process of its own, so that `kill -9` is real.
"""

import os
import random
import sys
import time
import uuid

from psycopg import OperationalError
from relay_common.db import connect
from relay_mailbox.domain.record import NewRecord, Owner
from relay_mailbox.store.appends import append_records

OWNERS = ["agent:hot", "agent:warm", "agent:quiet"]


class GiveUp(Exception):
    """Rolls the transaction back."""


def batch(rng: random.Random) -> list[NewRecord]:
    """Return one to eight records, mostly for the hot mailbox."""
    size = rng.choice([1, 1, 2, 3, 8])
    owners = rng.choices(OWNERS, weights=[8, 2, 1], k=size)
    return [
        NewRecord(
            to=Owner("acme", "prod", owner),
            message_id=uuid.uuid4().bytes,
            kind="message",
            type="note",
            state="available",
            body=b"{}",
        )
        for owner in owners
    ]


def main(conninfo: str, log_path: str, seed: int) -> None:
    """Append for ever; 5% are rolled back, 4% commit late."""
    rng = random.Random(seed)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    conn = connect(conninfo, "loss test writer")
    while True:
        records = batch(rng)
        try:
            with conn.transaction():
                append_records(conn, records)
                fate = rng.random()
                if fate < 0.04:
                    conn.execute("select pg_sleep(%s)", (rng.uniform(0.01, 0.06),))
                if fate > 0.95:
                    raise GiveUp  # noqa: TRY301 -- what rolls back is the point
        except (GiveUp, OperationalError):
            continue
        os.write(log, b"".join(record.message_id for record in records))
        time.sleep(rng.uniform(0.0, 0.02))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
