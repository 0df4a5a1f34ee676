"""Claim to completion: groups a second, CPU and requests, of us and of the protocol that others use.

The five-request protocol: HEAD flag, HEAD lock, PUT lock, PUT flag, DELETE lock, over aiobotocore's client API, in a
random order, by as many coroutines as there are workers. Both sides run alternately on the same server.
"""

from __future__ import annotations

import hashlib
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
from botocore.exceptions import ClientError

from benchmarks.null_server import null_server
from s3queue import Backend, QueueOptions, WorkItem, WorkQueue
from s3queue.stores._s3 import S3Store
from tests.conftest import client_of
from tests.servers._process import S3Server
from tests.servers.seaweed import seaweedfs

GROUPS = {"null": 2000, "seaweedfs": 1000}
ROUNDS = 3
WORKERS = (1, 16, 64, 256)
#: (processes, groups) of the runs with several processes.
FLEETS = ((4, 500), (4, 5000))

Numbers = dict[str, float]


async def ours(server: S3Server, prefix: str, workers: int, groups: int) -> Numbers:
    """One process of ours, start to end."""
    async with client_of(server, max_pool_connections=64) as client:
        queue = WorkQueue(
            Backend(S3Store(client, server.bucket, prefix)),
            options=QueueOptions(check_store=False, claim_ahead=max(8, workers), claim_concurrency=min(64, workers)),
        )
        await queue.populate_queue([f"path-{i}" for i in range(groups)])
        store = queue._workspace.store  # noqa: SLF001 - its counter
        before = sum(store.requests.values())
        lags: list[float] = []

        async def nothing(item: WorkItem) -> None:
            return None

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch_lag, lags)
            began, cpu = time.perf_counter(), time.process_time()
            summary = await queue.run(nothing, workers=workers, handle_signals=False)
            numbers = _measured(groups, began, cpu, sum(store.requests.values()) - before)
            tasks.cancel_scope.cancel()
        assert summary.done == groups, summary
        lags.sort()
        return {**numbers, "lag p99 ms": lags[int(len(lags) * 0.99)] * 1000 if lags else 0.0}


async def five_requests(server: S3Server, prefix: str, workers: int, groups: int) -> Numbers:
    """One process of the five-request protocol."""
    names = [hashlib.sha1(f"path-{i}".encode()).hexdigest() for i in range(groups)]
    random.shuffle(names)
    requests = 0
    async with client_of(server, max_pool_connections=64) as client:

        async def exists(key: str) -> bool:
            nonlocal requests
            requests += 1
            try:
                await client.head_object(Bucket=server.bucket, Key=key)
            except ClientError:
                return False
            return True

        async def work() -> None:
            nonlocal requests
            while names:
                name = names.pop()
                flag, lock = f"{prefix}/done_flags/done_{name}.flag", f"{prefix}/worker_locks/worker_{name}.lock"
                if await exists(flag) or await exists(lock):
                    continue
                requests += 3
                await client.put_object(Bucket=server.bucket, Key=lock, Body=b"")
                await client.put_object(Bucket=server.bucket, Key=flag, Body=b"")
                await client.delete_object(Bucket=server.bucket, Key=lock)

        began, cpu = time.perf_counter(), time.process_time()
        async with anyio.create_task_group() as tasks:
            for _ in range(workers):
                tasks.start_soon(work)
        return _measured(groups, began, cpu, requests)


async def _watch_lag(lags: list[float]) -> None:
    """How late the loop comes round to a task that wants to run every 5 ms."""
    while True:
        asked = time.perf_counter()
        await anyio.sleep(0.005)
        lags.append(max(0.0, time.perf_counter() - asked - 0.005))


def _measured(groups: int, began: float, cpu: float, requests: int) -> Numbers:
    return {
        "groups/s": groups / (time.perf_counter() - began),
        "cpu s/1000": (time.process_time() - cpu) * 1000 / groups,
        "requests/group": requests / groups,
    }


SIDES: dict[str, Callable[[S3Server, str, int, int], Awaitable[Numbers]]] = {
    "s3queue": ours,
    "five requests": five_requests,
}


def alone(where: str, workers: int, rounds: int = ROUNDS) -> dict[str, Numbers]:
    """Medians of each side's numbers, in one process on a server of its own."""
    found: dict[str, list[Numbers]] = {side: [] for side in SIDES}
    with server_of(where) as server, _pinned():
        for round_ in range(rounds):
            for side, run_side in SIDES.items():
                prefix = f"{side.replace(' ', '-')}-{workers}-{round_}"
                backend = {"use_uvloop": find_spec("uvloop") is not None}
                found[side].append(anyio.run(run_side, server, prefix, workers, GROUPS[where], backend_options=backend))
    return {side: _medians(numbers) for side, numbers in found.items()}


