"""Races run on the matcher's own kit: its fixtures are those of the service's tests."""

import importlib.util
import sys
from pathlib import Path

KIT = Path(__file__).parents[2] / "services" / "matcher" / "tests" / "conftest.py"
specification = importlib.util.spec_from_file_location("matcher_kit", KIT)
assert specification is not None
assert specification.loader is not None
matcher_kit = importlib.util.module_from_spec(specification)
sys.modules["matcher_kit"] = matcher_kit
specification.loader.exec_module(matcher_kit)

access_url = matcher_kit.access_url
matcher = matcher_kit.matcher
