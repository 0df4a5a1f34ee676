"""Claims against other queues on S3, each at its best setting, on one SeaweedFS: items that need no work.

One process: items a second and CPU, the sides by turns. Four processes: requests an item, counted by a proxy of ours,
and items that ran twice, by a ledger of what ran.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio

from benchmarks import peers
from benchmarks._common import Numbers, Row, alternately, pinned, run_async, server_of, table
from benchmarks.counting_proxy import counting
from s3queue import Backend, QueueOptions, WorkItem, WorkQueue
from s3queue import _keys as keys
from s3queue.stores import CREATE
from s3queue.stores._s3 import S3Store
from tests.conftest import client_of
from tests.servers._process import S3Server

ROUNDS = 3
#: Two conditional writes an item and nothing else: what a store lets any queue do that claims and completes.
LEAST = "two PUTs"
#: By queue: items of one process, and the numbers of workers (messages a poll) that it is tried with.
ITEMS = {"s3queue": 1000, LEAST: 1000, "buquet": 300, "pawn-queue": 300, "pailq": 100}
WORKERS = {"s3queue": (16, 64), LEAST: (16, 64), "buquet": (1, 4), "pawn-queue": (100,), "pailq": (1,)}
PROCESSES, SHARED = 4, 500
COLUMNS = ("side", "workers", "items/s", "cpu s/1000", "ours/theirs", "cpu ours/theirs")


class Bench:
    """Runs any of the queues on one server, each time in a bucket of its own."""

    def __init__(self, server: S3Server) -> None:
        self._server = server
        self._buckets = 0

    def alone(self, side: str, workers: int) -> Numbers:
        """One process from its first look to its last item."""
        server, items = self._bucket(side), ITEMS[side]
        if side in ("s3queue", LEAST):
            with pinned():
                return run_async(ours if side == "s3queue" else least, server, items, workers)
        with tempfile.TemporaryDirectory() as folder:
            orders = _orders(server, items, Path(folder) / "ledger", workers)
            with pinned():
                peers.run(side, {**orders, "action": "fill"})
                found = peers.run(side, {**orders, "action": "work"})
        return {"items/s": found["items"] / found["seconds"], "cpu s/1000": found["cpu"] * 1000 / items}

    def together(self, side: str, processes: int = PROCESSES, items: int = SHARED) -> Numbers:
        """Several processes of a peer on the same items."""
        with counting(self._bucket(side)) as (server, counts), tempfile.TemporaryDirectory() as folder:
            ledger = Path(folder) / "ledger"
            orders = _orders(server, items, ledger, WORKERS[side][0])
            peers.run(side, {**orders, "action": "fill"})
            counts.clear()
            with pinned():
                running = [peers.start(side, {**orders, "action": "work"}) for _ in range(processes)]
            for process in running:
                peers.finish(process)
            ran = Counter(ledger.read_text().split())
        assert len(ran) == items, f"{items - len(ran)} items never ran"
        return {"requests/item": counts.total() / items, "run twice": ran.total() - items}

    def _bucket(self, side: str) -> S3Server:
        self._buckets += 1
        server = replace(self._server, bucket=f"bench-{self._buckets}")
        anyio.run(_make, server, side == "buquet")
        return server


async def _make(server: S3Server, versioned: bool) -> None:
    async with client_of(server) as client:
        if versioned:
            await client.put_bucket_versioning(Bucket=server.bucket, VersioningConfiguration={"Status": "Enabled"})


def _orders(server: S3Server, items: int, ledger: Path, workers: int) -> dict[str, Any]:
    return {
        "endpoint": server.endpoint,
        "access_key": server.access_key,
        "secret_key": server.secret_key,
        "bucket": server.bucket,
        "items": items,
        "ledger": str(ledger),
        "workers": workers,
    }


async def ours(server: S3Server, items: int, workers: int) -> Numbers:
    """The same of ours."""

    async def nothing(item: WorkItem) -> None:
        return None

    async with client_of(server) as client:
        options = QueueOptions(check_store=False, claim_ahead=workers)
        queue = WorkQueue(Backend(S3Store(client, server.bucket, "work")), options=options)
        await queue.populate_queue([f"path-{i}" for i in range(items)])
        began, cpu = time.perf_counter(), time.process_time()
        summary = await queue.run(nothing, workers=workers, handle_signals=False)
        assert summary.done == items, summary
        return _measured(items, began, cpu)


async def least(server: S3Server, items: int, workers: int) -> Numbers:
    """Bodies of the size that ours have, sent as ours are, and nothing to find, to decide or to run."""
    body = b"x" * 180
    names = iter(range(items))
    async with client_of(server) as client:
        store = S3Store(client, server.bucket, "work")

        async def write() -> None:
            for name in names:
                await store.put(keys.lock(f"{name:040x}"), body, CREATE)
                await store.put(keys.flag(f"{name:040x}"), body, CREATE)

        began, cpu = time.perf_counter(), time.process_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(workers):
                tasks.start_soon(write)
        return _measured(items, began, cpu)


def _measured(items: int, began: float, cpu: float) -> Numbers:
    return {
        "items/s": items / (time.perf_counter() - began),
        "cpu s/1000": (time.process_time() - cpu) * 1000 / items,
    }


def run(*, rounds: int = ROUNDS, with_fleets: bool = True) -> list[Row]:
    """Print and return one row a queue, at the setting that served it best, and one a queue of several processes."""
    names = peers.available(("buquet", "pawn-queue", "pailq"))
    with server_of("seaweedfs") as server:
        bench = Bench(server)
        sides: dict[str, Callable[[int], Numbers]] = {
            f"{side} {workers}": lambda _, side=side, workers=workers: bench.alone(side, workers)  # type: ignore[misc]
            for side in ("s3queue", LEAST, *names)
            for workers in WORKERS[side]
        }
        alone = _best(alternately(sides, rounds))
        together: list[Row] = [
            {"side": side, "processes": PROCESSES, "items": SHARED, **bench.together(side)}
            for side in (names if with_fleets else ())
        ]
    print(f"\nseaweedfs: one process, medians of {rounds} rounds, each queue at its best")
    print(table(alone, COLUMNS))
    if together:
        print(table(together, ("side", "processes", "items", "requests/item", "run twice")))
    return alone + together


def _best(found: dict[str, Numbers]) -> list[Row]:
    """A row a queue: its fastest setting, with the least CPU of all its settings."""
    rows: dict[str, Row] = {}
    for label, numbers in found.items():
        side, workers = label.rsplit(maxsplit=1)
        row: Row = {"server": "seaweedfs", "side": side, "workers": int(workers), **numbers}
        other = rows.get(side, row)
        faster = max(row, other, key=lambda one: one["items/s"])
        rows[side] = faster | {"cpu s/1000": min(row["cpu s/1000"], other["cpu s/1000"])}
    mine = rows["s3queue"]
    for side, row in rows.items():
        if side != "s3queue":
            row["ours/theirs"] = mine["items/s"] / row["items/s"]
            row["cpu ours/theirs"] = mine["cpu s/1000"] / row["cpu s/1000"]
    return list(rows.values())
