"""Claim to completion: groups a second, CPU and requests, of us and of the protocol that others use.

The five-request protocol: HEAD flag, HEAD lock, PUT lock, PUT flag, DELETE lock, over aiobotocore's client API, in a
random order, by as many coroutines as there are workers. Both sides run alternately on the same server.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
from botocore.exceptions import ClientError

from benchmarks import versus
from benchmarks._common import Numbers, Row, alternately, medians, pinned, run_async, server_of, table
from benchmarks.null_server import counts
from benchmarks.peers._ledger import Ledger
from s3queue import Backend, QueueOptions, WorkItem, WorkQueue
from s3queue.stores._s3 import S3Store
from tests.conftest import client_of
from tests.servers._process import S3Server

GROUPS = {"null": 2000, "seaweedfs": 1000}
ROUNDS = 3
WORKERS = (1, 16, 64, 256)
#: (processes, groups) of the runs with several processes.
FLEETS = ((4, 500), (4, 5000))

COLUMNS = ("workers", "side", "groups/s", "cpu s/1000", "requests/group", "lag p99 ms", "ours/theirs")

Side = Callable[[S3Server, str, int, int], Awaitable[Numbers]]


async def ours(server: S3Server, prefix: str, workers: int, groups: int) -> Numbers:
    """One process of ours, start to end."""
    async with client_of(server, max_pool_connections=64) as client:
        queue = WorkQueue(
            Backend(S3Store(client, server.bucket, prefix)),
            options=QueueOptions(check_store=False, claim_ahead=max(8, workers)),
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


SIDES: dict[str, Side] = {
    "s3queue": ours,
    "five requests": five_requests,
}


def alone(where: str, workers: int, rounds: int = ROUNDS, groups: int | None = None) -> dict[str, Numbers]:
    """Medians of each side's numbers, in one process on a server of its own."""
    with server_of(where) as server:

        def side_of(side: str, run_side: Side) -> Callable[[int], Numbers]:
            def one(round_: int) -> Numbers:
                prefix = f"{side.replace(' ', '-')}-{workers}-{round_}"
                with pinned():
                    return run_async(run_side, server, prefix, workers, groups or GROUPS[where])

            return one

        return alternately({side: side_of(side, run_side) for side, run_side in SIDES.items()}, rounds)


def fleet(processes: int, groups: int, workers: int = 16) -> Numbers:
    """Several processes of ours on one workspace: requests a group, as the server counts them, and groups run twice."""
    with server_of("null") as server, tempfile.TemporaryDirectory() as folder:
        prefix, ledger = f"fleet-{processes}-{groups}", Path(folder) / "ledger"
        anyio.run(_populate, server, prefix, groups)
        counts(server)  # what populating took
        began = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.claims", server.endpoint, prefix, str(workers), str(ledger)]
        with pinned():
            running = [subprocess.Popen([*command, str(groups)]) for _ in range(processes)]
        assert [process.wait(600) for process in running] == [0] * processes
        seconds, spent = time.perf_counter() - began, counts(server)
        ran = Counter(ledger.read_text().split())
    assert len(ran) == groups
    return {
        "requests/group": sum(spent.values()) / groups,
        "run twice": ran.total() - groups,
        "groups/s": groups / seconds,
        **{f"{verb}/group": spent.get(verb, 0) / groups for verb in ("GET", "HEAD", "LIST", "PUT")},
    }


async def _populate(server: S3Server, prefix: str, groups: int) -> None:
    async with client_of(server) as client:
        queue = WorkQueue(Backend(S3Store(client, server.bucket, prefix)), options=QueueOptions(check_store=False))
        await queue.populate_queue([f"path-{i}" for i in range(groups)])


async def _member(server: S3Server, prefix: str, workers: int, ledger: Ledger) -> None:
    """One process of a fleet; notes what it ran."""

    async def note(item: WorkItem) -> None:
        ledger.note(int(item.work_paths[0].removeprefix("path-")))

    async with client_of(server) as client:
        queue = WorkQueue(Backend(S3Store(client, server.bucket, prefix)), options=QueueOptions(check_store=False))
        await queue.run(note, workers=workers)


def run(
    *,
    groups: dict[str, int] = GROUPS,
    workers: tuple[int, ...] = WORKERS,
    fleets: tuple[tuple[int, int], ...] = FLEETS,
    rounds: int = ROUNDS,
    with_peers: bool = True,
) -> list[Row]:
    """Print and return one row a server, side and number of workers; then the fleets, and the peers."""
    rows: list[Row] = []
    for where, count in groups.items():
        found: list[Row] = []
        for number in workers:
            for side, numbers in alone(where, number, rounds, count).items():
                found.append({"server": where, "workers": number, "side": side, **numbers})
            found[-2]["ours/theirs"] = found[-2]["groups/s"] / found[-1]["groups/s"]
        print(f"\n{where}: {count} groups, one process, medians of {rounds} rounds")
        print(table(found, COLUMNS))
        rows += found
    for processes, count in fleets:
        several = [fleet(processes, count) for _ in range(rounds)]
        row = {"server": "null", "processes": processes, "groups": count, "side": "s3queue"}
        rows.append(row | medians(several) | {"run twice": sum(numbers["run twice"] for numbers in several)})
    print(f"\nseveral processes, medians of {rounds} rounds; groups/s with the processes' start")
    print(table(rows[-len(fleets) :], ("processes", "groups", "requests/group", "run twice", "groups/s")))
    return rows + (versus.run() if with_peers else [])


if __name__ == "__main__":
    _endpoint, _prefix, _workers, _ledger, _groups = sys.argv[1:]
    _server = S3Server("null", _endpoint, "key", "secret", "bucket")
    anyio.run(_member, _server, _prefix, int(_workers), Ledger(_ledger, int(_groups)))
