"""One mailbox driven at random against a model: what it says must be what the model says.

The clock stands still but where a rule moves it, so the model knows what has expired.
"""

import uuid
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from relay_common.avro import Codec
from relay_common.cursors import Cursors
from relay_common.db import installation, open_pool
from relay_common.tokens import TokenVerifier
from relay_mailbox.domain.record import DEAD_LETTER_NOTICE, NewRecord, Owner
from relay_mailbox.http.app import AppParts, mailbox_app
from relay_mailbox.operations.abuse import AbuseDesk
from relay_mailbox.operations.append import Appending
from relay_mailbox.store.appends import raise_incarnation

MAX_REDELIVERIES = 1
LEASE_SECONDS = 30


@dataclass
class Modelled:
    """A record as the model has it; times are seconds of the model's clock."""

    message_id: bytes
    type: str
    state: str
    deliveries: int = 0
    lease: str | None = None
    until: float = 0
    available_at: float = 0

    def leasable(self, now: float) -> bool:
        if self.state == "available":
            return self.available_at <= now
        return self.state == "leased" and self.until <= now

    def shown(self, now: float) -> tuple[str, int]:
        expired = self.state == "leased" and self.until <= now
        return ("available" if expired else self.state, self.deliveries)


@dataclass
class Model:
    """What the contract says happens."""

    now: float = 0
    suspended: bool = False
    epoch: int | None = None
    records: list[Modelled] = field(default_factory=list)

    def candidates(self, count: int) -> list[int]:
        found = [s for s, r in enumerate(self.records, 1) if r.leasable(self.now)]
        return found[:count]

    def at(self, seq: int) -> Modelled:
        return self.records[seq - 1]

    def bury(self, count: int) -> None:
        """Dead-letter what is exhausted among the next `count`, with one notice each."""
        while dead := [
            s for s in self.candidates(count) if self.at(s).deliveries > MAX_REDELIVERIES
        ]:
            for seq in dead:
                self.at(seq).state = "dead_lettered"
            told = [s for s in dead if self.at(s).type != DEAD_LETTER_NOTICE]
            for _ in told:
                self.records.append(Modelled(uuid.uuid4().bytes, DEAD_LETTER_NOTICE, "available"))

    def lease(self, count: int) -> list[int]:
        """Return what is leased: in order, and redelivered ones alone."""
        self.bury(count)
        taken: list[int] = []
        for seq in self.candidates(count):
            alone = self.at(seq).deliveries >= max(1, min(2, MAX_REDELIVERIES))
            if taken and alone:
                break
            taken.append(seq)
            if alone:
                break
        return taken

    def acknowledge(self, lease: str, seq: int) -> str:
        if not 1 <= seq <= len(self.records):
            return "not_found"
        record = self.at(seq)
        if record.state == "acked":
            return "already_acked"
        if record.state == "leased" and record.lease == lease and record.until > self.now:
            record.state = "acked"
            return "acked"
        return "lease_lost"


