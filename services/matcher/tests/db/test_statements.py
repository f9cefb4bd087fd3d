"""Every statement against the real schema; the hot ones by their plans."""

import re
from typing import Any

import psycopg
import pytest
from relay_common import queries
from relay_common.testing.databases import Database

NOUNS = {
    "matching": "relay_matcher_stream",
    "sweeping": "relay_matcher_stream",
    "shared": "relay_matcher_stream",
    "opening": "relay_matcher_http",
    "closing": "relay_matcher_http",
    "reading": "relay_matcher_http",
    "replying": "relay_matcher_http",
    "settings": "relay_matcher_http",
}
PARAMETER = re.compile(r"%\((\w+)\)s")


def numbered(statement: str) -> str:
    """Return `statement` with the parameters that PREPARE takes."""
    names = list(dict.fromkeys(PARAMETER.findall(statement)))
    return PARAMETER.sub(lambda found: f"${names.index(found[1]) + 1}", statement)


@pytest.mark.parametrize("noun", NOUNS)
def test_every_statement_is_valid(database_once: Database, noun: str) -> None:
    conn = database_once.connect(NOUNS[noun])
    prepared = 0
    for name, statement in queries.load("relay_matcher", noun).items():
        if not statement.startswith("copy"):
            conn.execute(f"prepare {name} as {numbered(statement)}")  # type: ignore[arg-type]
            prepared += 1
    assert prepared


def plan(conn: psycopg.Connection[Any], statement: str, values: dict[str, Any]) -> str:
    """Return the plan of `statement` for any values, as text."""
    conn.execute("set plan_cache_mode = force_generic_plan")
    rows = conn.execute(f"explain (costs off) {statement}", values).fetchall()  # type: ignore[arg-type]
    return "\n".join(row[0] for row in rows)


def slices(conn: psycopg.Connection[Any]) -> dict[str, Any]:
    """Return where the previous slice begins and the current one ends."""
    row = conn.execute(
        "select slice_start(relay.now()) - interval '6 hours',"
        " slice_start(relay.now()) + interval '6 hours'"
    ).fetchone()
    assert row is not None
    return {"since": row[0], "until": row[1]}


def test_match_goes_through_the_one_exact_key_index(database_once: Database) -> None:
    """Plan flips on fresh or missing statistics cost 2 to 20 times as much."""
    conn = database_once.connect("relay_matcher_stream")
    values = {
        "tenants": ["a"],
        "environments": ["e"],
        "key_hashes": [1],
        "event_types": ["t"],
        "correlation_keys": ["k"],
    }
    shown = plan(conn, queries.load("relay_matcher", "matching")["lock_waitpoints"], values)
    assert "Index Scan using waitpoint_one_active_per_waiter_and_key" in shown
    assert "Seq Scan" not in shown
    assert "Hash Join" not in shown
    assert "Tid Scan on waitpoint p" in shown, "locked where they lie"
    assert "Sort Key: w_1.id" in shown, "found first, in id order"
    assert "LockRows" in shown, "and locked one by one in that order"


def test_repeated_events_are_probed_by_key_and_id(database_once: Database) -> None:
    conn = database_once.connect("relay_matcher_stream")
    values = {
        "key_hashes": [1],
        "event_ids": ["00000000-0000-0000-0000-000000000000"],
    }
    shown = plan(conn, queries.load("relay_matcher", "matching")["repeated_events"], values)
    assert "key_hash_event_id" in shown
    assert "Seq Scan" not in shown


def test_look_back_walks_each_slice_in_order_of_arrival(database_once: Database) -> None:
    conn = database_once.connect("relay_matcher_http")
    values = {
        "places": [0],
        "key_hashes": [1],
        "event_types": ["t"],
        "correlation_keys": ["k"],
        "waiters": ["w"],
        "afters": [0],
        "sinces": [slices(conn)["since"]],
        "pages": [1],
    }
    conn.execute("set relay.tenant = 'acme'")
    conn.execute("set relay.environment = 'test'")
    shown = plan(conn, queries.load("relay_matcher", "opening")["look_back"], values)
    assert "key_hash_arrival" in shown
    assert "Merge Append" in shown
    assert "Seq Scan" not in shown


NOBODY = "00000000-0000-0000-0000-000000000000"
KEYS = {"key_hashes": [1], "event_types": ["t"], "correlation_keys": ["k"], "waiters": ["w"]}
WHO = {"callers": ["a"], "sees_all": [True], "responders": ["b"]}


