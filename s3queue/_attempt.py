"""One attempt at one leased group: runs what is left of it, keeps its journal, and ends the lease as things went.

A group whose owner crashed is under suspicion: its units run one after the other, each named in the lock before it
starts, and one that may be to blame for several crashes gets its last chance alone in the process.
"""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import anyio.lowlevel

from s3queue._claims import Claims
from s3queue._errors import (
    HandlerError,
    LeaseLost,
    OutcomeUnknown,
    PermanentError,
    RetryLater,
    StoreError,
)
from s3queue._journal import WHOLE, Journal
from s3queue._model import WorkItem
from s3queue._outcomes import Lease
from s3queue._progress import Json, result_json
from s3queue._records import describe
from s3queue._tasks import task_group
from s3queue._turns import Turns
from s3queue._workspace import Workspace

__all__ = ["Attempt", "Attempts", "Tally"]

#: Runs a handler: see `Runner`.
Call = Callable[[WorkItem, Any], Awaitable[Any]]

#: How often, and how far apart, a completion is tried that the store does not accept or does not acknowledge.
_COMPLETE_TRIES = 3
_COMPLETE_PAUSE = 1.0
#: A lane whose handlers never wait lets others run this often, in seconds.
_LANE_SPELL = 0.005


@dataclass(slots=True)
class Tally:
    """How attempts ended, and how many paths of them were finished, or failed."""

    done: int = 0
    failed: int = 0
    lost: int = 0
    done_paths: int = 0
    failed_paths: int = 0


@dataclass(eq=False, slots=True)
class Attempt:
    """One leased group, being worked on."""

    lease: Lease
    item: WorkItem
    #: What is left to run.
    units: list[int]
    #: Units that may run at the same time, and so how much of the pool this takes.
    load: int
    errors: dict[int, Exception] = field(default_factory=dict)
    result: Json | None = None
    #: Whether units were left out, because the pool starts none any more.
    cut: bool = False
    #: Tasks that run its units side by side.
    lanes: int = 0

    @property
    def journal(self) -> Journal:
        return self.lease.journal


