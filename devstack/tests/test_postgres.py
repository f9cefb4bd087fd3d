"""A real PostgreSQL runs wherever the state folder lies, and loses nothing it has committed."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from relay_devstack import accounts
from relay_devstack.errors import StartFailedError, WrongMachineError
from relay_devstack.postgres import PostgresServer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    # pytest's own folders are closed to other accounts, so as root this is also the case of a
    # clone below a folder that the server's account cannot enter.
    server = PostgresServer(tmp_path_factory.mktemp("postgres"), {"shared_buffers": "64MB"})
    server.start()
    yield server
    server.destroy()
    assert not server.data.exists()


def value(server: PostgresServer, statement: str) -> object:
    with psycopg.connect(server.url, autocommit=True) as conn:
        row = conn.execute(statement).fetchone()
        return row[0] if row else None


def test_nothing_weakens_durability(server: PostgresServer) -> None:
    for setting in ("fsync", "full_page_writes", "synchronous_commit", "data_checksums"):
        assert value(server, f"show {setting}") == "on"
    assert value(server, "show max_locks_per_transaction") == "512"


@pytest.mark.parametrize("way", ["kill", "immediate", "fast"])
def test_committed_rows_survive(server: PostgresServer, way: str) -> None:
    with psycopg.connect(server.url, autocommit=True) as conn:
        conn.execute(f"create table kept_{way} as select 1 as one")
    address = server.url
    if way == "kill":
        server.kill()
        assert not server.running()
        server.start()
    else:
        server.restart("immediate" if way == "immediate" else "fast")
    assert server.url == address
    assert value(server, f"select one from kept_{way}") == 1


def test_a_wrong_password_is_refused(server: PostgresServer) -> None:
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(server.url, password="guessed")


def test_starting_a_running_server_changes_nothing(server: PostgresServer) -> None:
    since = value(server, "select pg_postmaster_start_time()")
    server.start()
    assert value(server, "select pg_postmaster_start_time()") == since


def test_own_binaries_by_one_variable(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_PG_BIN", str(server.binaries()))
    other = PostgresServer(tmp_path, {"shared_buffers": "64MB"})
    other.start()
    assert value(other, "select 1") == 1
    other.destroy()


def test_wrong_binaries_are_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_PG_BIN", str(tmp_path))
    with pytest.raises(WrongMachineError, match=r"RELAY_PG_BIN is .* no program `postgres`"):
        PostgresServer(tmp_path).start()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    server = PostgresServer(tmp_path, {"shared_buffers": "nonsense"})
    with pytest.raises(StartFailedError, match="shared_buffers"):
        server.start()
    server.destroy()


def test_a_stand_in_folder_of_somebody_else_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = accounts.unprivileged()
    if account is None:
        pytest.skip("only root needs a stand-in folder")
    home = accounts.public_home(tmp_path, account)
    home.symlink_to(tmp_path)
    try:
        with pytest.raises(WrongMachineError, match="belongs to somebody else"):
            accounts.make_public_home(tmp_path, account)
    finally:
        home.unlink()


def test_a_stand_in_folder_goes_with_the_clone_it_stands_in_for(tmp_path: Path) -> None:
    account = accounts.unprivileged()
    if account is None:
        pytest.skip("only root needs a stand-in folder")
    clone = tmp_path / "clone"
    clone.mkdir()
    home = accounts.make_public_home(clone, account)
    accounts.sweep_homes(account)
    assert home.exists()
    clone.rmdir()
    accounts.sweep_homes(account)
    assert not home.exists()


def test_a_tree_that_many_want_at_once_is_copied_once(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(200):
        (source / str(number)).write_text(str(number))
    target, together = tmp_path / "target", threading.Barrier(8)

    def want(_: int) -> Path:
        together.wait()
        return accounts.copied_tree(source, target)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(want, range(8))) == {target}
    assert len(list(target.iterdir())) == 200
