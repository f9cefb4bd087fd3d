"""Idempotent mutations through the combiner, on a real database: one effect a key."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

import psycopg
import pytest
from relay_common.combiner import Answer, Combiner, answer
from relay_common.db import AsyncConnection, Pool, open_pool
from relay_common.errors import (
    DeadlinePassed,
    LimitExceeded,
    RelayError,
    StoreUnavailable,
    WaitpointAlreadyActive,
)
from relay_common.idempotency import Attempt, Call, expire_keys, fingerprint, mutation
from relay_common.testing.databases import Clock, Database
from relay_common.tokens import Caller

SEED = 42
WHO = Caller("client:shop", "acme", "prod", frozenset(), "shop", "t-1")
ADD = "insert into effect (tenant, name) select current_setting('relay.tenant'), unnest(%s::text[])"


@dataclass
class Shop:
    """An operation that adds names to a table, and refuses or fails where it is told to."""

    returns: dict[str, RelayError] = field(default_factory=dict)
    raises: dict[str, Exception] = field(default_factory=dict)
    batches: list[list[str]] = field(default_factory=list)

    async def add(
        self, conn: AsyncConnection, calls: Sequence[Call[str]]
    ) -> Sequence[Answer | RelayError]:
        names = [call.given for call in calls]
        self.batches.append(names)
        good = [name for name in names if name not in self.returns]
        await conn.execute("set local lock_timeout = '200ms'")
        await conn.execute(ADD, (good,))
        for name in names:
            if name in self.raises:
                raise self.raises[name]
        return [self.returns.get(name) or answer(201, {"added": name}) for name in names]


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
async def pool(database: Database) -> AsyncIterator[Pool]:
    database.owner.execute(
        "create table intake.effect"
        " (id bigint generated always as identity, tenant text, name text unique)"
    )
    async with open_pool(database.conninfo("relay_intake_http"), "test", 8) as opened:
        yield opened


@pytest.fixture
def combiner(pool: Pool, shop: Shop) -> Combiner[Call[str]]:
    return Combiner(pool, mutation(shop.add, SEED))


def a_call(key: str, name: str, who: Caller = WHO, route: str = "POST /things") -> Call[str]:
    attempt = Attempt(
        who.tenant, who.environment, who.sub, route, key, fingerprint({"name": name}, "/things")
    )
    return Call(who, attempt, name)


async def send(combiner: Combiner[Call[str]], call: Call[str]) -> Answer:
    return await combiner.submit(call.caller.tenant, call.caller.environment, call)


def effects(database: Database) -> list[str]:
    return [row[0] for row in database.owner.execute("select name from intake.effect order by id")]


def stored_keys(database: Database) -> int:
    return database.owner.execute("select count(*) from intake.idempotency_key").fetchall()[0][0]


async def test_a_repeat_gets_the_stored_answer(combiner: Combiner[Call[str]], database: Database):
    first = await send(combiner, a_call("k", "cup"))
    again = await send(combiner, a_call("k", "cup"))
    assert (first.status, first.body) == (201, b'{"added":"cup"}')
    assert "idempotent-replayed" not in first.headers
    assert (again.status, again.body) == (first.status, first.body)
    assert again.headers == {**first.headers, "idempotent-replayed": "true"}
    assert effects(database) == ["cup"]


async def test_another_payload_under_the_key_is_refused(
    combiner: Combiner[Call[str]], database: Database
):
    await send(combiner, a_call("k", "cup"))
    other = await send(combiner, a_call("k", "plate"))
    assert (other.status, b"idempotency_key_reused" in other.body) == (422, True)
    assert effects(database) == ["cup"]
    assert (await send(combiner, a_call("k", "cup"))).status == 201


async def test_a_key_in_flight_elsewhere_is_a_conflict(
    combiner: Combiner[Call[str]], database: Database
):
    call = a_call("k", "cup")
    with database.connect().transaction() as held:
        held.connection.execute("select pg_advisory_xact_lock(%s)", (call.attempt.lock(SEED),))
        found = await send(combiner, call)
        assert (found.status, b"idempotency_in_progress" in found.body) == (409, True)
        assert found.headers["retry-after"] == "1"
    assert (await send(combiner, call)).status == 201
    assert effects(database) == ["cup"]


async def test_the_same_key_twice_in_one_batch_is_carried_out_once(
    combiner: Combiner[Call[str]], shop: Shop, database: Database
):
    found = await asyncio.gather(*(send(combiner, a_call("k", "cup")) for _ in range(20)))
    assert [one.status for one in found] == [201] + [409] * 19
    assert shop.batches == [["cup"]]
    assert effects(database) == ["cup"]


@pytest.mark.parametrize(
    "change",
    [
        {"sub": "client:other"},
        {"tenant": "zeta"},
        {"environment": "test"},
    ],
    ids=repr,
)
async def test_a_key_belongs_to_one_client_tenant_and_environment(
    combiner: Combiner[Call[str]], database: Database, change: dict[str, str]
):
    await send(combiner, a_call("k", "cup"))
    found = await send(combiner, a_call("k", "plate", replace(WHO, **change)))
    assert found.body == b'{"added":"plate"}'
    assert effects(database) == ["cup", "plate"]


async def test_a_key_belongs_to_one_route(combiner: Combiner[Call[str]]):
    await send(combiner, a_call("k", "cup"))
    assert (await send(combiner, a_call("k", "plate", route="PUT /x"))).body == b'{"added":"plate"}'


async def test_a_returned_refusal_is_stored(
    combiner: Combiner[Call[str]], shop: Shop, database: Database
):
    shop.returns["cup"] = WaitpointAlreadyActive(id="wp_1")
    first = await send(combiner, a_call("k", "cup"))
    shop.returns.clear()
    again = await send(combiner, a_call("k", "cup"))
    assert first.status == again.status == 409
    assert first.body == again.body
    assert again.headers["content-type"] == "application/problem+json"
    assert again.headers["idempotent-replayed"] == "true"
    assert effects(database) == []


async def test_a_raised_refusal_is_stored_and_leaves_no_effect(
    combiner: Combiner[Call[str]], shop: Shop, database: Database
):
    shop.raises["cup"] = DeadlinePassed()
    first = await send(combiner, a_call("k", "cup"))
    shop.raises.clear()
    again = await send(combiner, a_call("k", "cup"))
    assert (first.status, first.body) == (again.status, again.body)
    assert first.status == 422
    assert effects(database) == []


@pytest.mark.parametrize("error", [LimitExceeded(), StoreUnavailable()], ids=lambda e: e.code)
async def test_what_may_be_better_later_is_not_stored(
    combiner: Combiner[Call[str]], shop: Shop, database: Database, error: RelayError
):
    shop.returns["cup"] = error
    assert (await send(combiner, a_call("k", "cup"))).status == error.status
    assert stored_keys(database) == 0
    shop.returns.clear()
    assert (await send(combiner, a_call("k", "cup"))).status == 201


async def test_one_bad_call_does_not_spoil_its_batch(
    combiner: Combiner[Call[str]], shop: Shop, database: Database
):
    shop.raises = {"n3": DeadlinePassed(), "n7": RuntimeError("bug")}
    calls = [a_call(f"k{index}", f"n{index}") for index in range(10)]
    found = await asyncio.gather(*(send(combiner, c) for c in calls), return_exceptions=True)
    assert isinstance(found[7], RuntimeError)
    statuses = [one.status for one in found if isinstance(one, Answer)]
    assert statuses == [201, 201, 201, 422, 201, 201, 201, 201, 201]
    assert sorted(effects(database)) == sorted(f"n{i}" for i in range(10) if i not in (3, 7))
    assert stored_keys(database) == 9


async def test_a_failing_batch_leaves_neither_effect_nor_key(
    combiner: Combiner[Call[str]], shop: Shop, database: Database
):
    shop.raises["cup"] = RuntimeError("bug")
    with pytest.raises(RuntimeError):
        await send(combiner, a_call("k", "cup"))
    assert (effects(database), stored_keys(database)) == ([], 0)
    shop.raises.clear()
    assert (await send(combiner, a_call("k", "cup"))).status == 201


async def test_a_call_that_meets_a_lock_does_not_hold_up_its_batch(
    combiner: Combiner[Call[str]], database: Database
):
    calls = [a_call(f"k{index}", f"n{index}") for index in range(5)]
    with database.connect().transaction() as held:
        held.connection.execute("insert into intake.effect (name) values ('n2')")
        found = await asyncio.gather(*(send(combiner, c) for c in calls), return_exceptions=True)
        held.force_rollback = True
    assert isinstance(found[2], StoreUnavailable)
    assert [one.status for one in found if isinstance(one, Answer)] == [201] * 4
    assert (await send(combiner, calls[2])).status == 201
    assert sorted(effects(database)) == ["n0", "n1", "n2", "n3", "n4"]


async def test_concurrent_calls_share_transactions(combiner: Combiner[Call[str]], shop: Shop):
    calls = [a_call(f"k{index}", f"n{index}") for index in range(600)]
    found = await asyncio.gather(*(send(combiner, call) for call in calls))
    assert [one.body for one in found] == [b'{"added":"n%d"}' % index for index in range(600)]
    assert [len(batch) for batch in shop.batches] == [256, 256, 88]


async def test_a_call_whose_request_has_arrived_joins_the_batch(
    combiner: Combiner[Call[str]], shop: Shop
):
    async def read_and_parsed() -> Answer:
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return await send(combiner, a_call("k1", "n1"))

    await asyncio.gather(send(combiner, a_call("k0", "n0")), read_and_parsed())
    assert shop.batches == [["n0", "n1"]]


async def test_tenants_never_share_a_transaction(combiner: Combiner[Call[str]], database: Database):
    tenants = [replace(WHO, tenant=f"tenant-{index % 3}") for index in range(30)]
    calls = [a_call(f"k{index}", f"n{index}", who) for index, who in enumerate(tenants)]
    await asyncio.gather(*(send(combiner, call) for call in calls))
    rows = database.owner.execute("select tenant, name from intake.effect").fetchall()
    assert sorted(rows) == sorted((call.caller.tenant, call.given) for call in calls)
    owners = database.owner.execute("select distinct tenant from intake.idempotency_key").fetchall()
    assert len(owners) == 3


async def test_a_caller_that_goes_away_loses_nothing_for_anyone(
    combiner: Combiner[Call[str]], database: Database
):
    calls = [a_call(f"k{index}", f"n{index}") for index in range(40)]
    waiting = [asyncio.create_task(send(combiner, call)) for call in calls]
    await asyncio.sleep(0)
    gone = waiting[::2]
    for task in gone:
        task.cancel()
    found = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, asyncio.CancelledError) for one in found[::2])
    assert all(isinstance(one, Answer) and one.status == 201 for one in found[1::2])
    again = await asyncio.gather(*(send(combiner, call) for call in calls))
    assert {one.headers["idempotent-replayed"] for one in again} == {"true"}
    assert len(effects(database)) == 40


async def test_a_lost_database_is_told_to_everyone_and_to_nobody_twice(
    pool: Pool, combiner: Combiner[Call[str]], shop: Shop
):
    await pool.close()
    calls = [a_call(f"k{index}", f"n{index}") for index in range(5)]
    found = await asyncio.gather(*(send(combiner, c) for c in calls), return_exceptions=True)
    assert all(isinstance(one, StoreUnavailable) for one in found)
    assert shop.batches == []


async def test_two_processes_race_for_each_key_and_one_takes_effect(
    pool: Pool, shop: Shop, database: Database
):
    processes = [Combiner(pool, mutation(shop.add, SEED)) for _ in range(4)]
    for number in range(100):
        call = a_call(f"k{number}", f"n{number}")
        found = await asyncio.gather(*(send(process, call) for process in processes))
        done = [one for one in found if one.status == 201]
        assert len([one for one in done if "idempotent-replayed" not in one.headers]) == 1
        assert {one.status for one in found} <= {201, 409}
    assert sorted(effects(database)) == sorted(f"n{number}" for number in range(100))


async def test_keys_are_forgotten_after_48_hours(
    combiner: Combiner[Call[str]], database: Database, clock: Clock
):
    await send(combiner, a_call("k", "cup"))
    sweeper = database.connect("relay_intake_stream")
    clock.shift(timedelta(hours=47))
    assert expire_keys(sweeper) == {"idempotency_keys_expired": 0}
    clock.shift(timedelta(hours=2))
    assert expire_keys(sweeper) == {"idempotency_keys_expired": 1}
    assert stored_keys(database) == 0


async def test_other_tenants_keys_are_out_of_sight(
    combiner: Combiner[Call[str]], database: Database
):
    await send(combiner, a_call("k", "cup"))
    with database.connect("relay_intake_http").transaction() as other:
        other.connection.execute(
            "select set_config('relay.tenant', 'zeta', true),"
            " set_config('relay.environment', 'prod', true)"
        )
        assert other.connection.execute("select count(*) from idempotency_key").fetchall() == [(0,)]
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            other.connection.execute(
                "insert into idempotency_key values ('acme','prod','c','r','','',200)"
            )


def test_the_fingerprint_is_of_the_meaning_not_the_spelling():
    assert fingerprint({"a": 1, "b": [1, 2]}, "/x") == fingerprint({"b": [1, 2], "a": 1}, "/x")
    assert fingerprint({"a": 1}, "/x") != fingerprint({"a": 1}, "/y")
    assert fingerprint({"a": 1}, "/x") != fingerprint({"a": 1.5}, "/x")
    later = {"a": 1, "expires_at": "later"}
    assert fingerprint(later, "/x", {"expires_at"}) == fingerprint({"a": 1}, "/x", {"expires_at"})


async def test_a_missing_answer_is_an_error_not_a_wait(pool: Pool, database: Database):
    async def forgetful(
        conn: AsyncConnection, calls: Sequence[str], *, alone: bool
    ) -> list[Answer]:
        await conn.execute(ADD, (list(calls),))
        return [] if alone else [answer(200, None)]

    combiner = Combiner(pool, forgetful)
    both = (combiner.submit("acme", "prod", name) for name in ("cup", "plate"))
    found = await asyncio.gather(*both, return_exceptions=True)
    assert all(isinstance(one, ValueError) for one in found)
    assert effects(database) == []
