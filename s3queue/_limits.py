"""A pool's time limit: when it starts nothing more, so that what it holds is finished or handed back in time."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

__all__ = ["TimeLimit"]

#: How many of the latest calls tell how long one takes, and which part of them is to be no longer than that.
_RECENT = 100
_MOST_OF = 0.9


class TimeLimit:
    """`seconds` from `began`, of which the last `reserve` are for handing back. Before a call has ended, one is taken
    to last `guess` seconds; afterwards, as long as nine of ten recent ones at most."""

    def __init__(self, seconds: float, *, began: float, reserve: float, guess: float) -> None:
        #: When what still runs is cancelled.
        self.cutoff = began + seconds - reserve
        self._guess = min(guess, (seconds - reserve) / 2)
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []

    def took(self, seconds: float) -> None:
        """A call has ended, after so long."""
        self._recent.append(seconds)
        insort(self._sorted, seconds)
        if len(self._recent) > _RECENT:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]

    @property
    def last_start(self) -> float:
        """A call that starts later would probably be cut off."""
        return self.cutoff - self._typical

    @property
    def _typical(self) -> float:
        if not self._sorted:
            return self._guess
        return self._sorted[math.ceil(len(self._sorted) * _MOST_OF) - 1]
