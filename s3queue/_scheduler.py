"""The claim scheduler: one a process. Does what the `Plan` says and hands out the leases it won.

Used bare, `acquire` itself does the steps. Inside `run`, some tasks do them ahead of the workers, so that a free worker
finds its next lease in memory; they stop as soon as enough are at hand.
"""

from __future__ import annotations

import functools
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

from s3queue import _keys as keys
from s3queue import _lease_rules as rules
from s3queue import _plan as plans
from s3queue._errors import (
    ConfigurationError,
    DamagedWorkspace,
    OutcomeUnknown,
    S3QueueError,
    StoreError,
    Throttled,
    Unanswered,
    WriteConflict,
)
from s3queue._outcomes import Busy, Completed, GroupDead, Lease, Refused, Unsettled
from s3queue._plan import Plan
from s3queue._survey import Stretch, list_flags, list_locks, list_stretch
from s3queue._tasks import Change, task_group
from s3queue._workspace import Workspace
from s3queue.stores._port import Version

__all__ = ["Scheduler"]

#: The claim-ahead of one process is at most this part of what is open, so that the last groups go to idle machines.
_AHEAD_SHARE = 16
#: The same for claims at the same time: where little is open others claim it too, and all of them would be refused.
_CLAIMING_SHARE = 64
_TROUBLE_PAUSE = 0.5
_TROUBLE_PAUSE_MOST = 15.0
_PASSING = (Throttled, Unanswered, WriteConflict, OutcomeUnknown)


