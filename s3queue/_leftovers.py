"""The locks of the groups that this process completed: deleted in batches, once nobody needs them any more.

A lock outlives its flag by `completion_grace`, so that whoever claims a group by a fresh listing meets the one or sees
the other (see `Leases.claim`). What is left at the end of the process is swept by whoever lists it next.
"""

from __future__ import annotations

import logging
from collections import deque

import anyio

from s3queue import _keys as keys
from s3queue._errors import StoreError
from s3queue._events import Events
from s3queue._options import QueueOptions
from s3queue._runtime import Runtime
from s3queue.stores._port import Store

__all__ = ["Leftovers"]

#: Locks that are due wait this long for others, or until they fill a request.
_GATHER = 10.0
_REQUEST = 1000


class Leftovers:
    """Locks to delete, oldest first. `run` is their task."""

    def __init__(self, store: Store, options: QueueOptions, runtime: Runtime, events: Events) -> None:
        self._store = store
        self._grace = options.completion_grace
        self._runtime = runtime
        self._events = events
        #: (when its flag was acknowledged, group)
        self._waiting: deque[tuple[float, str]] = deque()
        self._added = anyio.Event()

    def add(self, group: str) -> None:
        """The group's flag was acknowledged by now."""
        self._waiting.append((self._runtime.monotonic(), group))
        self._added.set()

    async def run(self) -> None:
        """Delete what is due, until cancelled."""
        while True:
            if not self._waiting:
                self._added = anyio.Event()
                await self._added.wait()
            await self._runtime.sleep(self._waiting[0][0] + self._grace + _GATHER - self._runtime.monotonic())
            await self.delete_due()

    async def delete_due(self) -> None:
        """Delete the locks that nobody needs any more, if it is worth a request by now."""
        now = self._runtime.monotonic()
        due = sum(acknowledged + self._grace <= now for acknowledged, _ in self._waiting)
        if not due or (due < _REQUEST and self._waiting[0][0] + self._grace + _GATHER > now):
            return
        groups = [self._waiting.popleft()[1] for _ in range(due)]
        try:
            await self._store.delete_many([keys.lock(group) for group in groups])
        except StoreError as error:
            self._events.emit("lock.left", logging.INFO, count=len(groups), error=str(error))
