"""Whole fleets in virtual time: the real scheduler, pool and lease code on a store in memory with modelled latencies.

One thread plays all processes on trio's mock clock, which jumps as soon as everybody waits. Beside it the five-request
protocol (HEAD flag, HEAD lock, PUT lock, PUT flag, DELETE lock; each process in an order of its own), under the same
model. Handlers take 5 to 15 s. The ideal is all their time shared evenly by all workers.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from random import Random
from typing import Any
from unittest import mock

import anyio
import trio
import trio.testing

from benchmarks._common import Row, table
from s3queue import Backend, QueueOptions, WorkItem, WorkQueue, _catalogue
from s3queue import _keys as keys
from s3queue._errors import NotFound, PreconditionFailed
from s3queue._index import Index
from s3queue._runtime import SeededRuntime
from s3queue.stores import CREATE, OVERWRITE
from s3queue.stores._memory import MemoryBucket, MemoryStore
from s3queue.stores._port import Body, Deleted, Head, Listed, Page, PutMode, Version, Written
from tests import deterministic

WORKERS = 20
#: (processes, groups) of our fleets, and of the other protocol's, whose requests grow with the processes.
OURS = ((1, 2_000), (10, 20_000), (100, 100_000), (1000, 100_000))
OTHERS = ((1, 1_000), (10, 5_000), (100, 10_000))
#: Seconds that a request takes, in the median: what S3 shows from inside its region.
LATENCY = {"put": 0.030, "head": 0.012, "get": 0.015, "list": 0.060, "delete": 0.020, "delete_many": 0.060}
#: Processes start within so many seconds.
STARTING = 2.0
COLUMNS = ("side", "processes", "groups", "requests/group", "wasted %", "make-span/ideal", "wall s")


class Bucket(MemoryBucket):
    """The same, but a listing finds its lines ready: a simulation lists millions."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, Listed] = {}

    def write(self, key: str, data: bytes, mode: PutMode, now: float) -> Version:
        version = super().write(key, data, mode, now)
        self._lines[key] = Listed(key=key, version=version, size=len(data), modified=now)
        return version

    def slice(self, prefix: str, after: str | None, limit: int) -> tuple[list[Listed], bool]:
        start = bisect_left(self._order, prefix)
        if after is not None:
            start = max(start, bisect_right(self._order, after))
        end = bisect_left(self._order, prefix + "\U0010ffff", start)
        lines = self._lines
        return [lines[key] for key in self._order[start : min(end, start + limit)]], end > start + limit


class KnownIndex(Index):
    """The same, with every name and place at hand: all processes of a simulation share one, so it may be large."""

    def __init__(self, text: bytes) -> None:
        super().__init__(text)
        self._listed = [super(KnownIndex, self).name(i) for i in range(len(self))]
        self._places = {name: i for i, name in enumerate(self._listed)}

    def name(self, i: int) -> str:
        return self._listed[i]

    def find(self, group: str) -> int | None:
        return self._places.get(group)

    def position(self, group: str) -> int:
        place = self._places.get(group)
        return super().position(group) if place is None else place


class Modelled(MemoryStore):
    """A process's view of the bucket. Requests take time: half of it before they have an effect, half after."""

    def __init__(self, runtime: SeededRuntime, bucket: MemoryBucket) -> None:
        super().__init__(runtime, bucket)
        self._rng = Random(runtime.seed)
        #: Claims, and those that somebody else had made already.
        self.claims = 0
        self.wasted = 0

    async def get(self, key: str) -> Body:
        async with self._taking("get"):
            return await super().get(key)

    async def head(self, key: str) -> Head:
        async with self._taking("head"):
            return await super().head(key)

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        is_claim = mode == CREATE and key.startswith("worker_locks/")
        self.claims += is_claim
        async with self._taking("put"):
            try:
                return await super().put(key, data, mode)
            except PreconditionFailed:
                self.wasted += is_claim
                raise

    async def delete(self, key: str) -> Deleted:
        async with self._taking("delete"):
            return await super().delete(key)

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        async with self._taking("delete_many"):
            return await super().delete_many(keys)

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        async with self._taking("list"):
            return await super().list(prefix, start_after=start_after, resume=resume, limit=limit)

    def _taking(self, verb: str) -> _Taking:
        return _Taking(LATENCY[verb] * math.exp(self._rng.gauss(0, 0.35)) / 2)


class _Taking:
    def __init__(self, half: float) -> None:
        self._half = half

    async def __aenter__(self) -> None:
        await trio.sleep(self._half)

    async def __aexit__(self, *_: object) -> None:
        await trio.sleep(self._half)


