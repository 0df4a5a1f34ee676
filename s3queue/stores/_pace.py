"""How many requests to a store are under way at a time: as many as callers like, until the store says: too many.

A store that throttles answers 503 to what is beyond its rate. If each request then just waits and tries again, most of
what is sent is refused, and nothing tells whoever has more to send. So all requests share one window, as in TCP. A
refusal halves it, and each further one of those that were under way together takes half a place more; it grows by one
for each windowful of answers while it is what holds requests back. Who claims then waits here, and claims less.
"""

from __future__ import annotations

import math
from collections import deque

import anyio

__all__ = ["Pace"]


class Pace:
    """Admits requests: `enter` before each, `leave` after each, whatever came of it."""

    def __init__(self) -> None:
        #: How many may be under way; infinite until the store throttles for the first time.
        self.window = math.inf
        self.under_way = 0
        #: Counts the times that the window was halved.
        self._era = 0
        self._waiting: deque[anyio.Event] = deque()

    async def enter(self, *, urgent: bool = False) -> int:
        """Wait for a place; returns what `leave` wants. Who is `urgent` goes before all who wait."""
        if self.under_way < self.window:
            self.under_way += 1
            return self._era
        place = anyio.Event()
        if urgent:
            self._waiting.appendleft(place)
        else:
            self._waiting.append(place)
        try:
            await place.wait()
        except BaseException:
            if place.is_set():
                self._pass_on()
            else:
                self._waiting.remove(place)
            raise
        return self._era

    def leave(self, era: int, *, throttled: bool) -> bool:
        """The request that `enter` admitted has ended; `throttled` if the store said that it was one too many.

        Whether the window is smaller now."""
        narrower = throttled and era == self._era
        if narrower:
            self.window = max(1.0, min(self.window, self.under_way) / 2)
            self._era += 1
        elif throttled:
            self.window = max(1.0, self.window - 0.5)
        elif self._waiting:
            self.window += 1 / self.window
        self._pass_on()
        return narrower

    def _pass_on(self) -> None:
        """Give this place to who waits; and those that have come free."""
        self.under_way -= 1
        while self._waiting and self.under_way < self.window:
            self.under_way += 1
            self._waiting.popleft().set()
