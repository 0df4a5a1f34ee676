"""Whole fleets in virtual time, from a seed: faults at every request, crashes, wrong clocks, and an auditor.

The auditor sees every write to the bucket and every call of a handler, and holds the design's promises against them at
each step. More seeds: ``S3QUEUE_SEEDS=500``.
"""

from __future__ import annotations

import functools
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence

import anyio
import pytest
import trio
import trio.testing

from s3queue import Backend, QueueOptions, WorkItem, WorkQueue
from s3queue import _keys as keys
from s3queue._index import Index
from s3queue._records import LockRecord, LockState, looks_released
from s3queue._runtime import SeededRuntime
from s3queue.stores import OVERWRITE, MemoryBucket, MemoryStore, PutMode, Version
from s3queue.testing import Fault, FaultyStore

SEEDS = int(os.environ.get("S3QUEUE_SEEDS", "25"))
GROUPS = 60
OPTIONS = QueueOptions(
    lease_ttl=20, margin=2, max_attempts=8, backoff=2, backoff_max=8, request_timeout=3, retry_for=8, poll_max=5,
    index_refresh=10, block_warning=0, check_store=False, completion_grace=12,
)  # fmt: skip


class AuditedBucket(MemoryBucket):
    """A bucket that refuses, by an assertion, whatever the protocol never does."""

    def write(self, key: str, data: bytes, mode: PutMode, now: float) -> Version:
        before = self.find(key).data if self.has(key) else None
        version = super().write(key, data, mode, now)
        if key.startswith(keys.FLAGS):
            assert before is None, f"{key} was written twice"
        elif key.startswith(keys.LOCKS):
            self._audit_lock(key, before, data)
        elif key == keys.INDEX and before is not None:
            old, new = Index.decode(before), Index.decode(data)
            assert set(old.lines()) <= set(new.lines()), "the index lost groups"
        return version

    def remove(self, key: str) -> None:
        if self.has(key):
            group = keys.parse_lock(key)
            assert group is not None, f"{key} was deleted"
            assert self.has(keys.flag(group)), f"{key} was deleted, and its group is not done"
        super().remove(key)

    def has(self, key: str) -> bool:
        found, _ = self.slice(key, None, 1)
        return bool(found) and found[0].key == key

    def _audit_lock(self, key: str, before: bytes | None, data: bytes) -> None:
        lock = LockRecord.decode(data)
        assert looks_released(len(data)) == (lock.state is not LockState.HELD)
        if before is None:
            return
        old = LockRecord.decode(before)
        assert old.token != lock.token, f"{key}: two intents have one token"
        assert lock.epoch - old.epoch in (0, 1), f"{key}: epoch {old.epoch} → {lock.epoch}"
        assert lock.failures - old.failures in (0, 1), f"{key}: failures {old.failures} → {lock.failures}"
        taken = (old.owner != lock.owner or old.state is not LockState.HELD) and lock.state is LockState.HELD
        assert taken == (lock.epoch > old.epoch), f"{key}: an owner without an epoch of its own"


class Auditor:
    """Who runs what, now."""

    def __init__(self, bucket: AuditedBucket) -> None:
        self.bucket = bucket
        self.running: dict[str, set[str]] = {}
        self.ended = Counter[str]()

    async def handle(self, machine: Machine, item: WorkItem) -> str:
        alive = {name for name in self.running.get(item.hash, set()) if not Machine.by_name[name].dead}
        assert not alive, f"{item.hash} runs on {alive}, and on {machine.name}"
        done = item.epoch == 1 and self.bucket.has(keys.flag(item.hash))
        assert not done, f"{item.hash} was claimed anew by {machine.name}, and was done"
        self.running.setdefault(item.hash, set()).add(machine.name)
        try:
            await machine.runtime.sleep(machine.runtime.rng.expovariate(0.2))
            if machine.runtime.rng.random() < 0.03:
                raise ValueError("a failure of the handler's own")
        finally:
            self.running[item.hash].discard(machine.name)
        self.ended[item.hash] += 1
        return machine.name


