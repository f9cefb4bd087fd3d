"""Budgets of the house: the shared library stays small (docs/decisions/0008)."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
RELAY_COMMON = ROOT / "libs" / "relay_common" / "relay_common"
LINES_OF_CODE = 3_650


def lines_of_code(path: Path) -> int:
    """Count lines that are neither blank, comment nor docstring."""
    text = path.read_text(encoding="utf-8")
    documented = 0
    for node in ast.walk(ast.parse(text)):
        kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
        if isinstance(node, kinds) and ast.get_docstring(node) is not None:
            documented += (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    written = [line for line in text.splitlines() if line.strip() and line.strip()[0] != "#"]
    return len(written) - documented


def test_the_shared_library_stays_within_its_budget():
    sizes = {path.name: lines_of_code(path) for path in RELAY_COMMON.glob("*.py")}
    assert sum(sizes.values()) <= LINES_OF_CODE, sizes
