"""`python -m bench.peers [--waits N] [--only dbos,restate]`: Relay and its peers at the same job.

Each peer is installed into an environment of its own under the ignored state folder, pinned and
hashed; one whose tools are missing is left out, and the table says so.
"""

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import UTC, datetime

from bench import report
from bench.peers import install, page, relay
from bench.peers.jobs import Rates
from bench.peers.systems import PEERS, RELAY
from bench.profile import QUICK
from bench.stage import Stage, machine, open_stage

PROFILE = dataclasses.replace(QUICK, name="peers", http_seconds=1.5)
NAMES = list(dict.fromkeys(peer.name for peer in PEERS))
FAILURES = (RuntimeError, AssertionError, TimeoutError, LookupError, subprocess.TimeoutExpired)


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="bench.peers", description=__doc__)
    parser.add_argument("--waits", type=int, default=1000)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--only", default=",".join(NAMES), help=f"of {','.join(NAMES)}")
    parser.add_argument("--dry", action="store_true", help="print only, write no file")
    given = parser.parse_args()
    given.only = given.only.split(",")
    if unknown := set(given.only) - set(NAMES):
        parser.error(f"no peer {unknown.pop()}; there are {', '.join(NAMES)}")
    return given


def main() -> int:
    """Run all in turn and report; a peer that fails is reported and fails the run at its end."""
    given = arguments()
    chosen = [peer for peer in PEERS if peer.name in given.only]
    jobs = {RELAY: relay.measure, **{peer.title: peer.job for peer in chosen}}
    rates: dict[str, dict[str, list[float]]] = {}
    left_out: dict[str, str] = {}
    failed = False
    before = machine()
    with open_stage(PROFILE, keep=False) as stage:
        for title, job in list(jobs.items()) * given.repetitions:
            if title in left_out:
                continue
            try:
                add(rates, title, timed(title, job, stage, given.waits))
            except install.LeftOut as error:
                left_out[title] = str(error)
            except FAILURES as error:
                left_out[title], failed = f"failed: {str(error)[:200]}", True
                report.say(f"[{title}] {error}")
        outcome = page.Outcome(
            given.waits,
            before,
            stage.settings(),
            chosen,
            {peer.name: install.versions(peer.name) for peer in chosen},
            rates,
            left_out,
        )
    publish(outcome, dry=given.dry)
    return 1 if failed else 0


def timed(title: str, job: Callable[[Stage, int], Rates], stage: Stage, waits: int) -> Rates:
    """Run one job and say how long it took."""
    begun = time.monotonic()
    found = job(stage, waits)
    shown = ", ".join(f"{what} {rate:,.0f}/s" for what, rate in found.items())
    report.say(f"[{title}] {shown} ({time.monotonic() - begun:.0f} s)")
    return found


def add(rates: dict[str, dict[str, list[float]]], title: str, found: Rates) -> None:
    """Add one repetition to the samples."""
    samples = rates.setdefault(title, defaultdict(list))
    for what, rate in found.items():
        samples[what].append(rate)


def publish(outcome: page.Outcome, *, dry: bool) -> None:
    """Print the page, and write it and its data unless `dry`."""
    text = page.page(outcome)
    print(text)
    if dry:
        return
    measured_at = datetime.now(UTC).isoformat(timespec="seconds")  # noqa: TID251 - a report
    data = json.dumps(page.as_json(outcome, measured_at), indent=1)
    (report.FOLDER / "peers.json").write_text(data + "\n")
    (report.FOLDER / "peers.md").write_text(text)
    report.say("Wrote docs/benchmarks/peers.json and .md")


if __name__ == "__main__":
    sys.exit(main())
