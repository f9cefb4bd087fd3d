"""What a writer at the append function is asked, and what is read of it when it has ended."""

from pathlib import Path

import pytest

from bench.appender import Load, Waits, waits_of
from bench.processes import Child, launch


def test_records_go_to_the_mailboxes_in_turn():
    load = Load("quiet", boxes=2, size=1, rate=200)
    owners = [load.owner(number) for number in range(3)]
    assert owners == ["agent:quiet-0", "agent:quiet-1", "agent:quiet-0"]


def ended(tmp_path: Path, script: str) -> Child:
    return launch(["sh", "-c", script], {}, tmp_path / "append-hot.log")


def test_the_last_line_of_a_writer_is_what_it_waited(tmp_path: Path):
    child = ended(tmp_path, """echo a warning; echo '{"since_due":[2.5],"since_begin":[1.5]}'""")
    assert waits_of(child, 30) == Waits(since_due=[2.5], since_begin=[1.5])


def test_a_writer_that_failed_tells_its_log(tmp_path: Path):
    with pytest.raises(RuntimeError, match=r"append-hot ended with 3: no database"):
        waits_of(ended(tmp_path, "echo no database; exit 3"), 30)
