"""A worker, or a populate, that keeps a ledger outside the queue.

Usage: worker.py work WORKSPACE LEDGER SEED group|path | worker.py populate WORKSPACE PREFIX COUNT
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from random import Random

import anyio

from s3queue import Event, OutcomeUnknown, QueueOptions, StoreError, current_item, open_queue
from s3queue._pool import Per

#: Short, so that much happens in a minute: a stopped process loses its leases after 4 s, others take them after 8.
OPTIONS = QueueOptions(
    lease_ttl=6, margin=2, request_timeout=2, retry_for=5, backoff=0.5, backoff_max=1, max_attempts=50, max_crashes=50,
    claim_ahead=2, completion_grace=5, poll_min=0.5, poll_max=2, index_refresh=2, block_warning=0,
    checkpoint_every=1,
)  # fmt: skip
#: Lies beside the ledgers from when nobody adds anything any more.
SETTLED = "settled"


class Ledger:
    """Lines of JSON with the machine's monotonic clock; each is on disk before anything else happens."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)

    def write(self, event: str, **fact: object) -> None:
        line = json.dumps({"event": event, "at": time.clock_gettime(time.CLOCK_MONOTONIC), "pid": os.getpid(), **fact})
        os.write(self._file, line.encode() + b"\n")
        os.fsync(self._file)


async def work(workspace: str, ledger_at: Path, seed: int, per: Per) -> None:
    """Runs the queue, again and again, until it is complete and settled."""
    ledger, rng = Ledger(ledger_at), Random(seed)
    settled_at = ledger_at.with_name(SETTLED)

    def observe(event: Event) -> None:
        if event.name == "group.done":
            ledger.write("told", group=event.fields["hash"], epoch=event.fields["epoch"])

    async def handle(argument: object) -> list[object]:
        item, path = current_item(), argument if isinstance(argument, str) else ""
        run = {"group": item.hash, "epoch": item.epoch, "path": path}
        ledger.write("began", **run)
        try:
            # One in twenty needs renewals.
            for _ in range(60 if rng.random() < 0.05 else rng.randint(1, 8)):
                await anyio.sleep(0.15)
                ledger.write("step", **run)
        except anyio.get_cancelled_exc_class():
            ledger.write("cancelled", **run)
            raise
        ledger.write("returned", **run)
        return [os.getpid(), item.epoch, path]

    while True:
        settled = settled_at.exists()
        try:
            async with open_queue(workspace, options=OPTIONS, observer=observe) as queue:
                summary = await queue.run(handle, workers=6, per=per)
        except StoreError:  # what a supervisor is for; a full disk fails the start-up check, too
            await anyio.sleep(0.5)
            continue
        if settled and summary.complete:
            return


async def populate(workspace: str, prefix: str, count: int) -> None:
    """Adds its paths until it is told that they are there."""
    while True:
        try:
            async with open_queue(workspace, options=OPTIONS) as queue:
                await queue.populate_queue([f"{prefix}-{i}" for i in range(count)], items_per_group=3)
                return
        except (OutcomeUnknown, StoreError):
            await anyio.sleep(0.5)


if __name__ == "__main__":
    if sys.argv[1] == "work":
        anyio.run(work, sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), "path" if sys.argv[5] == "path" else "group")
    else:
        anyio.run(populate, sys.argv[2], sys.argv[3], int(sys.argv[4]))
