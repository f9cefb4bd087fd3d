"""Programs that go on working while parts of Relay die: open, publish, lease, acknowledge."""

import threading
from collections.abc import Callable
from types import TracebackType

import httpx
from relay_common.testing.wait import until

from tests.integration.clients import Json, Program, event, good, opening
from tests.integration.conftest import Place
from tests.integration.deployment import Deployment

LEASE_SECONDS = 2


class Load:
    """One that waits and publishes, one that leases, one that follows, until the block ends.

    In odd rounds the event comes first. Every call is repeated with its key until it is answered.
    """

    def __init__(self, stack: Deployment, program: Callable[..., Program], place: Place) -> None:
        self._stack = stack
        self._place = place
        self.waiter = program("client:checkout")
        self.publisher = program("client:shop")
        self.opened: list[str] = []
        self.acked: list[Json] = []
        self.followed: list[int] = []  # seqs, as a reader that never looks back has seen them
        self.rounds = 0
        self._epoch: int | None = None
        self._stop = threading.Event()
        self._faults: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guard, args=(work,), name=f"load-{number}")
            for number, work in enumerate((self._work, self._read, self._follow))
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if error is None and self._faults:
            raise self._faults[0]

    def until_rounds(self, more: int, seconds: float = 40) -> None:
        """Wait until `more` rounds from now have been played."""
        goal = self.rounds + more
        until(
            lambda: self.rounds >= goal or bool(self._faults),
            seconds,
            lambda: f"{self.rounds} of {goal} rounds",
        )

    def until_all_acknowledged(self) -> None:
        """Wait until each waitpoint is resolved and its two or three records are acknowledged.

        Belongs after the block: the reader has ended, this reads on.
        """
        until(self._everything_resolved, 40, "every waitpoint resolved")
        wanted = {
            (waitpoint, kind)
            for waitpoint in self.opened
            for kind in ("waitpoint.created", "waitpoint.resolved")
        }
        until(lambda: self._told_all(wanted), 40, lambda: f"{wanted - self._told()} acknowledged")
        assert self._told() == wanted
        while self._follow_once():
            pass
        head = (self.waiter.mailbox() or {})["head"]
        assert self.followed == list(range(1, head + 1))

    def _everything_resolved(self) -> bool:
        with self._stack.database() as conn:
            query = (
                "select state::text, count(*) from matcher.waitpoint where tenant = %s group by 1"
            )
            found = dict(conn.execute(query, (self._place.tenant,)).fetchall())
        return found == {"resolved": len(self.opened)}

    def _told_all(self, wanted: set[tuple[str, str]]) -> bool:
        self._read_once()
        counts = (self.waiter.mailbox() or {})["counts"]
        return self._told() >= wanted and counts["available"] == counts["leased"] == 0

    def _told(self) -> set[tuple[str, str]]:
        return {(r["body"]["waitpoint"]["id"], r["type"]) for r in self.acked}

    def _work(self) -> None:
        while not self._stop.is_set():
            number, early = self.rounds, self.rounds % 2
            steps = [self._publish, self._open] if early else [self._open, self._publish]
            for step in steps:
                step(number)
            self.rounds += 1

    def _open(self, number: int) -> None:
        body = opening("order.paid", self._place.key(number))
        self.opened.append(self.waiter.persist("/v1/waitpoints", body)["id"])

    def _publish(self, number: int) -> None:
        sent = event("order.paid", self._place.key(number), data=self._place.data)
        self.publisher.persist("/v1/events", sent)

    def _read(self) -> None:
        while not self._stop.is_set():
            if self._read_once() == 0:
                self._stop.wait(0.02)

    def _follow(self) -> None:
        while not self._stop.is_set():
            if self._follow_once() == 0:
                self._stop.wait(0.02)

    def _follow_once(self) -> int:
        epoch = {} if self._epoch is None else {"epoch": self._epoch}
        since = len(self.followed)
        path = "/v1/mailboxes/me/records"
        try:
            answer = self.waiter.request("GET", path, params={"since": since, **epoch})
        except httpx.TransportError:
            return 0
        if answer.status_code in (404, 503):
            return 0
        page = good(answer)
        self._epoch = page["epoch"]
        self.followed += [record["seq"] for record in page["records"]]
        return len(page["records"])

    def _read_once(self) -> int:
        wanted = {"max_records": 10, "lease_seconds": LEASE_SECONDS}
        lease = self.waiter.persist("/v1/mailboxes/me/leases", wanted)
        records = lease["records"]
        if records:
            body = {"lease_id": lease["lease_id"], "epoch": records[0]["epoch"]}
            body["seqs"] = [record["seq"] for record in records]
            results = self.waiter.persist("/v1/mailboxes/me/acks", body)["results"]
            good = {r["seq"] for r in results if r["result"] == "acked"}
            self.acked += [record for record in records if record["seq"] in good]
        return len(records)

    def _guard(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._faults.append(error)
