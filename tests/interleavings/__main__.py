"""Explore scopes, or replay one schedule of one: ``python -m tests.interleavings late "w1.0 w1.1z"``."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace

from tests.interleavings._choices import parse
from tests.interleavings._explorer import Report, explore, replay, sample
from tests.interleavings._scopes import SCOPES
from tests.interleavings._world import Scope


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.interleavings", description=__doc__)
    arguments.add_argument("scope", nargs="?", choices=SCOPES, help="this one only")
    arguments.add_argument("schedule", nargs="?", help="replay this schedule of it, and show its trace")
    arguments.add_argument("--deep", action="store_true", help="allow more preemptions and faults: takes long")
    arguments.add_argument("--seeds", type=int, default=0, metavar="N", help="draw so many schedules at random instead")
    given = arguments.parse_args()
    if given.schedule is not None:
        _show(SCOPES[given.scope], given.schedule)
        return
    broken = False
    for scope in [SCOPES[given.scope]] if given.scope else SCOPES.values():
        began = time.monotonic()
        report = _report(scope, deep=given.deep, seeds=given.seeds)
        print(f"{report} in {time.monotonic() - began:.1f} s", flush=True)
        if report.broken is not None:
            broken = True
            print(report.failure())
    sys.exit(broken)


def _report(scope: Scope, *, deep: bool, seeds: int) -> Report:
    if seeds:
        return sample(scope, range(seeds))
    if deep:
        scope = replace(scope, preemptions=scope.deep[0], faults=scope.deep[1])
    return explore(scope)


def _show(scope: Scope, schedule: str) -> None:
    outcome = replay(scope, parse(schedule))
    print("\n".join(outcome.trace))
    if outcome.violation is not None:
        sys.exit(outcome.violation)


if __name__ == "__main__":
    main()
