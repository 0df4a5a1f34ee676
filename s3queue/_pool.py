"""The worker pool: runs a handler over the groups that the scheduler claims, many at a time, until told to stop.

A *unit* is what one call of the handler gets: a group, or one path of it. `workers` units run at a time; groups are
claimed only as fast as their units get to run, however large the groups are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from s3queue import _plan as plans
from s3queue._attempt import Attempt, Attempts
from s3queue._claims import Claims
from s3queue._errors import ConfigurationError, LeaseLost, OutcomeUnknown, S3QueueError, StoreError
from s3queue._handlers import Runner, whole_number
from s3queue._limits import TimeLimit
from s3queue._model import PoolStats, RunSummary, WorkItem
from s3queue._outcomes import Lease
from s3queue._tasks import Change, task_group
from s3queue._workspace import Workspace

__all__ = ["Per", "Pool", "Terms"]

Per = Literal["group", "path"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a pool works: see `WorkQueue.pool`. Raises `ConfigurationError` on nonsense."""

    workers: int
    per: Per
    grace: float
    wait: bool
    forever: bool
    max_groups: int | None
    max_runtime: float | None

    def __post_init__(self) -> None:
        whole_number("workers", self.workers)
        if self.per not in ("group", "path"):
            raise ConfigurationError(f'per must be "group" or "path", not {self.per!r}')
        if not self.grace >= 0:
            raise ConfigurationError(f"grace must be 0 seconds or more, not {self.grace!r}")
        if self.forever and not self.wait:
            raise ConfigurationError("forever waits for work, and wait=False does not: take one of them")
        if self.max_groups is not None:
            whole_number("max_groups", self.max_groups)
        if self.max_runtime is not None and not 0 < self.max_runtime < math.inf:
            raise ConfigurationError(f"max_runtime must be more than 0 seconds, not {self.max_runtime!r}")


