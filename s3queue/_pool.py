"""The worker pool: runs a handler over the groups that the scheduler claims, many at a time, until told to stop.

A *unit* is what one call of the handler gets: a group, or one path of it. `workers` units run at a time; groups are
claimed only as fast as their units get to run, however large the groups are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import anyio

from s3queue import _plan as plans
from s3queue._attempt import Attempt, Attempts
from s3queue._claims import Claims
from s3queue._errors import ConfigurationError, LeaseLost, OutcomeUnknown, S3QueueError, StoreError
from s3queue._handlers import Runner
from s3queue._model import RunSummary
from s3queue._tasks import task_group
from s3queue._workspace import Workspace

__all__ = ["Per", "Pool"]

Per = Literal["group", "path"]


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
        self._claims = claims
        self._workers = workers
        self._attempts = Attempts(workspace, claims, runner, workers=workers, per_path=per == "path")
        self._per_path = per == "path"
        self._grace = grace
        self._wait = wait
        #: Units of the groups under way; tasks that look for a group; the units that a group is likely to have.
        self._load = 0
        self._seeking = 0
        self._typical = 1
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
            done=self._attempts.tally.done,
            failed=self._attempts.tally.failed,
            lost=self._attempts.tally.lost,
            dead=plan.count(plans.DEAD),
            leased_elsewhere=plan.count(plans.HELD),
            unfinished=len(plan.index) - plan.count(plans.DONE) - plan.count(plans.DEAD),
            seconds=seconds,
            stopped=self.stopping,
        )

    # Finding groups.

    async def _dispatch(self, start: Callable[..., object]) -> None:
        while not (self.stopping or self._exhausted):
            while self._load + self._seeking * self._typical < self._workers:
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
        attempt = self._attempts.attempt(lease)
        if self._per_path:
            self._typical = max(1, len(attempt.item.work_paths))
        self._load += attempt.load
        self._changed()
        try:
            await self._work(attempt)
        finally:
            self._load -= attempt.load
            self._changed()

    async def _work(self, attempt: Attempt) -> None:
        refused: Exception | None = None
        with self._claims.watch(attempt.lease) as scope:
            self._running.add(scope)
            if self._draining:
                scope.cancel()
            try:
                await self._attempts.run(attempt, on_unit=self._unit_ended)
            except (LeaseLost, OutcomeUnknown, StoreError) as error:
                refused = error
            finally:
                self._running.discard(scope)
        if scope.cancelled_caught:
            await self._attempts.interrupted(attempt)
        elif isinstance(refused, LeaseLost):
            self._attempts.lost(attempt)
        elif refused is not None:
            self._attempts.left(attempt, refused)
        else:
            await self._attempts.end(attempt)

    def _unit_ended(self, attempt: Attempt) -> None:
        """One unit less under way: its place is free before its group has ended."""
        if attempt.load > 0:
            attempt.load -= 1
            self._load -= 1
            self._changed()

    def _changed(self) -> None:
        self._change.set()
        self._change = anyio.Event()

    async def _until_changed(self) -> None:
        await self._change.wait()
