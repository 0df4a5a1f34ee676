"""Simulate the fleets of seeds: ``python -m tests.simulation 17`` or ``python -m tests.simulation 0 5000``."""

from __future__ import annotations

import argparse
import sys
import time

from tests.simulation._fleet import simulate


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    arguments.add_argument("first", type=int, help="the seed, or the first of them")
    arguments.add_argument("end", type=int, nargs="?", help="the first seed that is not simulated any more")
    given = arguments.parse_args()
    broken = 0
    for seed in range(given.first, given.first + 1 if given.end is None else given.end):
        began = time.monotonic()
        report = simulate(seed)
        took = time.monotonic() - began
        if given.end is None or took > 5:
            print(f"{seed}: {report.settings}\n{report} in {took:.1f} s")
        if report.violation is not None:
            broken += 1
            print(f"{seed}: {report.failure()}", flush=True)
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
