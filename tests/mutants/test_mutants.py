"""Each breakage is noticed by the instrument that is to notice it; the table says after how many schedules or seeds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count, islice
from random import Random

import pytest

from tests.interleavings._explorer import explore, sample
from tests.interleavings._scopes import SCOPES
from tests.mutants._mutants import MUTANTS, Mutant
from tests.simulation._fleet import simulate
from tests.simulation._settings import draw

#: Fleets, and schedules drawn at random, that a breakage may survive; and what is too large a fleet to try.
_FLEETS_MOST, _SCHEDULES_MOST, _GROUPS_MOST = 20, 1000, 100
#: A breakage that merely does not run is none.
_OWN_FAULTS = ("TypeError", "AttributeError", "NameError")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_breakage_is_noticed(
    mutant: Mutant, monkeypatch: pytest.MonkeyPatch, proof: Callable[[str], None]
) -> None:
    """A promise breaks."""
    mutant.patch(monkeypatch)

    tried, broken = _simulated() if mutant.where == "simulation" else _explored(mutant.where)

    proof(f"mutant {mutant.name:34} {mutant.where:10} {tried:5}  {(broken or 'SURVIVES')[:90]}")
    assert not any(fault in (broken or "") for fault in _OWN_FAULTS), broken
    assert broken is not None, f"{mutant.name}: {mutant.what} Nobody notices, in {tried} schedules or seeds."


def test_the_breakages_have_names_and_texts() -> None:
    """One each."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 15
    assert all(mutant.what for mutant in MUTANTS)


def _explored(where: str) -> tuple[int, str | None]:
    scope = SCOPES[where.removesuffix("~")]
    report = sample(scope, range(_SCHEDULES_MOST)) if where.endswith("~") else explore(scope, order=Random(0))
    return report.schedules, None if report.broken is None else report.broken.violation


def _simulated() -> tuple[int, str | None]:
    small = (seed for seed in count() if draw(seed).groups <= _GROUPS_MOST)
    for tried, seed in enumerate(islice(small, _FLEETS_MOST), start=1):
        if broken := simulate(seed).violation:
            return tried, broken
    return _FLEETS_MOST, None
