"""While the server works: something useful, and never at the cost of the statement."""

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from relay_common.overlap import OverlappingConnection


@pytest.fixture
def conn(database):
    with OverlappingConnection.connect(database.url, autocommit=True) as made:
        yield made


def test_what_is_to_do_is_done_before_the_slow_statement_ends(conn):
    left = [1, 2, 3, 4, 5]
    done = []

    def piece():
        if left:
            done.append(left.pop(0))
        return bool(left)

    conn.meanwhile = piece
    assert conn.execute("select pg_sleep(0.2), 7").fetchone()[1] == 7
    assert done == [1, 2, 3, 4, 5]


def test_endless_work_does_not_keep_an_answer_waiting(conn):
    conn.meanwhile = lambda: True
    assert conn.execute("select count(*) from generate_series(1, 100000)").fetchone() == (100000,)


def test_large_copy_and_large_answer_go_through(conn):
    conn.meanwhile = lambda: False
    conn.execute("create temporary table much (line text)")
    with conn.cursor() as cursor, cursor.copy("copy much from stdin") as copy:
        for _ in range(20_000):
            copy.write_row(("x" * 200,))
    assert len(conn.execute("select line from much").fetchall()) == 20_000


def test_error_of_a_statement_is_raised_and_the_connection_goes_on(conn):
    conn.meanwhile = lambda: False
    with pytest.raises(psycopg.errors.DivisionByZero):
        conn.execute("select 1 / 0")
    assert conn.execute("select 1").fetchone() == (1,)


def test_connection_that_the_server_ends_is_an_operational_error(conn, database):
    pid = conn.info.backend_pid
    ended = []

    def end():
        if not ended:
            ended.append(database.owner.execute("select pg_terminate_backend(%s)", (pid,)))
        return False

    conn.meanwhile = end
    with pytest.raises(psycopg.OperationalError):
        conn.execute("select pg_sleep(30)")
    assert conn.closed


def test_pipeline_is_sent_whole_before_anything_else_is_done(conn):
    """Frozen in between, the server would wait for the rest with its locks held."""
    begun = []
    conn.meanwhile = lambda: bool(begun.append(conn.pgconn.pipeline_status)) if inside else False
    inside = True
    with conn.pipeline():
        conn.execute("select pg_sleep(0.05)")
        second = conn.execute("select 2")
        assert begun == []
    assert second.fetchone() == (2,)
    assert begun != []


@pytest.fixture
def table(conn):
    """A table, and how many rows others see in it."""
    conn.execute("create table noted (number int primary key)")
    return lambda: conn.execute("select count(*) from noted").fetchone()[0]


def test_a_batch_begins_with_its_first_statement_and_ends_with_its_last(conn, table):
    with conn.begun():
        assert conn.info.transaction_status == TransactionStatus.IDLE
        with conn.pipeline():
            conn.execute("insert into noted values (1)")
        assert conn.info.transaction_status == TransactionStatus.INTRANS
        with conn.committed():
            conn.execute("insert into noted values (2)")
    assert conn.info.transaction_status == TransactionStatus.IDLE
    conn.execute("insert into noted values (3)")
    conn.rollback()
    assert table() == 3, "a statement of its own is committed by itself"


def run_batch(conn, *last: str, error: Exception | None = None) -> None:
    """Note 1 in a batch that commits with `last`, or with an error."""
    with conn.begun():
        conn.execute("insert into noted values (1)")
        with conn.committed():
            for statement in last:
                conn.execute(statement)
            if error is not None:
                raise error


@pytest.mark.parametrize("number", [1, 2])
def test_a_batch_whose_last_statement_fails_is_not_committed(conn, table, number):
    again = "insert into noted values (1)"
    with pytest.raises(psycopg.errors.UniqueViolation):
        run_batch(conn, f"insert into noted values ({number})", again)
    assert table() == 0
    run_batch(conn)
    assert table() == 1


def test_an_error_inside_a_batch_takes_all_of_it_back(conn, table):
    with pytest.raises(ZeroDivisionError):
        run_batch(conn, "insert into noted values (2)", error=ZeroDivisionError())
    assert table() == 0


def test_a_batch_on_a_connection_that_breaks_tells_the_first_error(conn, table):
    with pytest.raises(psycopg.OperationalError):
        run_batch(conn, "select pg_terminate_backend(pg_backend_pid())")
    assert conn.closed


class Stuck(OverlappingConnection):
    """A connection whose transaction cannot be rolled back."""

    def rollback(self) -> None:
        raise psycopg.OperationalError("no answer")


def test_a_connection_that_cannot_roll_back_is_not_used_again(database):
    with Stuck.connect(database.url, autocommit=True) as stuck:
        stuck.execute("create table noted (number int primary key)")
        with pytest.raises(ZeroDivisionError):
            run_batch(stuck, error=ZeroDivisionError())
        assert stuck.closed


def test_roles_end_a_transaction_that_lasts(database):
    if database.owner.info.server_version < 170000:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    for service in ("intake", "matcher", "escalation", "mailbox"):
        for side, longest in (("stream", "1min"), ("http", "20s")):
            conn = database.connect(f"relay_{service}_{side}")
            assert conn.execute("show transaction_timeout").fetchone() == (longest,)
