"""From open to the first claim in a large workspace: seconds, requests, and memory beyond the index's raw text.

Each measurement is a process of its own against the null server, which is filled beforehand. Memory is the resident
set: its peak until the claim, and what is left then, over what it was before the index was read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

import anyio
import zstandard

from benchmarks._common import Row, medians, pinned, server_of, table
from s3queue import Backend, QueueOptions, WorkQueue
from s3queue.stores._s3 import S3Store
from tests.conftest import client_of
from tests.servers._process import S3Server

GROUPS = (10_000, 100_000, 1_000_000)
DONE = (0, 50, 95)
ROUNDS = 3
FLAG = b'{"v":1,"token":"0123456789abcdef","owner":"host:1:abcdef","epoch":1,"result":null}'
COLUMNS = ("groups", "% done", "seconds", "LIST pages", "requests", "peak bytes/group", "bytes/group")


def fill(server: S3Server, prefix: str, groups: int, done: int) -> int:
    """A workspace of groups of one path, `done` per cent of them completed; returns the bytes of the index's text."""
    names: list[str] = []
    records: list[bytes] = []
    for i in range(groups):
        path = f"s3://bucket/scans/2026/file-{i:07}.pdf"
        names.append(hashlib.sha1(path.encode()).hexdigest())
        records.append(f"{names[-1]},{path}".encode())
    text = b"\n".join(records)
    index = zstandard.ZstdCompressor(write_checksum=True).compress(text)
    _send(f"{server.endpoint}/{server.bucket}/{prefix}/work_index_list.csv.zstd", index)
    flags = [f"{prefix}/done_flags/done_{name}.flag" for name in names[: groups * done // 100]]
    _send(f"{server.endpoint}/-/fill/{server.bucket}", b"\n".join([FLAG, *(flag.encode() for flag in flags)]))
    return len(text)


def _send(url: str, body: bytes) -> None:
    urlopen(Request(url, data=body, method="PUT"), timeout=300).close()


async def first_claim(server: S3Server, prefix: str) -> Row:
    """Open, claim once; in a process that has done nothing else."""
    async with client_of(server) as client:
        store = S3Store(client, server.bucket, prefix)
        # Everything that is loaded lazily is loaded, and the heap is what it is: from here on it is the index.
        await store.list("nothing/")
        before = _memory("VmRSS")
        queue = WorkQueue(Backend(store), options=QueueOptions(check_store=False))
        counter = queue._workspace.store  # noqa: SLF001 - its counter
        began, spent = time.perf_counter(), counter.requests.copy()
        item = await queue.get_work()
        seconds = time.perf_counter() - began
        requests = counter.requests - spent
        assert item is not None
        numbers = {"seconds": seconds, "LIST pages": requests["list"], "requests": sum(requests.values())}
        numbers |= {"peak": _memory("VmHWM") - before, "left": _memory("VmRSS") - before}
        await queue.release(item)
        return numbers


def _memory(what: str) -> int:
    """Bytes, as the kernel counts them for this process (its `getrusage` tells a child its parent's peak)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))


def measure(groups: int, done: tuple[int, ...] = DONE, rounds: int = ROUNDS) -> list[Row]:
    """A row a share of groups done; medians of rounds, which take turns."""
    with server_of("null") as server:
        text = {share: fill(server, f"start-{share}", groups, share) for share in done}
        found: dict[int, list[Row]] = {share: [] for share in done}
        for _ in range(rounds):
            for share in done:
                with pinned():
                    command = [sys.executable, "-m", "benchmarks.start", server.endpoint, f"start-{share}"]
                    out = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
                found[share].append(json.loads(out))
    rows: list[Row] = []
    for share in done:
        row = {"groups": groups, "% done": share, **medians(found[share])}
        # Small workspaces say nothing: there it is the allocator's pages that are counted.
        beyond = {"peak bytes/group": row.pop("peak"), "bytes/group": row.pop("left")}
        big = groups >= 1_000_000
        row |= {name: (size - text[share]) / groups if big else math.nan for name, size in beyond.items()}
        rows.append(row)
    return rows


def run(*, groups: tuple[int, ...] = GROUPS, rounds: int = ROUNDS) -> list[Row]:
    """Print and return one row a size and share of groups done."""
    rows = [row for count in groups for row in measure(count, rounds=rounds)]
    print(f"open to first claim, null server, medians of {rounds} rounds; memory is beyond the index's raw text")
    print(table(rows, COLUMNS))
    for count in groups:
        seconds = {row["% done"]: row["seconds"] for row in rows if row["groups"] == count}
        print(f"{count} groups: time at 95 % done / at 0 %: {seconds[95] / seconds[0]:.2f}")
    return rows


if __name__ == "__main__":
    _endpoint, _prefix = sys.argv[1:]
    print(json.dumps(anyio.run(first_claim, S3Server("null", _endpoint, "key", "secret", "bucket"), _prefix)))
    sys.stdout.flush()
    os._exit(0)  # a large heap takes its time to be torn down, and nobody waits for it
