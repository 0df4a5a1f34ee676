"""Processes of the lease protocol alone: they claim one group, and end their leases in different ways.

What an owner is told it tells the audit, which knows whether that is true.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from s3queue import QueueOptions
from s3queue._errors import LeaseLost, OutcomeUnknown, StoreError
from s3queue._outcomes import Busy, Completed, GroupDead, Lease, Unsettled
from s3queue._workspace import Workspace
from tests.interleavings._world import Process

GROUP = "ab" * 20

#: Requests are given up long before a lease ends.
QUICK = QueueOptions(
    lease_ttl=10, margin=2, request_timeout=3, retry_for=6, backoff=2, backoff_max=4, max_attempts=4, poll_min=2,
    poll_max=4, claim_ahead=0, claim_concurrency=1, block_warning=0, check_store=False, completion_grace=12,
)  # fmt: skip

Ending = Callable[[Process, Workspace, Lease], Awaitable[None]]


# What an owner does with a lease. Each says what it was told, for the audit.


async def complete(process: Process, workspace: Workspace, lease: Lease) -> None:
    """Work on it, and complete it."""
    try:
        await process.store.work(lease.group)
    except ValueError:
        await fail(process, workspace, lease)
        return
    try:
        await workspace.leases.complete(lease)
    except LeaseLost:
        process.audit.refused(process.name, lease.group, lease.epoch)
    except OutcomeUnknown:
        pass
    else:
        process.audit.completed(process.name, lease.group, lease.epoch)


async def renew_and_complete(process: Process, workspace: Workspace, lease: Lease) -> None:
    """The same after a renewal."""
    try:
        while lease.valid(process.runtime.monotonic()) and not await workspace.leases.renew(lease):
            pass
    except LeaseLost:
        process.audit.lost(process.name, lease.group, lease.epoch)
        return
    await complete(process, workspace, lease)


async def release(process: Process, workspace: Workspace, lease: Lease) -> None:
    """Give it back."""
    process.audit.ends(process.name, lease.group)
    with contextlib.suppress(LeaseLost, OutcomeUnknown):
        await workspace.leases.release(lease)


async def fail(process: Process, workspace: Workspace, lease: Lease) -> None:
    """Fail at it."""
    process.audit.ends(process.name, lease.group)
    with contextlib.suppress(LeaseLost, OutcomeUnknown):
        await workspace.leases.fail(lease, ValueError("no"))


def owner(*first: Ending, options: QueueOptions = QUICK) -> Callable[[Process], Awaitable[None]]:
    """Claims, or takes over, one group until it is done or dead; ends its leases as `first` says, then completes."""
    endings = list(first)

    async def main(process: Process) -> None:
        workspace = Workspace(process.store, options=options, runtime=process.runtime)
        while True:
            try:
                if await _attempt(process, workspace, endings):
                    return
            except StoreError:
                await process.runtime.sleep(options.poll_min)

    return main


async def _attempt(process: Process, workspace: Workspace, endings: list[Ending]) -> bool:
    """Whether the group is done or dead."""
    outcome = await workspace.leases.claim(GROUP)
    if isinstance(outcome, Busy):
        outcome = await workspace.leases.take_over(GROUP)
    match outcome:
        case Lease() as lease:
            await _hold(process, workspace, lease, endings.pop(0) if endings else complete)
        case Busy(seconds):
            # As a poll does: its owner may have finished, and left the lock.
            if await workspace.locks.is_done(GROUP):
                return True
            await process.runtime.sleep(seconds or 0.0)
        case Unsettled():
            await process.runtime.sleep(workspace.options.poll_min)
    return isinstance(outcome, Completed | GroupDead)


async def _hold(process: Process, workspace: Workspace, lease: Lease, ending: Ending) -> None:
    process.audit.begins(
        process.name, lease.group, lease.epoch, lambda: lease.valid(process.world.clock.current_time())
    )
    try:
        await ending(process, workspace, lease)
    finally:
        process.audit.ends(process.name, lease.group)