class Pool:
    """A handler at work on a queue, many calls at a time: what `WorkQueue.pool` gives.

    Its methods belong to the event loop that it runs on; from another thread, call them by ``anyio.from_thread``.
    """

    def __init__(self, workspace: Workspace, claims: Claims, runner: Runner, terms: Terms) -> None:
        self._runtime = workspace.runtime
        self._events = workspace.events
        self._claims = claims
        self._scheduler = claims.scheduler
        self._runner = runner
        self._terms = terms
        self._workers = terms.workers
        self._per_path = terms.per == "path"
        call = runner if terms.max_runtime is None else self._timed
        self._attempts = Attempts(workspace, claims, call, workers=terms.workers, per_path=self._per_path)
        self._mode: Literal["running", "paused", "draining"] = "running"
        #: The groups under way, and the units of them; tasks that look for a group; the units that one is likely to
        #: have.
        self._held: set[Lease] = set()
        self._load = 0
        self._seeking = 0
        self._typical = 1
        #: Groups that were ever under way; which limit ended the search for more.
        self._taken = 0
        self._limit: Literal["max_groups", "max_runtime"] | None = None
        self._time: TimeLimit | None = None
        self._reserve = workspace.options.request_timeout
        #: The work on groups; the searches for one; the claiming ahead of them.
        self._running: set[anyio.CancelScope] = set()
        self._seekers: set[anyio.CancelScope] = set()
        self._claiming: anyio.CancelScope | None = None
        self._exhausted = False
        self._error: Exception | None = None
        self._change = Change()
        self._stopping = False
        #: When what still runs is cancelled, once that is decided.
        #: When all work is cancelled; those who wait for it are told when that is moved.
        self._last_moment = math.inf
        self._moved = Change()
        self._grace_over = False
        self._began = self._runtime.monotonic()
        self._ended = anyio.Event()
        self._summary: RunSummary | None = None

    def __repr__(self) -> str:
        stats = self.stats()
        return f"<Pool of {self._runner.name} {stats.state} {stats.running}/{stats.workers}>"

    # What users do with it.

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stopping

    async def wait(self) -> RunSummary:
        """Wait until the pool has ended: everything is done or dead, or it was stopped.

        Raises what ended it otherwise: `DamagedWorkspace`, or a store's error that lasts.
        """
        await self._ended.wait()
        if self._error is not None:
            raise self._error
        assert self._summary is not None
        return self._summary

    def pause(self) -> None:
        """Start no call of the handler until `resume`. Calls that run go on, and so do leases of groups under way;
        what was claimed ahead is handed back."""
        self._turn_to("paused")
        self._attempts.turns.pause()
        self._claim_nothing()

    def resume(self) -> None:
        """Go on after `pause` or `drain`."""
        self._turn_to("running")
        self._attempts.turns.resume()
        self._change.tell()

    async def drain(self) -> None:
        """Claim nothing more, and wait until all groups under way have ended; then the pool is paused.

        Cancelling this ends the wait and nothing else; `resume` ends it too. A handler must not call it: it would wait
        for itself.
        """
        self._turn_to("draining")
        self._attempts.turns.resume()
        self._claim_nothing()
        while self._mode == "draining" and (self._held or self._seeking) and not self._ended.is_set():
            await self._change.wait()
        if self._mode == "draining":
            self.pause()

    def resize(self, workers: int) -> None:
        """Run so many calls at a time from now on. Calls that run go on, also if they are more than that.

        Raises `ConfigurationError` for less than 1: `pause` is for that."""
        fewer = whole_number("workers", workers) < self._workers
        self._events.emit("pool.resized", logging.INFO, workers=workers, before=self._workers)
        self._workers = workers
        self._runner.resize(workers)
        self._attempts.resize(workers)
        if fewer:
            self._cancel_seekers()
        self._change.tell()

    def stop(self) -> None:
        """End the pool: claim nothing more; what runs gets `grace` seconds, then it is cancelled and its groups are
        handed back. A paused pool starts nothing in that time."""
        if self.stopping or self._ended.is_set():
            return
        self._events.emit("pool.stopping", logging.INFO, running=self._attempts.turns.busy, groups=len(self._held))
        self._stopping = True
        self._end_by(self._runtime.monotonic() + self._terms.grace)
        if self._mode == "paused":
            self._attempts.turns.close()
        self._claim_nothing()

    def stats(self) -> PoolStats:
        """What it does now, and what it has done so far."""
        tally = self._attempts.tally
        return PoolStats(
            state=self._state(),
            workers=self._workers,
            running=self._attempts.turns.busy,
            groups=len(self._held),
            ahead=0 if self._ended.is_set() else self._scheduler.ahead,
            done=tally.done,
            failed=tally.failed,
            lost=tally.lost,
            done_paths=tally.done_paths,
            failed_paths=tally.failed_paths,
            seconds=self._seconds(),
            error="" if self._error is None else f"{type(self._error).__name__}: {self._error}",
        )

    def _state(self) -> Literal["running", "paused", "draining", "stopping", "ended", "failed"]:
        if self._ended.is_set():
            return "ended" if self._error is None else "failed"
        return "stopping" if self._over else self._mode

    def _turn_to(self, mode: Literal["running", "paused", "draining"]) -> None:
        if mode != self._mode and not self._over:
            self._events.emit("pool.mode", logging.INFO, mode=mode)
        self._mode = mode

    # Its life.

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Work inside the block, and until what runs at its end has had its grace. Raises what ended the search for
        work."""
        async with task_group() as tasks:
            tasks.start_soon(self._live)
            yield
            self.stop()

    async def _live(self) -> None:
        self._scheduler.plan.forever = self._terms.forever
        self._scheduler.allowance = self._terms.max_groups
        try:
            await self._work_through()
        except Exception as error:
            self._error = error
            raise
        finally:
            await self._claims.hand_back(self._held)
            self._scheduler.plan.forever, self._scheduler.allowance = False, None
            self._scheduler.look_anew()
            self._summary = self._summarise()
            self._ended.set()
            self._change.tell()

    async def _work_through(self) -> None:
        self._began = self._runtime.monotonic()
        self._set_time_limit()
        await self._scheduler.load()
        index = self._scheduler.plan.index
        if self._per_path and len(index):
            self._typical = max(1, len(index.paths(0)))
        async with task_group() as tasks:
            tasks.start_soon(self._claim)
            tasks.start_soon(self._end_in_time)
            tasks.start_soon(self._wind_down_in_time)
            async with task_group() as workers:
                await self._dispatch(workers.start_soon)
                self._claim_nothing()
            tasks.cancel_scope.cancel()
        if self._error is not None:
            raise self._error

    async def _end_in_time(self) -> None:
        while (left := self._last_moment - self._runtime.monotonic()) > 0:
            with anyio.move_on_after(left):
                await self._moved.wait()
        self._grace_over = True
        for scope in self._running:
            scope.cancel()

    def _set_time_limit(self) -> None:
        seconds = self._terms.max_runtime
        if seconds is None:
            return
        reserve = min(self._reserve, seconds / 10)
        self._time = TimeLimit(seconds, began=self._began, reserve=reserve, guess=self._terms.grace)
        self._end_by(self._time.cutoff)

    def _end_by(self, moment: float) -> None:
        self._last_moment = min(self._last_moment, moment)
        self._moved.tell()

    async def _timed(self, item: WorkItem, argument: Any) -> Any:
        """A call of the handler, of which the time limit learns how long it takes."""
        if self._time is None:
            return await self._runner(item, argument)
        began = self._runtime.monotonic()
        try:
            return await self._runner(item, argument)
        finally:
            now = self._runtime.monotonic()
            self._time.took(now - began)
            if now >= self._time.last_start:
                self._wind_down()  # before its place is free for another call

    async def _wind_down_in_time(self) -> None:
        # Each call that ends meanwhile may move the time.
        while self._time is not None and (left := self._time.last_start - self._runtime.monotonic()) > 0:
            await self._runtime.sleep(left)
        if self._time is not None:
            self._wind_down()

    def _wind_down(self) -> None:
        """Start nothing more: it would probably not end before the time limit."""
        if self._over:
            return
        self._events.emit("pool.winding_down", logging.INFO, running=self._attempts.turns.busy, groups=len(self._held))
        self._limit = "max_runtime"
        self._attempts.turns.close()
        self._claim_nothing()

    def _summarise(self) -> RunSummary:
        tally, plan = self._attempts.tally, self._scheduler.plan
        return RunSummary(
            done=tally.done,
            failed=tally.failed,
            lost=tally.lost,
            dead=plan.count(plans.DEAD),
            leased_elsewhere=plan.count(plans.HELD),
            unfinished=len(plan.index) - plan.count(plans.DONE) - plan.count(plans.DEAD),
            seconds=self._seconds(),
            stopped=self._stopping or not (self._exhausted or self._limit),
            limit=self._limit,
            done_paths=tally.done_paths,
            failed_paths=tally.failed_paths,
        )

    def _seconds(self) -> float:
        return self._summary.seconds if self._summary is not None else self._runtime.monotonic() - self._began

    # Finding groups.

    async def _claim(self) -> None:
        """Claim ahead of the workers, whenever they are to get more."""
        while not self._over:
            if self._mode != "running":
                await self._change.wait()
                continue
            with anyio.CancelScope() as self._claiming:
                await self._scheduler.run()
            if not self._claiming.cancel_called:
                return  # an error ended it, which whoever looks for a group is told
            await self._claims.hand_back()

    def _claim_nothing(self) -> None:
        self._cancel_seekers()
        self._scheduler.stop()
        if self._claiming is not None:
            self._claiming.cancel()
        self._change.tell()

    def _cancel_seekers(self) -> None:
        for scope in self._seekers:
            scope.cancel()

    async def _dispatch(self, start: Callable[..., object]) -> None:
        while not self._over:
            while self._wants_group:
                self._seeking += 1
                start(self._seek)
            await self._change.wait()

    @property
    def _over(self) -> bool:
        """Whether no more groups are looked for, ever."""
        return self._stopping or self._exhausted or self._limit is not None

    @property
    def _wants_group(self) -> bool:
        most = self._terms.max_groups
        if self._mode != "running" or (most is not None and self._taken + self._seeking >= most):
            return False
        return self._load + self._seeking * self._typical < self._workers

    def _count(self) -> None:
        self._taken += 1
        most = self._terms.max_groups
        if most is not None:
            self._scheduler.allowance = most - self._taken
            if self._taken >= most and not self._over:
                self._limit = "max_groups"

    async def _seek(self) -> None:
        """Get a group, and work on it."""
        lease = await self._acquire()
        if lease is None:
            return
        self._held.add(lease)
        self._count()
        attempt = self._attempts.attempt(lease)
        if self._per_path:
            self._typical = max(1, len(attempt.item.work_paths))
        self._load += attempt.load
        self._tell()
        try:
            await self._work(attempt)
            self._held.discard(lease)  # otherwise it is handed back at the end of all
        finally:
            self._load -= attempt.load
            self._tell()

    async def _acquire(self) -> Lease | None:
        """A group; None if there is none any more, or none shall be begun."""
        lease = None
        with anyio.CancelScope() as scope:
            self._seekers.add(scope)
            try:
                lease = await self._claims.acquire(wait=self._terms.wait)
                self._exhausted |= lease is None and not scope.cancel_called
            except S3QueueError as error:
                self._error, self._exhausted = error, True
            finally:
                self._seekers.discard(scope)
                self._seeking -= 1
                self._tell()
        return lease

    def _tell(self) -> None:
        """Who holds what has changed: wake those whom that concerns, which is nobody most of the time."""
        if self._wants_group or self._over or self._mode != "running":
            self._change.tell()

    async def _work(self, attempt: Attempt) -> None:
        if self.stopping or self._mode != "running":
            await self._attempts.interrupted(attempt)  # its claim was under way when that was decided
            return
        refused: Exception | None = None
        with self._claims.watch(attempt.lease) as scope:
            self._running.add(scope)
            if self._grace_over:
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
            self._tell()
