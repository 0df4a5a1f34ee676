"""The groups that this process holds: won by the scheduler, renewed by the keeper, ended here, each exactly once."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import anyio

from s3queue import _lease_rules as rules
from s3queue._errors import LeaseLost, OutcomeUnknown, StoreError
from s3queue._hooks import Hooks
from s3queue._journal import WHOLE
from s3queue._keeper import Keeper
from s3queue._leftovers import Leftovers
from s3queue._model import WorkItem
from s3queue._outcomes import Lease
from s3queue._records import LockState
from s3queue._scheduler import Scheduler
from s3queue._tasks import task_group
from s3queue._workspace import Workspace

__all__ = ["Claims"]


class Claims:
    """What one process holds of one workspace."""

    def __init__(self, workspace: Workspace, hooks: Hooks | None = None) -> None:
        self._workspace = workspace
        self._leases = workspace.leases
        self._hooks = hooks or Hooks()
        self.keeper = Keeper(workspace.leases, workspace.options, workspace.runtime, workspace.events, self._tell_lost)
        self.leftovers = Leftovers(workspace.store, workspace.options, workspace.runtime, workspace.events)
        self.scheduler = Scheduler(workspace, on_lease=self._won)
        self._held: dict[str, Lease] = {}
        self._in_background = False

    async def acquire(self, *, wait: bool) -> Lease | None:
        """See `Scheduler.acquire`. Whoever gets a lease ends it with one of the methods below."""
        lease = await self.scheduler.acquire(wait=wait)
        if lease is not None:
            self._held[lease.group] = lease
        return lease

    def _won(self, lease: Lease) -> None:
        self.keeper.keep(lease)
        self._call("on_claim", lease)

    def find(self, group: str, epoch: int) -> Lease:
        """The lease that was handed out for this group at this epoch. Raises `LeaseLost` if it is not held any more."""
        lease = self._held.get(group)
        if lease is None or lease.epoch != epoch:
            raise LeaseLost(f"group {group} (epoch {epoch}) is not leased here any more: its result was dropped")
        return lease

    def item(self, lease: Lease) -> WorkItem:
        """The leased group, as users see it."""
        index = self.scheduler.plan.index
        position = index.find(lease.group)
        assert position is not None, lease
        paths = index.paths(position)
        return WorkItem(hash=lease.group, work_paths=paths, epoch=lease.epoch, failures=lease.record.failures)

    async def begin(self, lease: Lease) -> None:
        """Before a whole group is worked on: where its owners died before, its lock says so. Raises as `name` does."""
        if lease.journal.suspect:
            await self.name(lease, WHOLE)

    async def name(self, lease: Lease, unit: int | None) -> None:
        """Raises as `Leases.name` does."""
        await self._leases.name(lease, unit)
        self.keeper.extended(lease)

    async def complete(self, lease: Lease, result: Any = None) -> None:
        """Raises as `Leases.complete` does; the lease is kept, to try again, unless it is lost."""
        with self._ending(lease):
            await self._leases.complete(lease, result)
        await self._completed(lease)

    async def complete_paths(self, lease: Lease) -> None:
        """The same for a group whose paths are all done."""
        with self._ending(lease):
            await self._leases.complete_paths(lease)
        await self._completed(lease)

    async def run(self) -> None:
        """What goes on in the background: renewals, and the deletion of locks. Until cancelled."""
        self._in_background = True
        try:
            async with task_group() as tasks:
                tasks.start_soon(self.keeper.run)
                tasks.start_soon(self.leftovers.run)
        finally:
            self._in_background = False

    async def _completed(self, lease: Lease) -> None:
        self.leftovers.add(lease.group)
        self.scheduler.plan.done(lease.group)
        self.scheduler.changed()
        self._workspace.events.emit("group.done", hash=lease.group, epoch=lease.epoch)
        self._call("on_done", lease)
        if not self._in_background:
            await self.leftovers.delete_due()

    async def fail(
        self,
        lease: Lease,
        error: BaseException | str,
        *,
        dead: bool | None = None,
        wait: float = 0.0,
        paths: Sequence[str] = (),
    ) -> bool:
        """Whether the group is dead now. Takes, and raises, what `Leases.fail` does."""
        with self._ending(lease):
            is_dead = await self._leases.fail(lease, error, dead=dead, wait=wait, paths=paths)
        self._left(lease)
        self._call("on_failed", lease, error, is_dead)
        return is_dead

    async def bury(self, lease: Lease, why: str) -> None:
        """Raises as `Leases.bury` does."""
        with self._ending(lease):
            await self._leases.bury(lease, why)
        self._left(lease)
        self._call("on_failed", lease, why, True)

    async def release(self, lease: Lease, wait: float = 0.0) -> None:
        """Raises as `Leases.release` does."""
        with self._ending(lease):
            await self._leases.release(lease, wait)
        self._left(lease)

    async def revive(self, group: str) -> bool:
        """Whether the group, dead or waiting until now, is claimable. Raises as `Operator.revive` does."""
        version = await self._workspace.operator.revive(group)
        if version is None:
            return False
        self.scheduler.plan.handed_back(group, version, self._workspace.runtime.monotonic())
        self.scheduler.changed()
        return True

    def lose(self, lease: Lease, why: str) -> None:
        """The lease is lost: say so, if that was not said yet, and stop renewing it."""
        self._tell_lost(lease, why)
        self.abandon(lease)

    def _tell_lost(self, lease: Lease, why: str) -> None:
        # Whoever notices first says it: the keeper, the step that was refused, or the work whose time was over.
        if lease.told_lost:
            return
        lease.told_lost = True
        self._workspace.events.emit("lease.lost", logging.WARNING, hash=lease.group, epoch=lease.epoch, error=why)
        self._call("on_lease_lost", lease, why)

    def _call(self, hook: str, lease: Lease, *more: object) -> None:
        self._hooks.call(hook, lambda: self.item(lease), *more)

    def abandon(self, lease: Lease) -> None:
        """Stop renewing a lease that is lost, or that cannot be given back: it runs out."""
        self.keeper.forget(lease)
        self._gone(lease)

    @contextmanager
    def watch(self, lease: Lease) -> Iterator[anyio.CancelScope]:
        """A scope for the work on a lease, which is cancelled when the lease is lost."""
        with self.keeper.watch(lease) as scope:
            try:
                yield scope
            finally:
                self.keeper.unwatch(lease)

    async def close(self) -> None:
        """Release everything that is still held."""
        await self.hand_back(self._held.values())

    async def hand_back(self, leases: Iterable[Lease] = ()) -> None:
        """Release what nobody has taken, and those of these leases that are still held.

        Within `request_timeout`, whatever else is being cancelled."""
        runtime, options = self._workspace.runtime, self._workspace.options
        with anyio.CancelScope(deadline=runtime.monotonic() + options.request_timeout, shield=True):
            async with task_group() as tasks:
                mine = [lease for lease in leases if self._held.get(lease.group) is lease]
                for lease in [*self.scheduler.untaken(), *mine]:
                    tasks.start_soon(self._let_go, lease)

    async def _let_go(self, lease: Lease) -> None:
        try:
            await self.release(lease)
        except (StoreError, LeaseLost, OutcomeUnknown) as error:
            self._workspace.events.emit("lock.left", logging.INFO, hash=lease.group, error=str(error))

    def _left(self, lease: Lease) -> None:
        if lease.record.state is LockState.DEAD:
            self.scheduler.plan.dead(lease.group, lease.version)
            self.scheduler.changed()
            return
        # A second more than the back-off: the store's stamps may be whole seconds, and an early look is a wasted GET.
        ready = self._workspace.runtime.monotonic() + (lease.record.backoff + 1 if lease.record.backoff else 0)
        self.scheduler.plan.handed_back(lease.group, lease.version, ready)
        self.scheduler.changed()

    @contextmanager
    def _ending(self, lease: Lease) -> Iterator[None]:
        """No renewals meanwhile; the lease is over when this ends well, or when it is lost; else it is kept."""
        self.keeper.forget(lease)
        try:
            yield
        except BaseException as error:
            if isinstance(error, LeaseLost):
                self._tell_lost(lease, str(error))
            if lease.ended or isinstance(error, LeaseLost):
                self._gone(lease)
            else:
                self.keeper.keep(lease)
            raise
        self._over(lease)

    def _gone(self, lease: Lease) -> None:
        self._over(lease)
        options = self._workspace.options
        expiry = self._workspace.runtime.monotonic() + rules.patience(options.lease_ttl, options)
        self.scheduler.plan.held(lease.group, None, expiry)
        self.scheduler.changed()

    def _over(self, lease: Lease) -> None:
        if self._held.get(lease.group) is lease:
            del self._held[lease.group]
