"""The page of the peers computes: medians, ratios, and what is said of a peer that is not there."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.peers import install
from bench.peers.page import TARGETS, Outcome, as_json, page
from bench.peers.systems import DBOS, PEERS, RELAY, RESTATE

RATES = {
    RELAY: {"resolved": [900.0, 30_000.0, 31_000.0], "reply": [2_000.0], "open": [400.0]},
    DBOS: {"open": [150.0], "deliver": [240.0], "seen": [200.0, 100.0, 250.0]},
}


@pytest.fixture
def outcome() -> Outcome:
    """A run in which Restate was left out."""
    peers = [peer for peer in PEERS if peer.name in ("dbos", "restate")]
    versions = {peer.name: install.versions(peer.name) for peer in peers}
    left_out = {RESTATE: "`npm` is not installed on this machine"}
    return Outcome(1000, {"cores": 2}, {"fsync": "on"}, peers, versions, RATES, left_out)


def test_a_target_is_the_ratio_of_medians(outcome: Outcome):
    found = {(t.own, t.peer): outcome.ratio(t) for t in TARGETS}
    assert found["resolved", DBOS] == 30_000 / 200
    assert found["reply", DBOS] == 10
    assert found["reply", RESTATE] is None
    assert found["leased", DBOS] is None


def test_a_peer_that_is_left_out_is_said_to_be(outcome: Outcome):
    lines = page(outcome).splitlines()
    assert f"| {RESTATE} | left out: `npm` is not installed on this machine | | |" in lines
    assert f"| {DBOS} | 150 | 240 | 200 |" in lines
    assert f"| {RELAY} | 400 |  |  |" in lines
    assert sum("not measured" in line for line in lines) == 3
    assert "Medians of 3," in page(outcome)


def test_the_data_has_every_sample_and_every_target(outcome: Outcome):
    data = json.loads(json.dumps(as_json(outcome, "2026-11-30T00:00:00+00:00")))
    assert data["rates"][DBOS]["seen"] == [200, 100, 250]
    assert [t["ratio"] for t in data["targets"]] == [150, None, None, 10, None]
    assert data["left_out"] == {RESTATE: "`npm` is not installed on this machine"}
    assert data["versions"]["restate"][0].startswith("@restatedev/restate-server ")


def test_a_run_without_relay_shows_no_rates_of_its_own(outcome: Outcome):
    assert replace(outcome, rates={}).figures() == []


def test_every_peer_names_what_it_is_pinned_to():
    assert install.versions("nats")[0].startswith("github.com/nats-io/nats-server/v2 v")
    assert install.versions("temporal")[0].startswith("github.com/temporalio/cli v")
    assert all(" " in line for peer in PEERS for line in install.versions(peer.name))


def test_an_environment_is_made_once_and_again_when_a_pin_changes(tmp_path: Path):
    pin, made = tmp_path / "pin", []
    for text in ("one", "one", "two"):
        pin.write_text(text)
        install.unless_made(tmp_path, [pin], lambda: made.append(pin.read_text()))
    assert made == ["one", "two"]


def test_a_missing_tool_leaves_the_peer_out(tmp_path: Path):
    with pytest.raises(install.LeftOut, match="`no-such-tool` is not installed"):
        install.run(["no-such-tool"], tmp_path)
    with pytest.raises(install.LeftOut, match="failed: "):
        install.run(["ls", "no-such-file"], tmp_path)
