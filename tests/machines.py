"""Processes in virtual time: queues on one memory bucket, through a store with faults."""

from __future__ import annotations

import functools
from typing import Any

import anyio

from s3queue import (
    Backend,
    Event,
    QueueOptions,
    WorkQueue,
)
from s3queue import _keys as keys
from s3queue._records import Failure, Flag, LockRecord
from s3queue._runtime import SeededRuntime
from s3queue.stores import MemoryBucket, MemoryStore
from s3queue.testing import FaultyStore

OPTIONS = QueueOptions(lease_ttl=30, backoff=2, block_warning=0, check_store=False, request_timeout=5, retry_for=8)


class Machine:
    """One process's queue on a shared bucket."""

    def __init__(self, bucket: MemoryBucket, seed: int = 1, **options: Any) -> None:
        runtime = SeededRuntime(seed)
        values = {name: getattr(OPTIONS, name) for name in OPTIONS.__slots__}
        self.bucket = bucket
        self.memory = MemoryStore(runtime, bucket, latency=0.01)
        self._plugged = True
        self.store = FaultyStore(_Plug(self.memory, self), runtime)
        self.events: list[Event] = []
        self.backend = Backend(self.store)
        self.queue = WorkQueue(
            self.backend,
            options=QueueOptions(**{**values, **options}),
            runtime=runtime,
            observer=self.events.append,
        )
        self.run = functools.partial(self.queue.run, handle_signals=False)

    def unplug(self) -> None:
        """From now on nothing that this process wants of the store reaches it, or comes back."""
        self._plugged = False

    @property
    def plugged(self) -> bool:
        return self._plugged

    def saw(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def flags(self) -> dict[str, Flag]:
        found, _ = self.bucket.slice(keys.FLAGS, None, 10**6)
        return {item.key: Flag.decode(self.bucket.find(item.key).data) for item in found}

    async def results(self) -> dict[str, Any]:
        """What the queue shows of each path's result; each path once."""
        found = [result async for result in self.queue.results()]
        assert len({result.path for result in found}) == len(found), "a path appears twice"
        return {result.path: result.result for result in found}

    def locks(self) -> list[LockRecord]:
        """Those of groups that are not done: the others are left over, and guard nothing."""
        return list(self.locks_by_group().values())

    def locks_by_group(self) -> dict[str, LockRecord]:
        found, _ = self.bucket.slice(keys.LOCKS, None, 10**6)
        done = {keys.parse_flag(key) for key in self.flags()}
        groups = {group: item.key for item in found if (group := keys.parse_lock(item.key)) and group not in done}
        return {group: LockRecord.decode(self.bucket.find(key).data) for group, key in groups.items()}

    def failures(self) -> list[Failure]:
        found, _ = self.bucket.slice(keys.FAILURES, None, 10**6)
        return [Failure.decode(self.bucket.find(item.key).data) for item in found]


class _Plug:
    """The cable of a machine."""

    def __init__(self, store: MemoryStore, machine: Machine) -> None:
        self._store = store
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._store, name)
        if not callable(value):
            return value

        async def call(*args: object, **kwargs: object) -> object:
            if not self._machine.plugged:
                await anyio.sleep_forever()
            return await value(*args, **kwargs)

        return call


async def machine(paths: int, per_group: int = 1, **options: Any) -> Machine:
    made = Machine(MemoryBucket(), **options)
    await made.queue.populate_queue([f"p{i:03}" for i in range(paths)], per_group)
    return made
