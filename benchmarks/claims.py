"""Claim → complete of no-op groups on one SeaweedFS: ours against the usual five requests, alternately, medians.

The five-request protocol is olmOCR's: HEAD flag, HEAD lock, PUT lock, PUT flag, DELETE lock, on a shuffled list. It is
written here on aiobotocore's client API, so that both sides pay the same for a request.
"""

from __future__ import annotations

import hashlib
import random
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
from botocore.exceptions import ClientError

from s3queue import Backend, QueueOptions, WorkItem, WorkQueue
from s3queue.stores._s3 import S3Store
from tests.conftest import client_of
from tests.servers._process import S3Server
from tests.servers.seaweed import seaweedfs

GROUPS = 400
ROUNDS = 3
WORKERS = (1, 16, 64)


async def ours(server: S3Server, prefix: str, workers: int) -> dict[str, float]:
    async with client_of(server, max_pool_connections=max(16, workers)) as client:
        store = S3Store(client, server.bucket, prefix)
        queue = WorkQueue(
            Backend(store), options=QueueOptions(check_store=False, claim_concurrency=max(1, workers // 2))
        )
        await queue.populate_queue([f"path-{i}" for i in range(GROUPS)])

        async def nothing(item: WorkItem) -> None:
            return None

        requests = Counting(client)
        began, cpu = time.perf_counter(), time.process_time()
        summary = await queue.run(nothing, workers=workers, handle_signals=False)
        assert summary.done == GROUPS, summary
        return measured(began, cpu, requests.count)


async def five_requests(server: S3Server, prefix: str, workers: int) -> dict[str, float]:
    names = [hashlib.sha1(f"path-{i}".encode()).hexdigest() for i in range(GROUPS)]
    random.shuffle(names)
    async with client_of(server, max_pool_connections=max(16, workers)) as client:
        requests = Counting(client)

        async def exists(key: str) -> bool:
            try:
                await client.head_object(Bucket=server.bucket, Key=key)
            except ClientError:
                return False
            return True

        async def work() -> None:
            while names:
                name = names.pop()
                flag, lock = f"{prefix}/done_flags/done_{name}.flag", f"{prefix}/worker_locks/worker_{name}.lock"
                if await exists(flag) or await exists(lock):
                    continue
                await client.put_object(Bucket=server.bucket, Key=lock, Body=b"")
                await client.put_object(Bucket=server.bucket, Key=flag, Body=b"")
                await client.delete_object(Bucket=server.bucket, Key=lock)

        began, cpu = time.perf_counter(), time.process_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(workers):
                tasks.start_soon(work)
        return measured(began, cpu, requests.count)


class Counting:
    """Counts the requests that a client sends."""

    def __init__(self, client: Any) -> None:
        self.count = 0
        client.meta.events.register("before-send.s3", self._sent)

    def _sent(self, **_: object) -> None:
        self.count += 1


def measured(began: float, cpu: float, requests: int) -> dict[str, float]:
    seconds = time.perf_counter() - began
    return {
        "groups/s": GROUPS / seconds,
        "cpu s/1000": (time.process_time() - cpu) * 1000 / GROUPS,
        "requests/group": requests / GROUPS,
    }


SIDES: dict[str, Callable[[S3Server, str, int], Awaitable[dict[str, float]]]] = {
    "s3queue": ours,
    "five requests": five_requests,
}


def run() -> list[dict[str, object]]:
    """Print and return one row a side and number of workers."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, seaweedfs(Path(folder)) as server:
        print(f"{GROUPS} groups, medians of {ROUNDS} rounds, one process, one SeaweedFS")
        print(f"{'workers':>7}  {'side':<14}{'groups/s':>9}{'cpu s/1000':>12}{'requests/group':>16}")
        for workers in WORKERS:
            results: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
            for i in range(ROUNDS):
                for side, measure in SIDES.items():
                    results[side].append(anyio.run(measure, server, f"{side[0]}{workers}-{i}", workers))
            for side, rounds in results.items():
                row = {name: statistics.median(r[name] for r in rounds) for name in rounds[0]}
                rows.append({"workers": workers, "side": side, **row})
                values = f"{row['groups/s']:>9.0f}{row['cpu s/1000']:>12.1f}{row['requests/group']:>16.2f}"
                print(f"{workers:>7}  {side:<14}{values}")
    return rows