class Machine:
    """One process: its clock is wrong, its store misbehaves, and it may be killed at any time."""

    by_name: dict[str, Machine]

    def __init__(self, name: str, bucket: MemoryBucket, seed: int, rate: float) -> None:
        self.name = name
        self.dead = False
        self.runtime = SeededRuntime(seed, skew=random.Random(seed).choice([-3600.0, 0.0, 3600.0]))
        store = FaultyStore(_Plug(MemoryStore(self.runtime, bucket, latency=0.05), self), self.runtime)
        self.store = store
        store.chaos(random.Random(seed + 1), rate, _FAULTS, seconds=4.0)
        self.queue = WorkQueue(Backend(store), options=OPTIONS, runtime=self.runtime)
        self.scope = anyio.CancelScope()
        self.by_name[name] = self

    async def work(self, auditor: Auditor) -> None:
        """Run until everything is done, or until killed."""
        with self.scope:
            async with self.store:
                await self.queue.run(functools.partial(auditor.handle, self), workers=4, handle_signals=False)

    def kill(self) -> None:
        """Nothing that it still wants to write reaches the store."""
        self.dead = True
        self.scope.cancel()


class _Plug:
    """The cable of a machine: pulled when it is dead."""

    def __init__(self, store: MemoryStore, machine: Machine) -> None:
        self._store = store
        self._machine = machine

    def __getattr__(self, name: str) -> object:
        value = getattr(self._store, name)
        if not callable(value):
            return value

        async def call(*args: object, **kwargs: object) -> object:
            if self._machine.dead:
                await anyio.sleep_forever()
            return await value(*args, **kwargs)

        return call


_FAULTS: Sequence[Fault] = tuple(Fault)


async def simulate(seed: int, bucket: AuditedBucket) -> Auditor:
    """Four places for machines, of which some are killed and replaced, and two populates at the same time."""
    Machine.by_name = {}
    rng = random.Random(seed)
    rate = rng.choice([0.0, 0.02, 0.1])
    auditor = Auditor(bucket)

    async def place(number: int) -> None:
        for life in range(3):
            machine = Machine(f"m{number}.{life}", bucket, seed * 100 + number * 10 + life, rate)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(machine.work, auditor)
                if life < 2 and rng.random() < 0.6:
                    await anyio.sleep(rng.uniform(0, 60))
                    machine.kill()
            if not machine.dead:
                return

    async def populate(half: int) -> None:
        machine = Machine(f"p{half}", bucket, seed * 100 + 90 + half, rate)
        async with machine.store:
            await machine.queue.populate_queue([f"{half}-{i}" for i in range(GROUPS)], 2)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(populate, 0)
        tasks.start_soon(populate, 1)
    async with anyio.create_task_group() as tasks:
        for number in range(4):
            tasks.start_soon(place, number)
    return auditor


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_fleet_keeps_the_promises(seed: int) -> None:
    """Whatever happens: nothing is lost, one owner at a time, one completion, epochs and counts that never go back."""
    bucket = AuditedBucket()

    auditor = _in_virtual_time(simulate, seed, bucket)

    index = Index.decode(bucket.find(keys.INDEX).data)
    populated = sorted(f"{half}-{i}" for half in (0, 1) for i in range(GROUPS))
    assert sorted(path for _, paths in index for path in paths) == populated
    for group, _ in index:
        done = bucket.has(keys.flag(group))
        lock = LockRecord.decode(bucket.find(keys.lock(group)).data) if bucket.has(keys.lock(group)) else None
        dead = lock is not None and lock.state is LockState.DEAD
        assert done or dead, f"{group} is lost"
        assert auditor.ended[group] >= 1 or dead


def _in_virtual_time(run: Callable[..., object], *args: object) -> Auditor:
    clock = trio.testing.MockClock(autojump_threshold=0)
    return trio.run(functools.partial(run, *args), clock=clock)  # type: ignore[arg-type]


class _Careless(AuditedBucket):
    """Keeps no condition: every write is applied, as on a store that ignores If-Match."""

    def write(self, key: str, data: bytes, mode: PutMode, now: float) -> Version:
        return super().write(key, data, OVERWRITE, now)


def test_the_auditor_can_fail() -> None:
    """On a store that ignores conditions the promises break, and the auditor says so."""
    with pytest.raises((AssertionError, BaseExceptionGroup)) as caught:
        _many_seeds(_Careless)

    flat = caught.value
    while isinstance(flat, BaseExceptionGroup):
        flat = flat.exceptions[0]
    assert isinstance(flat, AssertionError)


def _many_seeds(bucket: type[AuditedBucket]) -> None:
    for seed in range(10):
        _in_virtual_time(simulate, seed, bucket())
