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


def large_or_one(seed: int) -> list[NewRecord]:
    """Return 500 records from every eighth writer, one from the others."""
    size = 500 if seed % 8 == 0 else 1
    to = Owner("acme", "prod", "agent:hot")
    ids = [uuid.uuid4().bytes for _ in range(size)]
    return [NewRecord(to, one, "message", "note", "available", b"{}") for one in ids]


def main(conninfo: str, log_path: str, seed: int, pooled: str = "") -> None:
    """Append for ever; 5% are rolled back, 4% commit late.

    `pooled` is what a transaction pooler makes of it: each transaction on another backend, which
    keeps nothing of the one before; batches of 500 beside single records.
    """
    rng = random.Random(seed)
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    backends = [connect(conninfo, "loss test writer") for _ in range(3 if pooled else 1)]
    while True:
        conn = rng.choice(backends)
        if pooled:
            conn.execute("discard all")
        records = large_or_one(seed) if pooled else batch(rng)
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
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
