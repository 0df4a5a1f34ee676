"""Who may run now: a number of handlers at a time, or one alone."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

__all__ = ["Turns"]


class Turns:
    """`count` shared turns at a time. Whoever wants to be alone waits until all of them are over; nobody starts
    meanwhile."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = anyio.Semaphore(count, fast_acquire=True)
        self._alone = anyio.Lock()
        self._open = anyio.Event()
        self._open.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """One of the turns."""
        await self.take()
        try:
            yield
        finally:
            self.give()

    async def take(self) -> None:
        """Wait for a turn; give it back by `give`."""
        while not self._open.is_set():
            await self._open.wait()
        await self._free.acquire()

    def give(self) -> None:
        """The turn is over."""
        self._free.release()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """All turns at once."""
        async with self._alone:
            self._open = anyio.Event()
            taken = 0
            try:
                while taken < self._count:
                    await self._free.acquire()
                    taken += 1
                yield
            finally:
                for _ in range(taken):
                    self._free.release()
                self._open.set()
