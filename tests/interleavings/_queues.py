"""Processes of whole queues: workers, queues used by hand, populates, a person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from s3queue import Backend, Event, LeaseLost, OutcomeUnknown, QueueOptions, StoreError, WorkItem, WorkQueue
from tests.interleavings._owners import QUICK
from tests.interleavings._world import Process

#: Requests may take longer than a lease lives.
PATIENT = replace(QUICK, request_timeout=30, retry_for=30)
#: And leases live for longer than locks outlive their groups.
FRESH = replace(PATIENT, lease_ttl=30, completion_grace=5)

Main = Callable[[Process], Awaitable[None]]


def _queue(process: Process, options: QueueOptions) -> WorkQueue:
    def observe(event: Event) -> None:
        if event.name == "group.done":
            process.audit.completed(process.name, event.fields["hash"], event.fields["epoch"])
        elif event.name == "lease.lost" and "taken over" in event.fields["error"]:
            process.audit.lost(process.name, event.fields["hash"], event.fields["epoch"])

    return WorkQueue(Backend(process.store), options=options, runtime=process.runtime, observer=observe)


def works(options: QueueOptions = QUICK) -> Main:
    """Runs a queue until everything is done, and nobody adds anything any more."""

    async def main(process: Process) -> None:
        async def handle(item: WorkItem) -> str:
            process.audit.begins(process.name, item.hash, item.epoch)
            try:
                await process.store.work(item.hash)
            finally:
                process.audit.ends(process.name, item.hash)
            return process.name

        queue = _queue(process, options)
        settled = False
        while not settled:
            settled = all(other.finished for other in process.world.processes.values() if not other.is_worker)
            await queue.run(handle, workers=1, handle_signals=False)
            await process.runtime.sleep(5.0)

    return main


def by_hand(options: QueueOptions = QUICK) -> Main:
    """Uses a bare queue: nobody renews, nobody stops the work in time."""

    async def main(process: Process) -> None:
        queue = _queue(process, options)
        while (item := await queue.get_work(wait=True)) is not None:
            # Bare, nobody tells an owner that its lease has ended: it finds out when it completes.
            process.audit.begins(process.name, item.hash, item.epoch, lambda: False)
            await process.store.work(item.hash)
            process.audit.ends(process.name, item.hash)
            await _mark_done(process, queue, item)

    return main


async def _mark_done(process: Process, queue: WorkQueue, item: WorkItem) -> None:
    while True:
        try:
            await queue.mark_done(item)
        except LeaseLost:
            process.audit.refused(process.name, item.hash, item.epoch)
        except (OutcomeUnknown, StoreError):
            continue
        return


def populates(paths: Sequence[str]) -> Main:
    """Adds paths, again and again until it is told that they are there."""

    async def main(process: Process) -> None:
        queue = _queue(process, QUICK)
        while True:
            try:
                await queue.populate_queue(paths)
            except (OutcomeUnknown, StoreError):
                continue
            process.audit.populated(paths)
            return

    return main


async def operator(process: Process) -> None:
    """Breaks every lease once, then retries what waits or is dead."""
    process.audit.operators.add(process.name)
    queue = _queue(process, QUICK)
    for group, _ in process.audit.index():
        try:
            await queue.break_lease(group)
            await queue.retry([group])
        except (OutcomeUnknown, StoreError):
            continue


async def janitor(process: Process) -> None:
    """Sweeps once, when locks may have been left over."""
    await process.runtime.sleep(FRESH.completion_grace + 2 * FRESH.margin)
    with suppress(StoreError):
        await _queue(process, FRESH).sweep()
