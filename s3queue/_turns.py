"""Who may run now: a number of handlers at a time, or one alone."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

__all__ = ["Turns"]


class Turns:
    """`count` turns at a time; first come, first served. Whoever wants to be alone waits until all others are over.

    They can be paused, and their number changed, at any time: turns that are taken already are not touched by that.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        #: How many are taken.
        self.busy = 0
        self._queue: deque[anyio.Event] = deque()
        self._paused = False
        self._closed = False
        self._alone = anyio.Lock()
        #: Somebody is alone, or waits for it: waiting for all turns to be over.
        self._last: anyio.Event | None = None

    def resize(self, count: int) -> None:
        """So many turns at a time from now on."""
        self.count = count
        self._serve()

    def pause(self) -> None:
        """Nobody starts until `resume`."""
        self._paused = True

    def resume(self) -> None:
        """Go on after `pause`."""
        self._paused = False
        self._serve()

    def close(self) -> None:
        """Nobody gets a turn any more: whoever waits for one is told."""
        self._closed = True
        for event in self._queue:
            event.set()
        if self._last is not None:
            self._last.set()

    async def take(self) -> bool:
        """Wait for a turn; give it back by `give`. False if there will be none: it was too late."""
        if self._closed:
            return False
        if self._may_start:
            self.busy += 1
            return True
        event = anyio.Event()
        self._queue.append(event)
        try:
            await event.wait()
        except BaseException:
            if event in self._queue:
                self._queue.remove(event)
            else:
                self.give()  # it was given to us while we were being cancelled
            raise
        if event not in self._queue:
            return True
        self._queue.remove(event)  # not served, but told that we are closed
        return False

    def give(self) -> None:
        """The turn is over."""
        self.busy -= 1
        self._serve()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[bool]:
        """One of the turns, unless this is False."""
        taken = await self.take()
        try:
            yield taken
        finally:
            if taken:
                self.give()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[bool]:
        """All turns at once, unless this is False."""
        async with self._alone:
            try:
                while (self.busy or self._paused) and not self._closed:
                    self._last = anyio.Event()
                    await self._last.wait()
                taken = not self._closed
                self._last = self._last or anyio.Event()
                self.busy += taken
                try:
                    yield taken
                finally:
                    self.busy -= taken
            finally:
                self._last = None
                self._serve()

    @property
    def _may_start(self) -> bool:
        return self.busy < self.count and self._last is None and not self._paused

    def _serve(self) -> None:
        if self._last is not None and not (self.busy or self._paused):
            self._last.set()
        while self._queue and self._may_start and not self._closed:
            self.busy += 1
            self._queue.popleft().set()
