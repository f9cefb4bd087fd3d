"""The test tools themselves: clones, roles, the clock, topics, room in memory."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from relay_common.testing import memory, wait
from relay_common.testing.brokers import Topics
from relay_common.testing.databases import Clock, Database


def test_clone_has_the_roles_search_path(database: Database) -> None:
    found = database.connect("relay_matcher_stream").execute("show search_path").fetchone()
    assert found == ("matcher, relay",)


def test_clock_shifts_freezes_and_thaws(database: Database, clock: Clock) -> None:
    reader = database.connect("relay_matcher_http")
    clock.freeze()
    (first,) = reader.execute("select relay.now()").fetchone() or ()
    clock.shift(timedelta(days=400))
    assert reader.execute("select relay.now()").fetchone() == (first + timedelta(days=400),)
    clock.thaw()
    assert clock.now() > first + timedelta(days=400)


def test_topics_are_read_back_in_order(topics: Topics) -> None:
    topic = topics.create("relay.events", partitions=2)
    for number in range(100):
        topics.produce(topic, b"key", str(number).encode(), [("h", b"v")])
    topics.flush()
    assert [r.value for r in topics.records(topic)] == [str(n).encode() for n in range(100)]
    assert topics.records(topic)[0].headers == (("h", b"v"),)


def test_waiting_says_what_it_last_saw() -> None:
    with pytest.raises(AssertionError, match=r"expected within 0.05 s: three; last seen: 0"):
        wait.until(lambda: 0, 0.05, "three")


@pytest.fixture
def in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What stands for the system's place in memory."""
    monkeypatch.setattr(memory, "MEMORY", tmp_path)
    monkeypatch.setattr(memory, "ROOM_BYTES", 1)
    return tmp_path


def test_the_quick_folder_is_in_memory_open_to_the_server_and_goes_away(in_memory: Path) -> None:
    with memory.quick_folder() as folder:
        assert folder.parent == in_memory
        assert folder.stat().st_mode & 0o777 == 0o711
    assert list(in_memory.iterdir()) == []


def test_without_room_in_memory_the_quick_folder_is_elsewhere(
    in_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "ROOM_BYTES", 1 << 60)
    with memory.quick_folder() as folder:
        assert folder.parent != in_memory


def test_only_folders_of_dead_runs_are_left_behind(in_memory: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folders = {pid: in_memory / f"relay-{pid}-abc" for pid in (ended.pid, os.getpid())}
    for folder in folders.values():
        folder.mkdir()
    assert memory.left_behind() == [folders[ended.pid]]
