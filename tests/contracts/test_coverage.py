"""Nothing of the contract is left without a test: its sentences, and the faults of others."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CLAUSES = yaml.safe_load((ROOT / "tests/contracts/spec_clauses.yaml").read_text(encoding="utf-8"))
WHOLE = ("waitpoint", "mailbox")  # the parts that are built
# Faults of systems like Relay (reference cases); W26's tiers belong to escalation.
CASES = [
    f"W{number}"
    for number in (1, 3, 5, 6, 7, 8, 9, 10, 11, 13, 14, 16, 18, 19, 20, 21, 23, 24, 25, 26, 29)
]
NAMED = re.compile(r"\b[Ww]([0-9]+)\b")

_place = ROOT / "scripts" / "spec_coverage.py"
_specification = importlib.util.spec_from_file_location("spec_coverage", _place)
assert _specification is not None
assert _specification.loader is not None
spec_coverage = importlib.util.module_from_spec(_specification)
_specification.loader.exec_module(spec_coverage)
TESTS = spec_coverage.marked_tests()


@pytest.mark.parametrize("part", WHOLE)
def test_every_sentence_has_a_test(part: str) -> None:
    assert [clause for clause in CLAUSES[part] if not TESTS.get(clause)] == []


def test_every_case_is_named_by_a_test() -> None:
    """By its name (`test_w7_…`), its docstring or that of its module."""
    named = {f"W{number}" for text in said_by_tests() for number in NAMED.findall(text)}
    assert [case for case in CASES if case not in named] == []


def said_by_tests() -> list[str]:
    """Return names and docstrings of all tests, and the docstrings of their modules."""
    said: list[str] = []
    for folder in spec_coverage.FOLDERS:
        for path in (ROOT / folder).rglob("test_*.py"):
            if path == Path(__file__):
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
                    name = getattr(node, "name", "").replace("_", " ")
                    said += [name, ast.get_docstring(node) or ""]
    return said