class Work:
    """What the handlers do, and how long it took them together."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self.seconds = 0.0
        self.runs: Counter[str] = Counter()
        self.ended = 0.0

    async def __call__(self, item: WorkItem) -> None:
        await self.do(item.hash)

    async def do(self, group: str) -> None:
        """One group."""
        seconds = self._rng.uniform(5, 15)
        self.runs[group] += 1
        self.seconds += seconds
        await trio.sleep(seconds)
        self.ended = trio.current_time()


async def _ours(stores: list[Modelled], work: Work) -> None:
    async def process(number: int, store: Modelled, runtime: SeededRuntime) -> None:
        await trio.sleep(runtime.rng.random() * STARTING)
        options = QueueOptions(check_store=False, block_warning=0)
        queue = WorkQueue(Backend(store), options=options, runtime=runtime)
        await queue.run(work, workers=WORKERS, handle_signals=False)

    async with anyio.create_task_group() as tasks:
        for number, store in enumerate(stores):
            tasks.start_soon(process, number, store, store._runtime)  # noqa: SLF001 - made for it


async def _five_requests(stores: list[Modelled], work: Work, names: list[str]) -> None:
    async def exists(store: Modelled, key: str) -> bool:
        try:
            await store.head(key)
        except NotFound:
            return False
        return True

    async def worker(store: Modelled, left: list[str]) -> None:
        while left:
            name = left.pop()
            if await exists(store, keys.flag(name)) or await exists(store, keys.lock(name)):
                continue
            await store.put(keys.lock(name), b"", OVERWRITE)
            await work.do(name)
            await store.put(keys.flag(name), b"", OVERWRITE)
            await store.delete(keys.lock(name))

    async with anyio.create_task_group() as tasks:
        for number, store in enumerate(stores):
            left = list(names)
            Random(number).shuffle(left)
            for _ in range(WORKERS):
                tasks.start_soon(worker, store, left)


def simulate(side: str, processes: int, groups: int, seed: int = 1) -> Row:
    """One fleet, from its start to the last completion."""
    began = time.perf_counter()
    clock = trio.testing.MockClock(autojump_threshold=0)
    bucket, work = Bucket(), Work(seed)
    stores: list[Modelled] = []

    async def main() -> None:
        stores.extend(Modelled(SeededRuntime(seed * 10_000 + i), bucket) for i in range(processes))
        data = Index(b"").add([f"path-{i}" for i in range(groups)], 1)[0].encode()
        index = KnownIndex.decode(data)
        bucket.write(keys.INDEX, data, CREATE, 0)
        if side == "s3queue":
            with _read_once(index):
                await _ours(stores, work)
        else:
            await _five_requests(stores, work, [index.name(i) for i in range(groups)])

    deterministic.run(main, clock=clock, seed=seed)
    assert len(work.runs) == groups, f"{groups - len(work.runs)} groups never ran"
    requests = sum((store.requests for store in stores), Counter())
    claims = sum(store.claims for store in stores)
    return {
        "side": side,
        "processes": processes,
        "groups": groups,
        "requests/group": requests.total() / groups,
        "wasted %": 100 * sum(store.wasted for store in stores) / max(1, claims),
        "run twice": sum(count - 1 for count in work.runs.values()),
        "make-span/ideal": work.ended / (work.seconds / (processes * WORKERS)),
        "wall s": time.perf_counter() - began,
        **{f"{verb}/group": count / groups for verb, count in requests.items()},
    }


@contextmanager
def _read_once(index: Index) -> Iterator[None]:
    """What each process would read for itself is read once for all: the index, and the names in the keys."""

    async def compute(size: int, work: Any, *args: Any) -> Any:
        return index if work is Index else b""

    with (
        mock.patch.object(_catalogue, "compute", compute),
        mock.patch.object(keys, "parse_lock", lru_cache(maxsize=None)(keys.parse_lock)),
        mock.patch.object(keys, "parse_flag", lru_cache(maxsize=None)(keys.parse_flag)),
    ):
        yield


def run(*, ours: Sequence[tuple[int, int]] = OURS, others: Sequence[tuple[int, int]] = OTHERS) -> list[Row]:
    """Print and return one row a fleet."""
    rows = [simulate("s3queue", processes, groups) for processes, groups in ours]
    rows += [simulate("five requests", processes, groups) for processes, groups in others]
    print(f"{WORKERS} workers a process, handlers of 5 to 15 s, virtual time")
    print(table(rows, (*COLUMNS, "run twice")))
    return rows
