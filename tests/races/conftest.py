"""Races run on the matcher's own kit: its fixtures are those of the service's tests."""

import importlib.util
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from relay_common.cursors import Cursors
from relay_common.db import open_pool
from relay_matcher.http.desk import create_desk
from relay_matcher.store import matching, opening

KIT = Path(__file__).parents[2] / "services" / "matcher" / "tests" / "conftest.py"
specification = importlib.util.spec_from_file_location("matcher_kit", KIT)
assert specification is not None
assert specification.loader is not None
matcher_kit = importlib.util.module_from_spec(specification)
sys.modules["matcher_kit"] = matcher_kit
specification.loader.exec_module(matcher_kit)

access_url = matcher_kit.access_url
matcher = matcher_kit.matcher


@pytest.fixture
async def desks(request: pytest.FixtureRequest, matcher: Any) -> AsyncIterator[list[Any]]:
    """The module's DESKS front desks on one database: calls of different ones never share a
    transaction."""
    async with AsyncExitStack() as stack:
        found = []
        for _ in range(request.module.DESKS):
            pool = open_pool(matcher.database.conninfo("relay_matcher_http"), "relay-test", 4)
            await stack.enter_async_context(pool)
            cursors = Cursors(b"a secret of tests")
            found.append(create_desk(pool, matcher.plumbing, cursors, matcher.access))
        yield found


@pytest.fixture
def no_key_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switches the locks of match keys off, for events and for calls."""
    for module in (matching, opening):
        off = {
            **module.SHARED,
            "lock_match_keys": "select cardinality(%(key_hashes)s::bigint[])",
        }
        monkeypatch.setattr(module, "SHARED", off)
