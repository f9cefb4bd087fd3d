"""How a process comes up: its roles, a database that is safe, probes that tell the truth."""

import sys
import threading

import psycopg
import pytest
from relay_common import startup
from relay_common.db import UnsafeDatabase
from relay_common.settings import CommonSettings
from relay_common.startup import (
    LoginRefused,
    Probe,
    conninfo_of,
    database_probe,
    parse_roles,
    stream_connector,
    wait_for_database,
)
from relay_common.testing import wait
from relay_common.testing.databases import Database

OFFERED = ("http", "consumer", "sweeper")


def settings_on(database: Database, **more: object) -> CommonSettings:
    password = database.parts.get("password")  # what every role has where there are passwords
    logins = {"http_password": password, "stream_password": password}
    given = {"database_url": database.url, "kafka_bootstrap": "nowhere:1", **logins, **more}
    return CommonSettings.model_validate(given)


def roles_of(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> frozenset[str]:
    monkeypatch.setattr(sys, "argv", ["relay_shop", *arguments])
    return parse_roles("shop", OFFERED)


def test_without_a_choice_a_process_has_every_role(monkeypatch: pytest.MonkeyPatch):
    assert roles_of(monkeypatch) == set(OFFERED)


def test_roles_split_a_service(monkeypatch: pytest.MonkeyPatch):
    assert roles_of(monkeypatch, "--roles", "http,sweeper") == {"http", "sweeper"}


@pytest.mark.parametrize("roles", ["http,wat", "", "http, consumer"])
def test_an_unknown_role_is_refused_with_those_there_are(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], roles: str
):
    with pytest.raises(SystemExit) as caught:
        roles_of(monkeypatch, "--roles", roles)
    assert caught.value.code == 2
    assert "expected roles out of http, consumer, sweeper" in capsys.readouterr().err


def test_each_side_logs_in_as_its_own_role(database: Database):
    settings = settings_on(database, http_password="canary")
    assert "relay_matcher_http" in conninfo_of(settings, "matcher", "http")
    assert "canary" in conninfo_of(settings, "matcher", "http")
    assert "relay_matcher_stream" in conninfo_of(settings, "matcher", "stream")


def test_the_database_is_awaited_and_known(database: Database):
    settings = settings_on(database, unsafe_durability=True)
    found = wait_for_database(settings, "matcher", "stream", "0003_pre_matcher")
    row = database.owner.execute("select id, hash_seed from relay.installation").fetchall()
    assert [(found.id, found.hash_seed)] == row


def test_a_wrong_password_is_said_and_not_waited_on_for_ever(
    database: Database, monkeypatch: pytest.MonkeyPatch
):
    if database.parts.get("password") is None:
        pytest.skip("this server lets everybody in")
    monkeypatch.setattr(startup, "LOGIN_TRIES", 3)
    monkeypatch.setattr(startup, "AGAIN_SECONDS", 0.0)
    wrong = settings_on(database, stream_password="zzsecret")
    with pytest.raises(LoginRefused, match=r'password .* failed for user "relay_matcher_'):
        wait_for_database(wrong, "matcher", "stream", "0003_pre_matcher")


def test_a_database_that_may_forget_is_refused(database: Database):
    database.owner.execute(f'alter database "{database.name}" set synchronous_commit = off')
    with pytest.raises(UnsafeDatabase):
        wait_for_database(settings_on(database), "matcher", "http", "0003_pre_matcher")
    with pytest.raises(UnsafeDatabase):
        stream_connector(settings_on(database), "matcher")()
    stream_connector(settings_on(database, unsafe_durability=True), "matcher")().close()


def test_a_probe_says_what_it_last_saw():
    answers: list[Exception | None] = [None]

    def ask() -> None:
        if answers[0] is not None:
            raise answers[0]

    probe, stop = Probe(ask), threading.Event()
    assert probe.ready() == "not asked yet"
    thread = threading.Thread(target=probe.run, args=(stop,))
    thread.start()
    try:
        wait.until(lambda: probe.ready() is None)
        answers[0] = psycopg.OperationalError("secret host")
        assert wait.until(probe.ready) == "no answer: OperationalError"
    finally:
        stop.set()
        thread.join()


def test_the_database_probe_asks_the_database(database: Database):
    settings = settings_on(database)
    database_probe(settings, "matcher").ask()
    gone = settings_on(database, database_url="postgresql://127.0.0.1:1/none")
    with pytest.raises(psycopg.OperationalError):
        database_probe(gone, "matcher").ask()
