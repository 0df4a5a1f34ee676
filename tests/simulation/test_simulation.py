"""Fleets keep the promises: nothing is lost, one owner at a time, one completion, an end, and little waste.

How many fleets: ``--seeds N``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from s3queue.stores import OVERWRITE, MemoryBucket, PutMode, Version
from tests.simulation._fleet import simulate

#: Seeds that found something once, and what.
FOUND = {
    115: "a worker that never asked again after a group whose lock had vanished while the store was in trouble",
    1074: "a completion that waited for its turn in its process, and was sent when its lease had run out",
}


@pytest.mark.parametrize("seed", FOUND)
def test_fleets_that_broke_a_promise_once(seed: int) -> None:
    """They do not any more."""
    report = simulate(seed)

    assert report.violation is None, report.failure()


@pytest.mark.timeout(0)  # it may be given thousands of seeds
def test_fleets_keep_the_promises(seeds: int, proof: Callable[[str], None]) -> None:
    """Whatever happens to them, whatever their settings."""
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        reports = list(processes.map(simulate, range(seeds)))

    proof(
        f"simulation: {seeds} fleets, {sum(report.groups for report in reports)} groups, "
        f"{sum(report.workers for report in reports)} workers, {sum(report.requests for report in reports)} requests, "
        f"{sum(report.seconds for report in reports) / 3600:.1f} h"
    )
    failures = [report.failure() for report in reports if report.violation is not None]
    assert not failures, "\n\n".join(failures)


def test_the_same_seed_is_the_same_history() -> None:
    """To the last write; also in another process, where sets of strings come in another order."""
    first = simulate(5)

    again = simulate(5)

    assert again == first
    assert {_in_a_process_of_its_own(5, hashes) for hashes in ("1", "2")} == {str(first)}


def _in_a_process_of_its_own(seed: int, hashes: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "tests.simulation", str(seed)],
        env={**os.environ, "PYTHONHASHSEED": hashes},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout.splitlines()[-1].rpartition(" in ")[0]


def test_the_auditor_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a store that keeps no condition the promises break, and the auditor says so."""
    original = MemoryBucket.write

    def careless(self: MemoryBucket, key: str, data: bytes, mode: PutMode, now: float) -> Version:
        return original(self, key, data, OVERWRITE, now)

    monkeypatch.setattr(MemoryBucket, "write", careless)

    assert any(simulate(seed).violation for seed in range(5))
