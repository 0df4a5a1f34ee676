"""A bucket and owners on it, for tests of the lease protocol."""

from __future__ import annotations

from dataclasses import dataclass

from s3queue import Event, QueueOptions
from s3queue import _keys as keys
from s3queue._events import Events
from s3queue._lease import Leases
from s3queue._outcomes import Lease
from s3queue._records import LockRecord
from s3queue._runtime import SeededRuntime
from s3queue.stores import MemoryBucket, MemoryStore
from s3queue.testing import FaultyStore

GROUP = "ab" * 20
LOCK, FLAG = keys.lock(GROUP), keys.flag(GROUP)
OPTIONS = QueueOptions(lease_ttl=30, margin=2, request_timeout=5, retry_for=5, max_attempts=3, backoff=10)


@dataclass
class Owner:
    """One process's side of the protocol."""

    leases: Leases
    store: FaultyStore
    runtime: SeededRuntime
    events: list[Event]


class World:
    """A bucket, and owners on it."""

    def __init__(self) -> None:
        self.bucket = MemoryBucket()
        self._owners = 0

    def owner(self, *, skew: float = 0.0) -> Owner:
        self._owners += 1
        runtime = SeededRuntime(self._owners, skew=skew)
        store = FaultyStore(MemoryStore(runtime, self.bucket), runtime)
        events: list[Event] = []
        return Owner(Leases(store, OPTIONS, runtime, Events(events.append)), store, runtime, events)

    def lock(self) -> LockRecord:
        return LockRecord.decode(self.bucket.find(LOCK).data)

    def has(self, key: str) -> bool:
        return key in self.keys()

    def keys(self) -> list[str]:
        return [item.key for item in self.bucket.slice("", None, 10**6)[0]]


async def claimed(owner: Owner) -> Lease:
    lease = await owner.leases.claim(GROUP)
    assert isinstance(lease, Lease)
    return lease
