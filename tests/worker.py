"""A worker process for the tests: runs a handler that keeps a ledger of its own, one line a fact.

Usage: worker.py WORKSPACE LEDGER LEASE_TTL GATE MOST

While the file GATE is missing it begins no more than MOST groups.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio

from s3queue import Event, QueueOptions, WorkItem, open_queue


class Ledger:
    """Lines of JSON, written at once, so that a kill loses none."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, **fact: object) -> None:
        os.write(self._file, json.dumps(fact).encode() + b"\n")


async def main(workspace: str, ledger: Ledger, lease_ttl: float, gate: Path, most: int) -> None:
    begun = 0

    def observe(event: Event) -> None:
        if event.name in ("group.done", "lease.lost", "lease.taken_over"):
            ledger.write(event=event.name, hash=event.fields["hash"])

    async def handle(item: WorkItem) -> list[str]:
        nonlocal begun
        while begun >= most and not gate.exists():  # noqa: ASYNC110 - a file of another process
            await anyio.sleep(0.05)
        begun += 1
        ledger.write(event="began", hash=item.hash, epoch=item.epoch)
        await anyio.sleep(0.05)
        ledger.write(event="ended", hash=item.hash, epoch=item.epoch)
        return list(item.work_paths)

    async with open_queue(workspace, options=QueueOptions(lease_ttl=lease_ttl), observer=observe) as queue:
        summary = await queue.run(handle, workers=16)
    ledger.write(event="summary", done=summary.done, lost=summary.lost, unfinished=summary.unfinished)


if __name__ == "__main__":
    workspace, ledger, lease_ttl, gate, most = sys.argv[1:]
    anyio.run(main, workspace, Ledger(Path(ledger)), float(lease_ttl), Path(gate), int(most))