class Mailbox(RuleBasedStateMachine):
    """The rules; each calls the service and asks the model what should have come."""

    world: "World"

    def __init__(self) -> None:
        super().__init__()
        self.owner = f"agent:{uuid.uuid4().hex}"
        self.token = self.world.issuer.token(self.owner, scope="mailbox:read mailbox:ack")
        self.model = Model()
        self.leases: list[str] = []

    def call(self, method: str, path: str, body: object = None, token: str | None = None):
        headers = {
            "authorization": f"Bearer {token or self.token}",
            "idempotency-key": uuid.uuid4().hex,
        }
        url = f"/v1/mailboxes/{self.owner}{path}"
        return self.world.client.request(method, url, json=body, headers=headers)

    def epoch(self) -> int:
        return self.call("GET", "").json()["epoch"]

    @rule(count=st.integers(1, 5), state=st.sampled_from(["available", "held", "acked"]))
    def append(self, count: int, state: str) -> None:
        self.add([self.new(state) for _ in range(count)])

    @rule(data=st.data())
    def append_what_supersedes_another(self, data: st.DataObject) -> None:
        if not self.model.records:
            return
        superseded = data.draw(st.sampled_from(self.model.records))
        self.add([self.new("available", superseded.message_id)])
        superseded.state = "acked"

    def new(self, state: str, supersedes: bytes | None = None) -> NewRecord:
        to = Owner("acme", "test", self.owner)
        kind = "early_event" if state == "held" else "waitpoint_event"
        return NewRecord(to, uuid.uuid4().bytes, kind, "note", state, b"{}", supersedes=supersedes)

    def add(self, records: list[NewRecord]) -> None:
        with self.world.conn.transaction():
            fresh = self.world.appending.append(self.world.conn, [*records, records[0]])
        assert len(fresh) == len(records)
        for record in records:
            self.model.records.append(Modelled(record.message_id, "note", record.state))
        self.model.epoch = fresh[0].epoch

    @rule(count=st.integers(1, 6))
    def lease(self, count: int) -> None:
        body = {"max_records": count, "lease_seconds": LEASE_SECONDS}
        answer = self.call("POST", "/leases", body)
        if self.model.suspended:
            assert answer.json()["code"] == "mailbox_suspended"
            return
        got = answer.json()
        expected = self.model.lease(count)
        assert [record["seq"] for record in got["records"]] == expected
        if not expected:
            assert got["lease_id"] is None
            return
        self.leases.append(got["lease_id"])
        for seq, shown in zip(expected, got["records"], strict=True):
            record = self.model.at(seq)
            record.state, record.lease = "leased", got["lease_id"]
            record.deliveries += 1
            record.until = self.model.now + LEASE_SECONDS
            record.available_at = 0
            assert shown["deliveries"] == record.deliveries

    @rule(data=st.data(), stale_epoch=st.sampled_from([False, False, False, True]))
    def acknowledge(self, data: st.DataObject, stale_epoch: bool) -> None:
        if not self.leases:
            return
        lease = data.draw(st.sampled_from(self.leases))
        top = len(self.model.records) + 2
        seqs = data.draw(st.lists(st.integers(1, top), min_size=1, max_size=4))
        body = {"lease_id": lease, "epoch": self.epoch() - stale_epoch, "seqs": seqs}
        answer = self.call("POST", "/acks", body)
        if stale_epoch:
            assert answer.json()["reason"] == "epoch_changed"
        elif self.model.suspended:
            assert answer.json()["code"] == "mailbox_suspended"
        else:
            results = [one["result"] for one in answer.json()["results"]]
            assert results == [self.model.acknowledge(lease, seq) for seq in seqs]

    @rule(data=st.data(), delay=st.sampled_from([0, 10]))
    def release(self, data: st.DataObject, delay: int) -> None:
        if not self.leases or self.model.suspended:
            return
        lease = data.draw(st.sampled_from(self.leases))
        answer = self.call("POST", f"/leases/{lease}/release", {"delay_seconds": delay})
        held = [r for r in self.model.records if self.runs(r, lease)]
        assert answer.status_code == (200 if held else 409)
        for record in held:
            record.state, record.lease = "available", None
            record.available_at = self.model.now + delay

    @rule(data=st.data())
    def extend(self, data: st.DataObject) -> None:
        if not self.leases or self.model.suspended:
            return
        lease = data.draw(st.sampled_from(self.leases))
        answer = self.call("POST", f"/leases/{lease}/extend", {"lease_seconds": 45})
        held = [r for r in self.model.records if self.runs(r, lease)]
        assert answer.status_code == (200 if held else 409)
        for record in held:
            record.until = self.model.now + 45

    def runs(self, record: Modelled, lease: str) -> bool:
        return record.state == "leased" and record.lease == lease and record.until > self.model.now

    @rule(seconds=st.sampled_from([5, 29, 31]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.shift(timedelta(seconds=seconds))
        self.model.now += seconds

    @rule(all_of_them=st.booleans(), data=st.data())
    def redrive(self, all_of_them: bool, data: st.DataObject) -> None:
        dead = [s for s, r in enumerate(self.model.records, 1) if r.state == "dead_lettered"]
        chosen = dead if all_of_them or not dead else [data.draw(st.sampled_from(dead))]
        body = {"all": True} if all_of_them else {"seqs": chosen or [1]}
        answer = self.call("POST", "/dead-letters/redrive", body)
        assert answer.json() == {"redriven": len(chosen)}
        for seq in chosen:
            record = self.model.at(seq)
            record.state, record.deliveries, record.available_at = "available", 0, 0

    @rule(suspended=st.booleans())
    def set_state(self, suspended: bool) -> None:
        self.call("GET", "")
        body = {"state": "suspended" if suspended else "active"}
        assert self.call("PUT", "/state", body, self.world.operator).status_code == 200
        self.model.suspended = suspended

    @rule()
    def postgres_goes_back_in_time(self) -> None:
        raise_incarnation(self.world.conn, "tested")
        before = self.epoch()
        self.add([self.new("available")])
        assert self.epoch() > before

    @invariant()
    def what_is_shown_is_what_the_model_says(self) -> None:
        page = self.call("GET", "/records?limit=1000").json()
        shown = [(r["state"], r["deliveries"]) for r in page["records"]]
        assert shown == [r.shown(self.model.now) for r in self.model.records]
        assert [r["seq"] for r in page["records"]] == list(range(1, page["head"] + 1))
        if self.model.epoch is not None:
            assert page["epoch"] == self.model.epoch


@dataclass
class World:
    """The service the machines run on."""

    client: TestClient
    conn: object
    appending: Appending
    clock: object
    issuer: object
    operator: str


@pytest.mark.spec("MB-LEASE", "MB-ACK", "MB-DEAD", "MB-HELD", "MB-AVAILABLE", "MB-STATE")
@pytest.mark.timeout(300)
def test_a_mailbox_does_what_the_model_says(database, clock, issuer, stream):
    clock.freeze()
    pool = open_pool(database.conninfo("relay_mailbox_http"), "mailbox machine", 2)
    verifier = TokenVerifier(issuer.url, issuer.audience, issuer.fetch_jwks)
    seed = installation(database.owner).hash_seed
    desk = AbuseDesk(Codec(), "relay.topics", 2)
    app = mailbox_app(AppParts(verifier, pool, seed, Cursors(b"a secret of the test"), desk))
    database.owner.execute(
        "insert into mailbox.tenant_setting (tenant, environment, max_redeliveries)"
        " values ('acme', 'test', %s)",
        (MAX_REDELIVERIES,),
    )
    operator = issuer.token("subscriber:sre", scope="operator")
    with TestClient(app) as client:
        appending = Appending(Codec(), "relay.hints", 2)
        world = World(client, stream, appending, clock, issuer, operator)
        run_state_machine_as_test(
            type("MailboxOfThisTest", (Mailbox,), {"world": world}),
            settings=settings(
                max_examples=15,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
