"""Every query is valid against the real schema, and the hot ones touch only what they need.

Rows touched are counted on tables that were never analysed, or when they were almost empty: there
a bad plan would read a whole tenant, or a whole mailbox, for each record.
"""

import re
import uuid
from importlib.resources import files

import pytest
from relay_common import queries
from relay_common.db import Connection

NOUNS = sorted(f.name[:-4] for f in (files("relay_mailbox") / "sql").iterdir())
QUERIES = [(noun, name) for noun in NOUNS for name in queries.load("relay_mailbox", noun)]
TENANT = {"tenant": "acme", "environment": "test"}
AGENT = "agent:planner"


@pytest.mark.parametrize(("noun", "name"), QUERIES)
def test_the_query_is_valid(database_template, noun, name):
    statement = queries.load("relay_mailbox", noun)[name]
    parameters = dict.fromkeys(re.findall(r"%\((\w+)\)s", statement))
    with database_template.admin() as admin:
        info = {"dbname": database_template.name, "user": "relay_mailbox_stream"}
        conninfo = {**admin.info.get_parameters(), **info, "password": admin.info.password}
        with Connection.connect(**conninfo, autocommit=True) as conn:
            conn.execute("explain " + statement, parameters)


def touched(conn: Connection) -> int:
    """Return the rows that this transaction has fetched so far from the large tables."""
    return conn.execute(
        "select sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) from pg_stat_xact_user_tables"
        " where relname in ('mailbox', 'delivery') or relname like 'record_%%'"
    ).fetchone()[0]


@pytest.fixture(params=["never", "when_almost_empty"])
def analysed(request, database, streams, new_record):
    """Whether the planner has statistics, of a time when every mailbox had one record."""
    streams.append(*(new_record(f"agent:{n}") for n in range(300)))
    if request.param == "when_almost_empty":
        database.owner.execute("analyze mailbox.mailbox, mailbox.record, mailbox.delivery")


@pytest.fixture(params=["relay_mailbox_stream", "relay_mailbox_http"])
def crowded(request, database, streams, analysed):
    """A mailbox with 3,000 records, 500 of them in flight, among 300 other mailboxes."""
    streams.fill(3000)
    streams.conn = database.connect(request.param)
    streams.conn.execute(
        "select set_config('relay.tenant', 'acme', false),"
        " set_config('relay.environment', 'test', false)"
    )
    for _ in range(5):
        lease(streams.conn, the_mailbox(streams), 100)
    return streams


def the_mailbox(streams) -> int:
    return streams.one("select id from mailbox where owner = %s", AGENT)


def lease(conn: Connection, mailbox_id: int, count: int) -> tuple[uuid.UUID, list[int]]:
    token = uuid.uuid4()
    wish = {"mailbox_ids": [mailbox_id], "wanted": [count], "seconds": [600], "tokens": [token]}
    statement = queries.load("relay_mailbox", "lease")["lease_records"]
    rows = conn.execute(statement, {**TENANT, **wish}).fetchall()
    return token, [row[1] for row in rows]


def test_a_lease_touches_what_it_leases(crowded):
    mailbox_id = the_mailbox(crowded)
    with crowded.conn.transaction():
        before = touched(crowded.conn)
        _, seqs = lease(crowded.conn, mailbox_id, 10)
        assert seqs == list(range(501, 511))
        assert touched(crowded.conn) - before < 150


def test_an_acknowledgement_touches_what_it_acknowledges(crowded):
    mailbox_id = the_mailbox(crowded)
    token, seqs = lease(crowded.conn, mailbox_id, 10)
    given = {"mailbox_ids": [mailbox_id] * 10, "tokens": [token] * 10, "seqs": seqs}
    with crowded.conn.transaction():
        before = touched(crowded.conn)
        statement = queries.load("relay_mailbox", "lease")["acknowledge"]
        results = crowded.conn.execute(statement, {**TENANT, **given}).fetchall()
        assert results == [("acked",)] * 10
        assert touched(crowded.conn) - before < 150


def test_an_append_touches_its_own_heads(crowded, new_record):
    with crowded.conn.transaction():
        before = touched(crowded.conn)
        crowded.appending.append(crowded.conn, [new_record() for _ in range(10)])
        assert touched(crowded.conn) - before < 700  # all heads, while there are few


def test_the_search_for_due_hints_touches_those_that_are_due(database, streams, analysed):
    database.owner.execute("update mailbox.mailbox set hint_due_at = null")
    streams.conn.execute("update mailbox set hint_due_at = relay.now() where owner = 'agent:7'")
    statement = queries.load("relay_mailbox", "append")["due_hints"]
    plan = streams.conn.execute("explain " + statement, {"wanted": 1000}).fetchall()
    assert any("mailbox_by_due_hint" in line for (line,) in plan), plan
    assert len(streams.conn.execute(statement, {"wanted": 1000}).fetchall()) == 1


def test_a_page_touches_what_it_shows(crowded):
    statement = queries.load("relay_mailbox", "record")["read_page"]
    given = {"owner": AGENT, "since": 2000, "limit": 10, "max_bytes": 1 << 20}
    with crowded.conn.transaction():
        before = touched(crowded.conn)
        rows = crowded.conn.execute(statement, {**TENANT, **given}).fetchall()
        assert [row[5] for row in rows] == list(range(2001, 2011))
        assert touched(crowded.conn) - before < 150
