"""Work path by path: paths a second, CPU and requests a path, beside SAQ and arq on a local Redis.

The handlers do nothing, and one process works. A path of ours is on record in an object
store at most `checkpoint_every` after it is done, and its group completes by compare-and-swap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from benchmarks import peers
from benchmarks._common import Numbers, Row, alternately, pinned, run_async, server_of, table
from s3queue import Backend, QueueOptions, WorkQueue
from s3queue.stores._s3 import S3Store
from tests.conftest import client_of
from tests.servers._process import S3Server

ROUNDS = 3
WORKERS = 64
#: Groups, by how many paths each has.
SIZES = {1: 2000, 20: 1000, 200: 500}
JOBS = 3000
#: SAQ and arq are given the best of these.
CONCURRENCY = (16, 64)
COLUMNS = ("side", "paths/group", "paths/s", "cpu us/path", "requests/path")


async def ours(server: S3Server, prefix: str, per_group: int, groups: int, workers: int) -> Numbers:
    """One process of ours, start to end."""
    async with client_of(server, max_pool_connections=64) as client:
        store = S3Store(client, server.bucket, prefix)
        queue = WorkQueue(Backend(store), options=QueueOptions(check_store=False))
        paths = per_group * groups
        await queue.populate_queue([f"path-{i}" for i in range(paths)], items_per_group=per_group)
        counter = queue._workspace.store  # noqa: SLF001 - its counter
        before = counter.requests.copy()

        async def nothing(path: str) -> None:
            return None

        began, cpu = time.perf_counter(), time.process_time()
        summary = await queue.run(nothing, workers=workers, per="path", handle_signals=False)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        assert summary.done == groups, summary
    spent = counter.requests - before
    return {
        "paths/s": paths / seconds,
        "cpu us/path": cpu * 1e6 / paths,
        "requests/path": sum(spent.values()) / paths,
        **{f"{verb}/path": count / paths for verb, count in spent.items()},
    }


def run(*, sizes: dict[int, int] = SIZES, jobs: int = JOBS, rounds: int = ROUNDS, with_peers: bool = True) -> list[Row]:
    """Print and return one row a side and number of paths a group."""
    names = peers.available(("SAQ", "arq")) if with_peers else []
    with server_of("null") as server, _redis() as redis:
        sides: dict[str, Callable[[int], Numbers]] = {
            f"s3queue {per_group}": partial(_ours, server, per_group, groups) for per_group, groups in sizes.items()
        }
        for name in names if redis else ():
            for concurrency in CONCURRENCY:
                orders = {"redis": redis, "jobs": jobs, "concurrency": concurrency}
                sides[f"{name} {concurrency}"] = partial(_peer, name, orders)
        found = alternately(sides, rounds)
    rows: list[Row] = []
    for side, numbers in found.items():
        name, number = side.split()
        rows.append({"side": name, "paths/group" if name == "s3queue" else "concurrency": int(number), **numbers})
    for name in ("SAQ", "arq"):
        settings = [row for row in rows if row["side"] == name]
        for worse in sorted(settings, key=lambda row: row["paths/s"])[:-1]:
            rows.remove(worse)
    print(f"{WORKERS} workers, null server; SAQ and arq on Redis; medians of {rounds} rounds")
    print(table(rows, (*COLUMNS, "concurrency")))
    best = max(row["paths/s"] for row in rows if row["side"] == "s3queue")
    for row in rows:
        if row["side"] != "s3queue":
            row["ours/theirs"] = best / row["paths/s"]
            print(f"ours / {row['side']}: {row['ours/theirs']:.1f}")
    return rows


def _ours(server: S3Server, per_group: int, groups: int, round_: int) -> Numbers:
    with pinned():
        return run_async(ours, server, f"paths-{per_group}-{round_}", per_group, groups, WORKERS)


def _peer(name: str, orders: dict[str, Any], round_: int) -> Numbers:
    with pinned():
        return peers.run(name, orders)


@contextmanager
def _redis() -> Iterator[str | None]:
    with ExitStack() as stack:
        with pinned(min):
            url = stack.enter_context(peers.redis_server())
        yield url
