"""`python -m bench [--quick|--full] [section …]`: measure, print, write docs/benchmarks/latest.*"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping

from bench import report
from bench.figures import Figure
from bench.profile import DEFAULT, FULL, QUICK, Profile
from bench.sections import (
    edges,
    hot,
    hot_mailbox,
    http_load,
    mailbox,
    match_rate,
    pipeline,
    replies,
    scale,
)
from bench.stage import Stage, machine, open_stage

SECTIONS: Mapping[str, Callable[[Stage], list[Figure]]] = {
    "match_rate": match_rate.measure,
    "open_waitpoints": scale.open_waitpoints,
    "batch_size": scale.batch_size,
    "history": scale.history,
    "pipeline": pipeline.sustained,
    "latency": pipeline.latency,
    "http": http_load.measure,
    "replies": replies.measure,
    "hot": hot.measure,
    "mailbox": mailbox.measure,
    "hot_mailbox": hot_mailbox.measure,
    "fan_out": edges.fan_out,
    "idle": edges.idle,
    "expiry": edges.expiry,
}


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("sections", nargs="*", help=f"of {', '.join(SECTIONS)}; all when none")
    parser.add_argument("--quick", action="store_true", help="small sizes, one repetition")
    parser.add_argument("--full", action="store_true", help="5M waitpoints, 10M recorded events")
    parser.add_argument("--keep", action="store_true", help="leave Kafka and Postgres running")
    parser.add_argument("--dry", action="store_true", help="print only, write no file")
    given = parser.parse_args()
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {unknown[0]}; there are {', '.join(SECTIONS)}")
    return given


def profile_of(given: argparse.Namespace) -> Profile:
    """Return the sizes that were asked for."""
    if given.full:
        return FULL
    return QUICK if given.quick else DEFAULT


def main() -> int:
    """Run the sections and report; one that fails is reported and fails the run at its end."""
    given = arguments()
    profile = profile_of(given)
    figures: list[Figure] = []
    failed: dict[str, str] = {}
    before = machine()
    with open_stage(profile, keep=given.keep) as stage:
        for name in given.sections or SECTIONS:
            begun = time.monotonic()
            report.say(f"[{name}] …")
            try:
                found = SECTIONS[name](stage)
            except (RuntimeError, AssertionError, TimeoutError, LookupError) as error:
                failed[name] = str(error)
                report.say(f"[{name}] failed: {error}")
                continue
            figures += found
            report.show(found, f"{name} ({time.monotonic() - begun:.0f} s)")
        outcome = report.Outcome(profile, before, stage.settings(), figures, failed)
    if not given.dry:
        report.write(outcome)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