def _medians(rounds: list[Numbers]) -> Numbers:
    return {name: statistics.median(numbers[name] for numbers in rounds) for name in rounds[0]}


def fleet(where: str, processes: int, groups: int, workers: int = 16) -> Numbers:
    """Several processes of ours on one workspace: requests a group, and groups that ran twice."""
    with server_of(where) as server, tempfile.TemporaryDirectory() as folder:
        prefix = f"fleet-{processes}-{groups}"
        anyio.run(_populate, server, prefix, groups)
        began = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.claims", server.endpoint, prefix, str(workers)]
        running = [
            subprocess.Popen([*command, str(Path(folder) / str(i))], env={**os.environ, **server.environment()})
            for i in range(processes)
        ]
        assert [process.wait(600) for process in running] == [0] * processes
        seconds = time.perf_counter() - began
        told = [(Path(folder) / str(i)).read_text().split("\n") for i in range(processes)]
    ran = Counter(group for lines in told for group in lines[1:] if group)
    assert len(ran) == groups
    return {
        "requests/group": sum(int(lines[0]) for lines in told) / groups,
        "run twice": sum(count - 1 for count in ran.values()),
        "groups/s": groups / seconds,
    }


async def _populate(server: S3Server, prefix: str, groups: int) -> None:
    async with client_of(server) as client:
        queue = WorkQueue(Backend(S3Store(client, server.bucket, prefix)), options=QueueOptions(check_store=False))
        await queue.populate_queue([f"path-{i}" for i in range(groups)])


async def _member(server: S3Server, prefix: str, workers: int, ledger: Path) -> None:
    """One process of a fleet; writes its requests and the groups that it ran."""
    ran: list[str] = []

    async def note(item: WorkItem) -> None:
        ran.append(item.hash)

    async with client_of(server) as client:
        queue = WorkQueue(Backend(S3Store(client, server.bucket, prefix)), options=QueueOptions(check_store=False))
        await queue.run(note, workers=workers)
        requests = sum(queue._workspace.store.requests.values())  # noqa: SLF001 - its counter
    await anyio.Path(ledger).write_text("\n".join([str(requests), *ran]))


@contextmanager
def server_of(where: str) -> Iterator[S3Server]:
    """The null server or SeaweedFS, on the first CPU."""
    with tempfile.TemporaryDirectory() as folder:
        opened: AbstractContextManager[S3Server] = null_server(cpu=0) if where == "null" else seaweedfs(Path(folder))
        with opened as server:
            yield server


@contextmanager
def _pinned() -> Iterator[None]:
    """This process on the last CPU, where there are two and the system lets us."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def run() -> list[dict[str, Any]]:
    """Print and return one row a server, side and number of workers; then the fleets."""
    rows: list[dict[str, Any]] = []
    for where in GROUPS:
        print(f"\n{where}: {GROUPS[where]} groups, one process, medians of {ROUNDS} rounds")
        print(f"{'workers':>7}  {'side':<14}{'groups/s':>9}{'cpu s/1000':>12}{'requests/group':>16}{'lag p99 ms':>12}")
        for workers in WORKERS:
            sides = alone(where, workers)
            for side, numbers in sides.items():
                rows.append({"server": where, "workers": workers, "side": side, **numbers})
                print(
                    f"{workers:>7}  {side:<14}{numbers['groups/s']:>9.0f}{numbers['cpu s/1000']:>12.2f}"
                    f"{numbers['requests/group']:>16.3f}{numbers.get('lag p99 ms', float('nan')):>12.1f}"
                )
            ratio = sides["s3queue"]["groups/s"] / sides["five requests"]["groups/s"]
            print(f"{'':>7}  ours / five requests: {ratio:.1f}")
    for processes, groups in FLEETS:
        numbers = fleet("null", processes, groups)
        rows.append({"server": "null", "processes": processes, "groups": groups, "side": "s3queue", **numbers})
        print(
            f"\n{processes} processes on {groups} groups (null): {numbers['requests/group']:.3f} requests a group, "
            f"{numbers['run twice']:.0f} run twice, {numbers['groups/s']:.0f} groups/s with the processes' start"
        )
    return rows


if __name__ == "__main__":
    _endpoint, _prefix, _workers, _ledger = sys.argv[1:]
    _server = S3Server("", _endpoint, os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], "bucket")
    anyio.run(_member, _server, _prefix, int(_workers), Path(_ledger))
