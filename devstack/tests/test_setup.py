"""`make setup` on machines that are not ready: a sentence each."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup.py"


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, for an environment of this test."""
    specification = importlib.util.spec_from_file_location("setup_script", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(module, "STAMP", tmp_path / ".venv" / "relay-setup")
    return module


def test_an_old_python_is_a_sentence(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    assert setup.main() == 1
    assert "Relay needs Python 3.11 or later and this is 3.9.2" in capsys.readouterr().err


def test_a_python_without_venv_is_a_sentence(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    assert setup.main() == 1
    assert "apt install python3-venv" in capsys.readouterr().err


def test_without_a_network_it_is_a_sentence(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setup, "works", lambda: True)
    assert setup.main() == 1  # there is no pip in the environment: nothing installs
    assert "run the command again" in capsys.readouterr().err
    assert not setup.STAMP.exists()


def test_nothing_is_done_when_nothing_changed(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup.PYTHON.parent.mkdir(parents=True)
    setup.PYTHON.symlink_to(sys.executable)
    setup.STAMP.write_text(setup.digest())
    monkeypatch.setattr(setup, "make_venv", lambda: pytest.fail("made an environment"))
    assert setup.main() == 0


def test_an_environment_that_was_moved_is_made_anew(setup: ModuleType) -> None:
    setup.PYTHON.parent.mkdir(parents=True)
    setup.PYTHON.symlink_to(sys.executable)
    setup.STAMP.write_text("/somewhere/else\ndigest")
    assert not setup.works()
    setup.STAMP.unlink()
    assert setup.works()
