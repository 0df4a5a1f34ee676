"""The keeper: renews the leases of one process in time, and stops the work on those that are lost."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from s3queue._errors import LeaseLost, StoreError
from s3queue._events import Events
from s3queue._lease import Leases
from s3queue._options import QueueOptions
from s3queue._outcomes import Lease
from s3queue._runtime import Runtime
from s3queue._tasks import task_group

__all__ = ["Keeper"]

#: Wait after a renewal that the store refused for a reason of its own (no permission, …), while the lease lasts.
_REFUSED_PAUSE = 1.0


@dataclass(eq=False, slots=True)
class _Kept:
    lease: Lease
    #: The work on it: cancelled when the lease is lost, and by its deadline, which moves with each renewal.
    work: anyio.CancelScope | None = None
    not_before: float = 0.0
    renewing: bool = field(default=False)

    def due(self, checkpoint_every: float) -> float:
        if self.renewing:
            return float("inf")
        news = self.lease.journal.news_at
        due = self.lease.renew_at if news is None else min(self.lease.renew_at, news + checkpoint_every)
        return max(due, self.not_before)


class Keeper:
    """Keeps leases from when they are won until they are ended or forgotten. `run` is its task.

    `on_lost` is told of each lease that is lost while it is kept, and why."""

    def __init__(
        self,
        leases: Leases,
        options: QueueOptions,
        runtime: Runtime,
        events: Events,
        on_lost: Callable[[Lease, str], None],
    ) -> None:
        self._leases = leases
        self._checkpoint_every = options.checkpoint_every
        self._runtime = runtime
        self._events = events
        self._on_lost = on_lost
        self._kept: dict[Lease, _Kept] = {}
        self._change = anyio.Event()
        #: When `run` looks again by itself.
        self._sleeps_until = float("inf")

    def keep(self, lease: Lease) -> None:
        """Renew this lease from now on."""
        kept = self._kept[lease] = _Kept(lease)
        if kept.due(self._checkpoint_every) < self._sleeps_until:
            self._change.set()

    def news(self, lease: Lease) -> None:
        """Something is done that no lock tells yet: a renewal tells it, `checkpoint_every` from now at the latest."""
        kept = self._kept.get(lease)
        if kept is not None and kept.due(self._checkpoint_every) < self._sleeps_until:
            self._change.set()

    def extended(self, lease: Lease) -> None:
        """The lease was renewed by somebody else than the keeper."""
        kept = self._kept.get(lease)
        if kept is not None and kept.work is not None:
            kept.work.deadline = lease.deadline

    def watch(self, lease: Lease) -> anyio.CancelScope:
        """A scope for the work on the lease: cancelled as soon as the lease is lost, or would be by now."""
        kept = self._kept.setdefault(lease, _Kept(lease))
        kept.work = anyio.CancelScope(deadline=lease.deadline)
        if lease.ended:
            kept.work.cancel()
        return kept.work

    def unwatch(self, lease: Lease) -> None:
        """The work is over; the lease is still kept."""
        kept = self._kept.get(lease)
        if kept is not None:
            kept.work = None

    def forget(self, lease: Lease) -> None:
        """The lease is ended, one way or another."""
        self._kept.pop(lease, None)

    async def run(self) -> None:
        """Renew what is due, each lease in a task of its own, until cancelled."""
        async with task_group() as tasks:
            while True:
                now = self._runtime.monotonic()
                for kept in [kept for kept in self._kept.values() if kept.due(self._checkpoint_every) <= now]:
                    kept.renewing = True
                    tasks.start_soon(self._renew, kept)
                self._change = anyio.Event()
                self._sleeps_until = min(
                    (kept.due(self._checkpoint_every) for kept in self._kept.values()), default=float("inf")
                )
                with anyio.CancelScope(deadline=self._sleeps_until):
                    await self._change.wait()

    async def _renew(self, kept: _Kept) -> None:
        lease = kept.lease
        try:
            if await self._leases.renew(lease):
                self.extended(lease)
            elif lease.deadline <= self._runtime.monotonic():
                self._lost(kept, "it could not be renewed in time")
        except LeaseLost as error:
            self._lost(kept, str(error))
        except StoreError as error:
            # Refused, not lost: the lease stands until its deadline, and somebody may repair what is wrong by then.
            kept.not_before = self._runtime.monotonic() + _REFUSED_PAUSE
            self._events.emit("lease.not_renewed", logging.WARNING, hash=lease.group, error=str(error))
        finally:
            kept.renewing = False
            self._change.set()

    def _lost(self, kept: _Kept, why: str) -> None:
        if self._kept.pop(kept.lease, None) is None:
            return  # its owner ended it while we renewed
        self._on_lost(kept.lease, why)
        if kept.work is not None:
            kept.work.cancel()