class Attempts:
    """Runs one handler over leased groups."""

    def __init__(self, workspace: Workspace, claims: Claims, runner: Call, *, workers: int, per_path: bool) -> None:
        self._runtime = workspace.runtime
        self._options = workspace.options
        self._events = workspace.events
        self._claims = claims
        self._runner = runner
        self._workers = workers
        self._per_path = per_path
        self.turns = Turns(workers)
        self.tally = Tally()
        #: Attempts whose units run side by side, with what starts one more task for them.
        self._wide: dict[Attempt, Callable[[], object]] = {}

    def resize(self, workers: int) -> None:
        """So many units at a time from now on, also of the attempts under way."""
        self._workers = workers
        self.turns.resize(workers)
        for attempt in self._wide:
            if attempt.lanes:  # with none left its task group may be closed already
                self._widen(attempt)

    def attempt(self, lease: Lease) -> Attempt:
        """What is to be done about a lease."""
        item = self._claims.item(lease)
        units = self._units(lease, len(item.work_paths)) if self._per_path else [WHOLE]
        return Attempt(lease, item, units, 1 if lease.journal.suspect else len(units))

    def _units(self, lease: Lease, paths: int) -> list[int]:
        if not lease.journal.fits(paths):
            self._events.emit("progress.lost", logging.WARNING, hash=lease.group, error="it is about another group")
            lease.journal = Journal()
        lease.journal.begin(paths)
        return lease.journal.left(self._options.max_crashes)

    async def run(self, attempt: Attempt, *, on_unit: Callable[[Attempt], None]) -> None:
        """Run its units, telling `on_unit` of each that has ended.

        Raises `LeaseLost`, `OutcomeUnknown` or a store's error if the lock cannot name a unit."""
        attempt.lease.began = self._runtime.monotonic()
        if attempt.journal.suspect:
            for unit in attempt.units:
                if not attempt.cut:
                    await self._run_named(attempt, unit)
            return
        units = deque(attempt.units)
        if len(attempt.units) == 1:
            await self._lane(attempt, units, on_unit)
            return
        try:
            async with task_group() as tasks:
                self._wide[attempt] = functools.partial(tasks.start_soon, self._lane, attempt, units, on_unit)
                self._widen(attempt)
        finally:
            del self._wide[attempt]

    def _widen(self, attempt: Attempt) -> None:
        """One more lane, if there is work for it. It begins by doing the same: so there are as many as wait, or may."""
        if attempt.lanes < min(self._workers, attempt.load):
            attempt.lanes += 1
            self._wide[attempt]()

    async def _lane(self, attempt: Attempt, units: deque[int], on_unit: Callable[[Attempt], None]) -> None:
        until = self._runtime.monotonic() + _LANE_SPELL
        try:
            if attempt in self._wide:
                self._widen(attempt)
            while units:
                unit = units.popleft()
                if not await self.turns.take():
                    attempt.cut = True
                    return
                try:
                    now = await self._run_unit(attempt, unit)
                finally:
                    self.turns.give()
                    on_unit(attempt)
                if units and now > until:
                    await anyio.lowlevel.checkpoint()  # the handler may never wait
                    until = now + _LANE_SPELL
        finally:
            attempt.lanes -= 1

    async def _run_named(self, attempt: Attempt, unit: int) -> None:
        last_chance = attempt.journal.crashes(unit) + 1 >= self._options.max_crashes
        async with self.turns.alone() if last_chance else self.turns.shared() as taken:
            if not taken:
                attempt.cut = True
                return
            await self._claims.name(attempt.lease, unit)
            await self._run_unit(attempt, unit)
            attempt.journal.running = None
            if last_chance:
                # Before others run: a death of theirs must not be the third of one that survived.
                await self._claims.name(attempt.lease, None)

    async def _run_unit(self, attempt: Attempt, unit: int) -> float:
        """Returns when it ended. Raises `LeaseLost` if it must not begin: this process may have been stopped meanwhile,
        and what is to cancel the work has its turn only after this."""
        if not attempt.lease.valid(self._runtime.monotonic()):
            raise LeaseLost("it ran out before this was begun")
        journal = attempt.journal
        argument: Any = attempt.item if unit == WHOLE else attempt.item.work_paths[unit]
        try:
            result = await self._runner(attempt.item, argument)
            now = self._runtime.monotonic()
            if unit == WHOLE:
                attempt.result = result_json(result)
                return now
            is_news = journal.finished(unit, result, now)
            self.tally.done_paths += 1
        except Exception as error:
            now = self._runtime.monotonic()
            attempt.errors[unit] = error
            is_news = unit != WHOLE and self._path_failed(attempt, unit, error, now)
        else:
            self._events.emit("path.done", hash=attempt.item.hash, path=argument)
        if is_news:
            self._claims.keeper.news(attempt.lease)
        return now

    def _path_failed(self, attempt: Attempt, unit: int, error: Exception, now: float) -> bool:
        """Whether this is the first news that the lock does not tell."""
        journal, path = attempt.journal, attempt.item.work_paths[unit]
        counts = not isinstance(error, RetryLater)
        self.tally.failed_paths += counts
        last = journal.tries.get(unit, 0) + 1 >= self._options.max_attempts
        final = isinstance(error, PermanentError) or (counts and last)
        kind, line, _ = describe(error)
        error.add_note(f"path: {path}")
        is_news = journal.failed(unit, f"{kind}: {line}", now, final=final, counts=counts)
        self._events.emit("path.failed", hash=attempt.item.hash, path=path, error=f"{kind}: {line}", dead=final)
        return is_news

    # The end of it.

    async def end(self, attempt: Attempt) -> None:
        """Complete, fail, release or bury the group, whose units have all run, or will not run here."""
        errors = list(attempt.errors.values())
        if attempt.cut and not (self._per_path and attempt.journal.complete):
            await self.interrupted(attempt)
        elif not self._per_path:
            await (self._fail(attempt, errors[0], dead=None) if errors else self._complete(attempt))
        elif attempt.journal.complete:
            await self._complete(attempt)
        elif not attempt.journal.left(self._options.max_crashes):
            await self._give_up(attempt)
        else:
            await self._fail(attempt, _together(errors, len(attempt.units)), dead=False)

    async def interrupted(self, attempt: Attempt) -> None:
        """The work was cancelled: the lease is lost, or handed back."""
        if not attempt.lease.valid(self._runtime.monotonic()):
            self.lost(attempt)
            return
        try:
            await self._claims.release(attempt.lease)
        except (LeaseLost, OutcomeUnknown, StoreError) as error:
            self.left(attempt, error)

    async def _complete(self, attempt: Attempt) -> None:
        for tries_left in reversed(range(_COMPLETE_TRIES)):
            try:
                if self._per_path:
                    await self._claims.complete_paths(attempt.lease)
                else:
                    await self._claims.complete(attempt.lease, attempt.result)
            except LeaseLost:
                self.lost(attempt)
                return
            except HandlerError as error:
                await self._fail(attempt, error, dead=None)
                return
            except (OutcomeUnknown, StoreError) as error:
                self._events.emit("group.unsettled", logging.WARNING, hash=attempt.item.hash, error=str(error))
                if not tries_left:
                    await self._fail(attempt, error, dead=False if self._per_path else None)
                    return
                await self._runtime.sleep(_COMPLETE_PAUSE)
            else:
                self.tally.done += 1
                if not self._per_path:
                    self.tally.done_paths += len(attempt.item.work_paths)
                return

    async def _give_up(self, attempt: Attempt) -> None:
        """Nothing is left that anybody shall try again."""
        errors = list(attempt.errors.values())
        if errors:
            await self._fail(attempt, _together(errors, len(attempt.units)), dead=True)
            return
        try:
            await self._claims.bury(attempt.lease, "every path that is left failed, or crashed, too often")
        except LeaseLost:
            self.lost(attempt)
        except (OutcomeUnknown, StoreError) as refused:
            self.left(attempt, refused)

    async def _fail(self, attempt: Attempt, error: Exception, *, dead: bool | None) -> None:
        failed = [unit for unit, one in attempt.errors.items() if not isinstance(one, RetryLater)]
        wait = max((one.seconds for one in attempt.errors.values() if isinstance(one, RetryLater)), default=0.0)
        paths = [attempt.item.work_paths[unit] for unit in failed if unit != WHOLE]
        try:
            if isinstance(error, RetryLater):
                await self._claims.release(attempt.lease, wait)
            else:
                await self._claims.fail(attempt.lease, error, dead=dead, wait=wait, paths=paths)
                self.tally.failed += 1
                if not self._per_path:
                    self.tally.failed_paths += len(attempt.item.work_paths)
        except LeaseLost:
            self.lost(attempt)
        except (OutcomeUnknown, StoreError) as refused:
            self.left(attempt, refused)

    def lost(self, attempt: Attempt) -> None:
        """The lease is somebody else's."""
        self.tally.lost += 1
        self._claims.lose(attempt.lease, "it ended while its group was worked on")

    def left(self, attempt: Attempt, error: Exception) -> None:
        """The store does not take the lock back: it is left to run out."""
        self._claims.abandon(attempt.lease)
        self._events.emit("lock.left", logging.WARNING, hash=attempt.lease.group, error=str(error))


def _together(errors: list[Exception], units: int) -> Exception:
    """One error for an attempt; it is to be retried later only if that is all that its errors say."""
    counted = [error for error in errors if not isinstance(error, RetryLater)] or errors
    if len(counted) == 1:
        return counted[0]
    if isinstance(counted[0], RetryLater):
        return counted[0]
    return ExceptionGroup(f"{len(counted)} of {units} paths failed, first {counted[0]!r}", counted)
