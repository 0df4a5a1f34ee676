"""One workspace as one process sees it: its store with deadlines and retries, its index, its leases."""

from __future__ import annotations

import anyio

from s3queue._catalogue import Catalogue
from s3queue._events import Events, Observer
from s3queue._lease import Leases
from s3queue._operator import Operator
from s3queue._options import QueueOptions
from s3queue._runtime import Runtime
from s3queue._store_check import check_store
from s3queue.stores._port import Store
from s3queue.stores._retry import RetryingStore

__all__ = ["Workspace"]

#: Deadline of one request for the whole index, which may be hundreds of megabytes.
_INDEX_TIMEOUT = 300.0

_checked: set[str] = set()


class Workspace:
    """The parts that everything above shares; no task and no connection of its own."""

    def __init__(
        self, store: Store, *, options: QueueOptions | None, runtime: Runtime | None, observer: Observer | None = None
    ) -> None:
        self.options = options or QueueOptions()
        self.runtime = runtime or Runtime()
        self.events = Events(observer)
        self.store = RetryingStore(
            store,
            self.runtime,
            timeout=self.options.request_timeout,
            retry_for=self.options.retry_for,
            events=self.events,
        )
        self.catalogue = Catalogue(self.store.with_timeout(_INDEX_TIMEOUT), self.runtime, self.events)
        self.leases = Leases(self.store, self.options, self.runtime, self.events)
        self.locks = self.leases.locks
        self.operator = Operator(self.locks, self.store, self.catalogue, self.options, self.runtime, self.events)
        self._checking = anyio.Lock()

    async def check(self) -> None:
        """Prove once a process that the store can carry the protocol. Raises `StoreUnsuitable`."""
        async with self._checking:
            if not self.options.check_store or self.store.name in _checked:
                return
            await check_store(self.store, self.runtime, self.events, unsafe=self.options.unsafe_store)
            _checked.add(self.store.name)