class Scheduler:
    """Finds, claims and hands out work groups of one workspace. `on_lease` is told of each lease as it is won."""

    def __init__(self, workspace: Workspace, *, on_lease: Callable[[Lease], None]) -> None:
        self.plan = Plan(options=workspace.options, rng=workspace.runtime.rng)
        self._store = workspace.store
        self._leases = workspace.leases
        self._locks = workspace.locks
        self._catalogue = workspace.catalogue
        self._options = workspace.options
        self._runtime = workspace.runtime
        self._events = workspace.events
        self._on_lease = on_lease
        self._version: Version | None = None
        self._loaded = False
        self._loading = anyio.Lock()
        self._ready: deque[Lease] = deque()
        #: Workers that wait for a lease, the first come first, and claiming tasks that have nothing to do.
        self._waiters: deque[anyio.Event] = deque()
        self._idle: list[anyio.Event] = []
        #: Those of the latter that are woken, and have not looked yet.
        self._woken = 0
        self._resting = False
        self._waiting = 0
        self._claiming = 0
        self._background = False
        self._stopping = False
        #: So many leases more are wanted at most, if that is limited.
        self.allowance: int | None = None
        #: Why there is nothing to hand out just now, as the last step said.
        self._nothing: plans.Wait | plans.Finished | None = None
        self._error: S3QueueError | None = None
        self._troubles = 0
        self._trouble_since: float | None = None
        #: olmOCR's workers are about: they delete their locks at once, so a listing proves nothing.
        self._foreign = False
        self._change = Change()

    def __repr__(self) -> str:
        names = ("open", "held", "dead", "mine", "done")
        counts = " ".join(f"{name}={self.plan.count(state)}" for state, name in enumerate(names))
        return f"<Scheduler {counts} ready={len(self._ready)} waiting={self._waiting}>"

    async def load(self) -> None:
        """Read the index, if that was not done yet. Raises `DamagedWorkspace` and the store's errors."""
        async with self._loading:
            if not self._loaded:
                await self._reload()
                self._loaded = True

    async def refresh(self) -> None:
        """The index has grown: read it again, if it was read before."""
        async with self._loading:
            if self._loaded:
                await self._reload()
                self.changed()

    async def count(self) -> int:
        """List every done flag; returns how many groups are not done."""
        await self.load()
        for group in await list_flags(self._store):
            self.plan.done(group)
        self.changed()
        self._tell_depth()
        return len(self.plan.index) - self.plan.count(plans.DONE)

    async def acquire(self, *, wait: bool) -> Lease | None:
        """A lease to work on. None when nothing is claimable now; with `wait`, only when all groups are done or dead.

        Cancellation loses nothing: a lease won meanwhile goes to the next caller.
        """
        if not self._loaded:
            await self.load()
        self._nothing = None
        self._waiting += 1
        self.changed()
        try:
            while True:
                if self._error is not None:
                    raise self._error
                if (lease := self._pop_ready()) is not None:
                    return lease
                if self._given_up(wait):
                    return None
                if self._background and not self._stopping:
                    await self._until_served()
                else:
                    await anyio.lowlevel.checkpoint_if_cancelled()  # a claim is shielded: none for who is leaving
                    await self._advance(pause=wait)
        finally:
            self._waiting -= 1

    async def run(self) -> None:
        """Claim ahead of the workers until `stop`, or an error, which `acquire` then raises; claims under way end."""
        self._background, self._stopping = True, False
        try:
            async with task_group() as tasks:
                for _ in range(self._options.claim_concurrency):
                    tasks.start_soon(self._claim_ahead)
        finally:
            self._background = False
            self._wake()

    def stop(self) -> None:
        """Claim nothing ahead any more: `run` ends. Whoever still wants a lease finds it by itself."""
        self._stopping = True
        self._wake()

    def look_anew(self) -> None:
        """Forget what ended claiming, and how fresh the index was."""
        self._error = None
        self.plan.index_checked(-math.inf)

    def untaken(self) -> list[Lease]:
        """The leases that nobody has taken; whoever asks for them ends them."""
        leases = list(self._ready)
        self._ready.clear()
        return leases

    def changed(self) -> None:
        """Something was told to the plan, or somebody waits: whoever plans looks again."""
        self._nothing = None
        self._change.tell()
        self._poke()

    def _wake(self) -> None:
        """Something ended for everybody: all look again."""
        self._change.tell()
        for event in self._waiters:
            event.set()
        while self._idle:
            self._wake_idle()

    @property
    def ahead(self) -> int:
        """Leases that nobody has taken yet."""
        return len(self._ready)

    def _poke(self) -> None:
        """One more task claims, if more is wanted. It pokes the next one: so a few wake, and not all each time."""
        if self._idle and self._wants_more():
            self._wake_idle()

    def _wake_idle(self) -> None:
        self._idle.pop().set()
        self._woken += 1

    async def _until_served(self) -> None:
        """Wait for a lease, or for the end of all hope."""
        event = anyio.Event()
        self._waiters.append(event)
        try:
            await event.wait()
        finally:
            if event in self._waiters:
                self._waiters.remove(event)
            if event.is_set() and self._ready and self._waiters:
                self._waiters[0].set()  # cancelled, maybe, with a lease on its way to us: the next one takes it

    async def _until_wanted(self) -> None:
        event = anyio.Event()
        self._idle.append(event)
        try:
            await event.wait()
        finally:
            if event.is_set():
                self._woken -= 1
            else:
                self._idle.remove(event)

    async def _until_changed(self, until: float = float("inf")) -> None:
        with anyio.CancelScope(deadline=until):
            await self._change.wait()

    def _given_up(self, wait: bool) -> bool:
        if self._claiming or self._nothing is None:
            return False
        return not wait or isinstance(self._nothing, plans.Finished)

    def _pop_ready(self) -> Lease | None:
        while self._ready:
            lease = self._ready.popleft()
            if lease.valid(self._runtime.monotonic()):
                self._poke()
                return lease
            self.plan.held(lease.group, None, self._runtime.monotonic())
        return None

    # The steps.

    async def _claim_ahead(self) -> None:
        while not self._stopping and self._error is None:
            if self._wants_more():
                await self._advance(pause=True)
            else:
                await self._until_wanted()

    def _wants_more(self) -> bool:
        left = self.plan.count(plans.OPEN)
        claiming = self._claiming + self._woken
        if claiming >= max(2, left // _CLAIMING_SHARE):
            return False
        wanted = self._waiting + min(self._options.claim_ahead, left // _AHEAD_SHARE)
        if self.allowance is not None:
            wanted = min(wanted, self.allowance)
        return wanted > len(self._ready) + claiming

    async def _advance(self, *, pause: bool) -> None:
        """Do the plan's next step; if it is to wait, do that too (with `pause`)."""
        step = self.plan.next_step(self._runtime.monotonic())
        if isinstance(step, (plans.Wait, plans.Finished)):
            await self._rest(step, pause)
            return
        try:
            await self._do(step)
        except S3QueueError as error:
            self._undo(step)
            await self._trouble(error, pause)
        except BaseException:
            self._undo(step)
            raise
        else:
            self._troubles, self._trouble_since = 0, None
            self._poke()

    async def _rest(self, step: plans.Wait | plans.Finished, pause: bool) -> None:
        until = step.until if isinstance(step, plans.Wait) else float("inf")
        if self._background and self._resting:
            await self._until_wanted()  # one is enough to see when there is more to do
            return
        self._resting = True
        try:
            await self._sit_out(step, until, pause)
        finally:
            self._resting = False
            self._poke()  # somebody else rests now, if this one does not go on

    async def _sit_out(self, step: plans.Wait | plans.Finished, until: float, pause: bool) -> None:
        if until == float("inf") and isinstance(step, plans.Wait):
            await self._until_changed()  # somebody is looking, and will tell
            return
        if type(step) is not type(self._nothing):
            self._nothing = step
            self._wake()
        # A claim under way may yet bring something, even for those who do not wait.
        if self._claiming or (pause and (self._background or isinstance(step, plans.Wait))):
            await self._until_changed(until)

    def _undo(self, step: plans.Step) -> None:
        match step:
            case plans.ListStretch() | plans.PollLocks() | plans.RefreshIndex():
                self.plan.gave_up_looking()
            case plans.Probe(group):
                pass  # the next poll asks again
            case plans.Claim(group=group) | plans.TakeOver(group):
                self.plan.held(group, None, self._runtime.monotonic())
        self._wake()

    async def _trouble(self, error: S3QueueError, pause: bool) -> None:
        """The store is in trouble: everything slows down together. What lasts and is not passing ends the search."""
        now = self._runtime.monotonic()
        since = self._trouble_since = self._trouble_since or now
        hopeless = isinstance(error, (DamagedWorkspace, ConfigurationError))
        lasting = not isinstance(error, _PASSING) and now - since > self._options.retry_for
        if not pause or hopeless or lasting:
            if not self._background:
                raise error
            if not self._stopping:
                self._error = error
            self._wake()
            return
        longest = min(_TROUBLE_PAUSE_MOST, _TROUBLE_PAUSE * 2 ** min(self._troubles, 10))
        wait = longest * (0.5 + 0.5 * self._runtime.rng.random())
        self._troubles += 1
        self._events.emit("store.trouble", logging.WARNING, error=str(error), wait=round(wait, 1))
        await self._runtime.sleep(wait)

    async def _do(self, step: plans.Step) -> None:
        match step:
            case plans.Claim(group, listed):
                attempt = functools.partial(self._leases.claim, listed=None if self._foreign else listed)
                if not isinstance(await self._claim(group, attempt), Lease):
                    self.plan.collided(step)
            case plans.TakeOver(group):
                position = self.plan.index.find(group)
                paths = () if position is None else self.plan.index.paths(position)
                await self._claim(group, functools.partial(self._leases.take_over, paths=paths))
            case plans.Probe(group):
                self.plan.probed(group, is_done=await self._locks.is_done(group))
            case plans.ListStretch():
                await self._list_stretch(step)
            case plans.PollLocks():
                await self._poll_locks()
            case plans.RefreshIndex():
                if await self._catalogue.changed(self._version):
                    await self._reload()
                self.plan.index_checked(self._runtime.monotonic())
        self.changed()

    async def _claim(self, group: str, attempt: Callable[[str], Awaitable[Lease | Refused]]) -> Lease | Refused:
        outcome: Lease | Refused = Unsettled()
        self._claiming += 1
        self._poke()
        try:
            # Cancelled half way, nobody would know that the group is ours; each request in there has its deadline.
            until = self._runtime.monotonic() + self._options.request_timeout + self._options.retry_for
            with anyio.CancelScope(deadline=until, shield=True):
                outcome = await attempt(group)
        finally:
            self._claiming -= 1
        self._tell(group, outcome)
        return outcome

    def _tell(self, group: str, outcome: Lease | Refused) -> None:
        now = self._runtime.monotonic()
        match outcome:
            case Lease():
                self._on_lease(outcome)
                self._ready.append(outcome)
                if self._waiters:
                    self._waiters.popleft().set()
            case Completed():
                self.plan.done(group)
            case GroupDead(version):
                self.plan.dead(group, version)
            case Busy(seconds, version):
                self.plan.held(group, version, float("inf") if seconds is None else now + seconds)
            case Unsettled():
                self.plan.held(group, None, now + self._options.lease_ttl)

    async def _list_stretch(self, step: plans.ListStretch) -> None:
        now = self._runtime.monotonic()
        seen = await list_stretch(self._store, step.after, flags=step.flags, locks=step.locks)
        self._foreign |= seen.is_foreign
        self.plan.saw_stretch(step, done=seen.done, locks=seen.locks, end=seen.end, date=seen.date, now=now)
        self._tell_depth()
        await self._sweep(seen)

    async def _poll_locks(self) -> None:
        now = self._runtime.monotonic()
        seen = await list_locks(self._store)
        self.plan.saw_locks(seen.found, date=seen.date, now=now)
        self._tell_depth()

    def _tell_depth(self) -> None:
        count = self.plan.count
        self._events.emit(
            "queue.depth",
            open=count(plans.OPEN),
            held=count(plans.HELD),
            dead=count(plans.DEAD),
            mine=count(plans.MINE),
            done=count(plans.DONE),
        )

    async def _sweep(self, seen: Stretch) -> None:
        """Delete the locks that are left over on finished groups, once nobody needs them any more."""
        old = (group for group, flag in seen.done.items() if rules.outlived(seen.date - flag.modified, self._options))
        left = [keys.lock(group) for group in old if group in seen.locks]
        if not left:
            return
        try:
            await self._store.delete_many(left)
        except StoreError as error:
            self._events.emit("lock.left", logging.INFO, count=len(left), error=str(error))

    async def _reload(self) -> None:
        loaded = await self._catalogue.load()
        self._version = loaded.version
        self.plan.grow(loaded.index)
        self.plan.index_checked(self._runtime.monotonic())
        self._events.emit("index.loaded", logging.INFO, groups=len(loaded.index))
