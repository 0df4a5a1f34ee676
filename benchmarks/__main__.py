"""The entry point of the benchmarks."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from benchmarks._common import Row, keep, machine

BENCHMARKS = ("client", "claims", "paths", "start", "fleet", "cost", "bars", "report")


def main() -> int:
    """Run one benchmark; print its table, and write it as JSON if told to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=BENCHMARKS)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    print(" ".join(f"{name}={value}" for name, value in machine().items()))
    run: Callable[[], list[Row]] = import_module(f"benchmarks.{arguments.name}").run
    rows = run()
    if arguments.json is not None:
        keep(rows, arguments.json)
    return 1 if any(row.get("verdict") == "fails" for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
