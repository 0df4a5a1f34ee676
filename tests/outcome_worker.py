"""A worker process of the outcomes test: some paths raise, some kill it; it keeps a ledger of its own.

Usage: outcome_worker.py WORKSPACE LEDGER MARKS [fixed]
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import anyio

from s3queue import Event, QueueOptions, current_item, open_queue
from tests.worker import Ledger

OPTIONS = QueueOptions(lease_ttl=9, backoff=1, checkpoint_every=2, claim_ahead=2, poll_max=3)


class Marks:
    """What the first run of a path leaves for later ones: files, so that they outlive processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def first(self, path: str) -> bool:
        """Whether nobody asked this about the path before."""
        try:
            os.close(os.open(self._folder / path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


async def main(workspace: str, ledger: Ledger, marks: Marks, fixed: bool) -> None:
    async def handle(path: str) -> dict[str, str]:
        item = current_item()
        ledger.write(event="began", path=path, epoch=item.epoch)
        await anyio.sleep(0.01)
        kind = path.split("-")[1]
        if (kind == "once" and marks.first(path)) or (kind == "always" and not fixed):
            ledger.write(event="raised", path=path)
            raise ValueError(f"{path} fails")
        if kind == "killer" and not fixed:
            os._exit(9)
        ledger.write(event="ended", path=path, hash=item.hash, requests=sum(queue._workspace.store.requests.values()))
        return {"of": path}

    def observe(event: Event) -> None:
        if event.name in ("group.claimed", "lease.renewed"):
            ledger.write(event=event.name, **event.fields)

    async with open_queue(workspace, options=OPTIONS, observer=observe) as queue:
        await queue.run(handle, workers=16, per="path")
        ledger.write(event="requests", requests=sum(queue._workspace.store.requests.values()))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Ledger(Path(sys.argv[2])), Marks(Path(sys.argv[3])), "fixed" in sys.argv[4:])
