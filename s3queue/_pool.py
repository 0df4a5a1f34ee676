"""The worker pool: runs a handler over the groups that the scheduler claims, many at a time, until told to stop.

A *unit* is what one call of the handler gets: a group, or one path of it. `workers` units run at a time; groups are
claimed only as fast as their units get to run, however large the groups are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio

from s3queue import _plan as plans
from s3queue._claims import Claims
from s3queue._errors import (
    ConfigurationError,
    HandlerError,
    LeaseLost,
    OutcomeUnknown,
    PermanentError,
    RetryLater,
    S3QueueError,
    StoreError,
)
from s3queue._handlers import Runner
from s3queue._model import RunSummary, WorkItem
from s3queue._outcomes import Lease
from s3queue._tasks import task_group
from s3queue._workspace import Workspace

__all__ = ["Per", "Pool"]

Per = Literal["group", "path"]

#: How often, and how far apart, a completion is tried that the store does not accept or does not acknowledge.
_COMPLETE_TRIES = 3
_COMPLETE_PAUSE = 1.0


@dataclass(eq=False, slots=True)
class _Attempt:
    """One group, being worked on."""

    lease: Lease
    item: WorkItem
    #: The arguments of the calls that are left to do, by position.
    units: dict[int, Any]
    errors: list[Exception] = field(default_factory=list)


@dataclass(slots=True)
class _Tally:
    done: int = 0
    failed: int = 0
    lost: int = 0


class Pool:
    """One run of one handler."""

    def __init__(
        self, workspace: Workspace, claims: Claims, runner: Runner, *, workers: int, per: Per, grace: float, wait: bool
    ) -> None:
        if per not in ("group", "path"):
            raise ConfigurationError(f'per must be "group" or "path", not {per!r}')
        if not grace >= 0:
            raise ConfigurationError(f"grace must be 0 seconds or more, not {grace!r}")
        self._runtime = workspace.runtime
        self._events = workspace.events
        self._claims = claims
        self._runner = runner
        self._workers = workers
        self._per_path = per == "path"
        self._grace = grace
        self._wait = wait
        self._slots = anyio.Semaphore(workers)
        #: Units that run or wait for a slot; tasks that look for a group; the units that a group is likely to have.
        self._units = 0
        self._seeking = 0
        self._typical = 1
        self._tally = _Tally()
        #: Results of the finished paths of incomplete groups: a later attempt in this process runs only the rest.
        self._progress: dict[str, dict[int, Any]] = {}
        self._running: set[anyio.CancelScope] = set()
        self._exhausted = False
        self._error: S3QueueError | None = None
        self._change = anyio.Event()
        self._stop = anyio.Event()
        self._draining = False

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    async def run(self) -> RunSummary:
        """Work until everything is done or dead (without `wait`: until nothing is claimable), or until stopped.

        Raises what ended the search for work, after the groups under way are ended.
        """
        started = self._runtime.monotonic()
        await self._claims.scheduler.load()
        index = self._claims.scheduler.plan.index
        if self._per_path and len(index):
            self._typical = max(1, len(index.paths(0)))
        try:
            async with task_group() as tasks:
                tasks.start_soon(self._claims.scheduler.run)
                tasks.start_soon(self._drain)
                async with task_group() as workers:
                    await self._dispatch(workers.start_soon)
                self._claims.scheduler.stop()
                tasks.cancel_scope.cancel()
        finally:
            await self._claims.close()
            self._claims.scheduler.resume()
        if self._error is not None:
            raise self._error
        return self._summary(self._runtime.monotonic() - started)

    def stop(self) -> None:
        """Claim nothing more; what runs gets `grace` seconds, then it is cancelled and its groups are handed back."""
        self._stop.set()
        self._claims.scheduler.stop()
        self._changed()

    async def _drain(self) -> None:
        await self._stop.wait()
        await self._runtime.sleep(self._grace)
        self._draining = True
        for scope in self._running:
            scope.cancel()

    def _summary(self, seconds: float) -> RunSummary:
        plan = self._claims.scheduler.plan
        return RunSummary(
            done=self._tally.done,
            failed=self._tally.failed,
            lost=self._tally.lost,
            dead=plan.count(plans.DEAD),
            leased_elsewhere=plan.count(plans.HELD),
            unfinished=len(plan.index) - plan.count(plans.DONE) - plan.count(plans.DEAD),
            seconds=seconds,
            stopped=self.stopping,
        )

    # Finding groups.

    async def _dispatch(self, start: Callable[..., object]) -> None:
        while not (self.stopping or self._exhausted):
            while self._units + self._seeking * self._typical < self._workers:
                self._seeking += 1
                start(self._seek)
            await self._until_changed()

    async def _seek(self) -> None:
        """Get a group, and work on it."""
        try:
            lease = await self._claims.acquire(wait=self._wait)
        except S3QueueError as error:
            lease, self._error = None, error
        finally:
            self._seeking -= 1
        if lease is None:
            self._exhausted = True
            self._changed()
            return
        attempt = self._attempt(lease)
        self._units += len(attempt.units)
        self._changed()
        await self._work(attempt)

    def _attempt(self, lease: Lease) -> _Attempt:
        item = self._claims.item(lease)
        if not self._per_path:
            return _Attempt(lease, item, {0: item})
        self._typical = max(1, len(item.work_paths))
        finished = self._progress.setdefault(lease.group, {})
        return _Attempt(lease, item, {i: path for i, path in enumerate(item.work_paths) if i not in finished})

    # Working on a group.

    async def _work(self, attempt: _Attempt) -> None:
        with self._claims.watch(attempt.lease) as scope:
            self._running.add(scope)
            if self._draining:
                scope.cancel()
            try:
                async with task_group() as tasks:
                    for i, argument in attempt.units.items():
                        tasks.start_soon(self._unit, attempt, i, argument)
            finally:
                self._running.discard(scope)
        if scope.cancelled_caught:
            await self._interrupted(attempt.lease)
        elif attempt.errors:
            await self._fail(attempt, _together(attempt.errors, len(attempt.units)))
        else:
            await self._complete(attempt)

    async def _unit(self, attempt: _Attempt, i: int, argument: Any) -> None:
        group = attempt.item.hash
        try:
            async with self._slots:
                result = await self._runner(attempt.item, argument)
        except Exception as error:
            attempt.errors.append(error)
            if self._per_path:
                error.add_note(f"path: {argument}")
                self._events.emit("path.failed", hash=group, path=argument, error=f"{type(error).__name__}: {error}")
        else:
            self._progress.setdefault(group, {})[i] = result
            if self._per_path:
                self._events.emit("path.done", hash=group, path=argument)
        finally:
            self._units -= 1
            self._changed()

    async def _interrupted(self, lease: Lease) -> None:
        if not lease.valid(self._runtime.monotonic()):
            self._lost(lease)
            return
        try:
            await self._claims.release(lease)
        except (LeaseLost, OutcomeUnknown, StoreError) as error:
            self._left(lease, error)

    async def _complete(self, attempt: _Attempt) -> None:
        results = self._progress.pop(attempt.item.hash)
        result = [results[i] for i in range(len(attempt.item.work_paths))] if self._per_path else results[0]
        for tries_left in reversed(range(_COMPLETE_TRIES)):
            try:
                await self._claims.complete(attempt.lease, result)
            except LeaseLost:
                self._lost(attempt.lease)
                return
            except HandlerError as error:
                await self._fail(attempt, error)
                return
            except (OutcomeUnknown, StoreError) as error:
                self._events.emit("group.unsettled", logging.WARNING, hash=attempt.item.hash, error=str(error))
                if not tries_left:
                    await self._fail(attempt, error)
                    return
                await self._runtime.sleep(_COMPLETE_PAUSE)
            else:
                self._tally.done += 1
                return

    async def _fail(self, attempt: _Attempt, error: Exception) -> None:
        try:
            if isinstance(error, RetryLater):
                await self._claims.release(attempt.lease, error.seconds)
            else:
                await self._claims.fail(attempt.lease, error)
                self._tally.failed += 1
        except LeaseLost:
            self._lost(attempt.lease)
        except (OutcomeUnknown, StoreError) as refused:
            self._left(attempt.lease, refused)

    def _lost(self, lease: Lease) -> None:
        self._tally.lost += 1
        self._claims.abandon(lease)

    def _left(self, lease: Lease, error: Exception) -> None:
        """The store does not take the lock back: it is left to run out."""
        self._claims.abandon(lease)
        self._events.emit("lock.left", logging.WARNING, hash=lease.group, error=str(error))

    def _changed(self) -> None:
        self._change.set()
        self._change = anyio.Event()

    async def _until_changed(self) -> None:
        await self._change.wait()


def _together(errors: list[Exception], units: int) -> Exception:
    """One error for an attempt; `RetryLater` and `PermanentError` speak for the group only if all of its errors do."""
    if len(errors) == 1:
        return errors[0]
    if all(isinstance(error, RetryLater) for error in errors):
        return max((error for error in errors if isinstance(error, RetryLater)), key=lambda error: error.seconds)
    if all(isinstance(error, PermanentError) for error in errors):
        return PermanentError(f"{len(errors)} of {units} paths failed for good, first {errors[0]!r}")
    return ExceptionGroup(f"{len(errors)} of {units} paths failed, first {errors[0]!r}", errors)
