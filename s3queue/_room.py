"""Where to claim next, of what a picture shows free, so that those who walk on one ring meet seldom.

All walk upwards. A fresh lock of somebody else's is a *wall*; free groups without a wall between them are a *run*. What
follows a wall is where its owner goes now: whoever comes new to such a run begins far from it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from s3queue._runtime import Random

__all__ = ["Run", "choose", "runs_of"]

#: A run that is shorter is not shared: from its far end down, its owner is met once.
_SHARED_LEAST = 8


@dataclass(frozen=True, slots=True)
class Run:
    """Places of free groups, in order; `walled` if somebody comes in from below."""

    places: Sequence[int]
    walled: bool

    def far_part(self, rng: Random) -> list[int]:
        """What to claim of it, in order, for who comes new to it."""
        count = len(self.places)
        if not self.walled:
            return list(self.places)
        if count < _SHARED_LEAST:
            return list(reversed(self.places))
        return list(self.places[rng.randrange(count // 4, 3 * count // 4) :])

    def beyond(self, place: int) -> list[int]:
        """What to claim of it, in order, for who walks here and has come to `place`; nothing if nobody of us does."""
        first = bisect_left(self.places, place)
        return [] if self.walled and not first else list(self.places[first:])


def runs_of(free: Sequence[int], walls: Sequence[int], *, walled: bool) -> list[Run]:
    """The runs of these free places; both are in order. `walled` says whether the first free place follows a wall."""
    runs = []
    start = 0
    while start < len(free):
        wall = bisect_left(walls, free[start])
        end = bisect_left(free, walls[wall], start) if wall < len(walls) else len(free)
        before = free[start - 1] if start else -1
        runs.append(Run(free[start:end], (wall > 0 and walls[wall - 1] > before) or (walled and not start)))
        start = end
    return runs


def choose(runs: Sequence[Run], place: int, rng: Random) -> list[int]:
    """The places to claim, in order, for who has come to `place`: on, while there is room, or else in another run."""
    for run in runs:
        ours = run.beyond(place)
        if len(ours) >= _SHARED_LEAST:
            return ours
    if not runs:
        return []
    (run,) = rng.choices(runs, [len(run.places) for run in runs])
    return run.far_part(rng)