@pytest.mark.parametrize(
    ("noun", "name", "values", "conditions"),
    [
        (
            "replying",
            "lock_targets",
            {"ids": [NOBODY], **WHO},
            ["id = k.id", "waitpoint_id = p.id", "waitpoint_id = w.id"],
        ),
        (
            "replying",
            "lock_targets_by_key",
            {**KEYS, **WHO},
            ["id = k.id", "waitpoint_id = p.id", "waitpoint_id = w.id"],
        ),
        ("opening", "lock_own", KEYS, ["correlation_key = k.correlation_key", "id = o.id"]),
        (
            "opening",
            "waiting_on_keys",
            {**KEYS, "most": 9},
            ["correlation_key = k.correlation_key"],
        ),
    ],
)
def test_waitpoints_are_found_by_their_keys(
    database_once: Database, noun: str, name: str, values: dict[str, Any], conditions: list[str]
) -> None:
    """Without statistics too: nothing reads all that a tenant has, and nothing is hashed."""
    conn = database_once.connect("relay_matcher_http")
    conn.execute("set relay.tenant = 'acme'")
    conn.execute("set relay.environment = 'test'")
    shown = plan(conn, queries.load("relay_matcher", noun)[name], values)
    searched = " ".join(line for line in shown.splitlines() if "Index Cond" in line)
    assert [one for one in conditions if f"({one})" not in searched] == [], shown
    assert "hashed" not in shown
    assert "Seq Scan" not in shown


OTHERS = """
insert into matcher.waitpoint (tenant, environment, id, key_hash, created_at, updated_at,
  expires_at, kind, state, waiter, event_type, correlation_key, opened)
select 'acme', 'test', gen_random_uuid(), n, c.at, c.at,
  c.at + interval '1 day', 'event', 'open', 'agent:' || n % 10, 't', 'k' || n, '{}'
from generate_series(1, 5000) n, relay.now() c (at)
"""
ANYTHING = {
    "caller": "agent:nobody",
    "sees_all": False,
    "after": NOBODY,
    "limit": 10,
    "tag_names": [],
    "tag_values": [],
    **dict.fromkeys(["states", "kinds", "waiter", "responder", "event_type", "correlation_key"]),
    "expires_before": None,
}


def test_list_of_a_caller_reads_what_is_his(database: Database) -> None:
    """Not all that the tenant has, to find out that none of it is."""
    database.owner.execute(OTHERS)
    database.owner.execute("analyze matcher.waitpoint")
    conn = database.connect("relay_matcher_http")
    conn.execute("set relay.tenant = 'acme'")
    conn.execute("set relay.environment = 'test'")
    shown = plan(conn, queries.load("relay_matcher", "reading")["waitpoints"], ANYTHING)
    assert "Bitmap Index Scan on waitpoint_by_waiter" in shown, shown
    assert "BitmapOr" in shown


def test_idempotency_keys_are_probed_one_by_one(database_once: Database) -> None:
    conn = database_once.connect("relay_matcher_http")
    conn.execute("set relay.tenant = 'acme'")
    conn.execute("set relay.environment = 'test'")
    given = {"clients": ["agent:a"], "routes": ["POST /v1/waitpoints"], "digests": [b"x" * 32]}
    statement = queries.load("relay_common", "idempotency_key")["stored_answers"]
    assert "key_digest = call.key_digest" in plan(conn, statement, given)


def test_sweeps_read_only_what_is_due(database_once: Database) -> None:
    conn = database_once.connect("relay_matcher_stream")
    sweeping = queries.load("relay_matcher", "sweeping")
    due = plan(conn, sweeping["due"], {"limit": 10})
    assert "waitpoint_active_by_deadline" in due
    silent = plan(conn, sweeping["silent"], {"limit": 10})
    assert "waitpoint_open_by_heartbeat" in silent


async def test_number_of_statements_does_not_depend_on_the_batch(
    matcher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    execute = psycopg.Cursor.execute

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        counts[-1] += 1
        return execute(self, *args, **kwargs)

    for key in ("1.0", "10.3", "200.7"):
        await matcher.open(key)
    monkeypatch.setattr(psycopg.Cursor, "execute", counted)
    for size in (1, 10, 200):
        counts.append(0)
        matcher.deliver(*[matcher.value(f"{size}.{n}") for n in range(size)])
    assert len(set(counts)) == 1
    assert counts[0] < 14
