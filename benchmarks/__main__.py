"""The entry point of the benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

from benchmarks import claims, client

BENCHMARKS = {"claims": claims.run, "client": client.run}


def main() -> None:
    """Run one benchmark; print its table, and write it as JSON if told to."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=sorted(BENCHMARKS))
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    machine = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        **{name: version(name) for name in ("s3queue", "aiobotocore", "anyio")},
    }
    print(" ".join(f"{name}={value}" for name, value in machine.items()))
    rows = BENCHMARKS[arguments.name]()
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
