"""The lease: claim, confirm, take over, renew, complete, release, fail. Locks and flags are written here only.

Each step is one `Intent`; `_intent` settles it. The rules are `_lease_rules`; the bytes are `_records`. What a lock has
no room for is in `_pieces`, and written before it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import anyio

from s3queue import _lease_rules as rules
from s3queue._errors import (
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    PermanentError,
    StoreError,
)
from s3queue._events import Events
from s3queue._evidence import Evidence
from s3queue._intent import Intent, Lost, Outcome, Unknown, Won, settle
from s3queue._journal import WHOLE, Journal
from s3queue._locks import Locks, flag_intent, lock_intent
from s3queue._options import QueueOptions
from s3queue._outcomes import Busy, Completed, GroupDead, Lease, Refused, Unsettled
from s3queue._pieces import Pieces, read_journal
from s3queue._records import Flag, LockRecord, LockState, timestamp
from s3queue._runtime import Runtime
from s3queue.stores._port import Body, Store, Version

__all__ = ["Leases"]


class Leases:
    """The lease protocol on one store, for one owner."""

    def __init__(self, store: Store, options: QueueOptions, runtime: Runtime, events: Events) -> None:
        self.locks = Locks(store, options, runtime, events)
        self._store = store
        self._options = options
        self._runtime = runtime
        self._events = events
        self._pieces = Pieces(store, runtime, events)
        self._evidence = Evidence(store, options, runtime, events)
        self.owner = runtime.owner()

    async def claim(self, group: str, *, listed: float | None = None) -> Lease | Refused:
        """Claim a group that no lock is known of: one create, and the confirmation that it is not done.

        `listed` is when a listing of the flags began that did not show this group's, by our monotonic clock: while that
        is younger than `completion_grace` it is the confirmation (see `rules.is_proof`). None asks the store.
        A claim that is not settled within `retry_for` is let go: other groups are quicker."""
        record = LockRecord(
            state=LockState.HELD,
            token=self._runtime.token(),
            epoch=1,
            ttl=self._options.lease_ttl,
            owner=self.owner,
            since=self._now(),
        )
        outcome = await self.locks.write(group, record, None)
        match outcome:
            case Won():
                lease = self._lease(group, record, outcome, Journal())
                if rules.is_proof(listed, self._runtime.monotonic(), self._options):
                    return self._claimed(lease)
                return await self._confirm(lease)
            case Lost(current=None):
                return Unsettled()
            case Lost(current=Body() as current):
                self._events.emit("claim.conflict", hash=group)
                return self._refusal(group, current)
        self._events.emit("claim.unknown", logging.WARNING, hash=group)
        return Unsettled()

    async def take_over(self, group: str, paths: Sequence[str] = ()) -> Lease | Refused:
        """Claim a group whose lock is released or past its ttl; the lock's own words and the store's clock decide.

        `paths` are the group's, for the record of a crash."""
        try:
            lock, current = await self.locks.read(group)
        except NotFound:
            return Busy(0.0)
        if lock is None:
            return Busy(None, current.version)
        match rules.standing(lock, current.date - current.modified, self._options):
            case rules.Taken(seconds):
                return Busy(seconds, current.version)
            case rules.Dead():
                return GroupDead(current.version)
            case rules.Takeable(crashed):
                return await self._take(group, lock, current.version, paths, crashed=crashed)

    async def _take(
        self, group: str, lock: LockRecord, version: Version, paths: Sequence[str], *, crashed: bool
    ) -> Lease | Refused:
        if crashed and await self.locks.is_done(group):
            return Completed()
        journal = await read_journal(self._store, group, lock, self._events)
        if crashed:
            await self._evidence.of_crash(group, lock, paths)
            journal.crashed(lock.progress.running if lock.progress is not None else None)
        record = rules.taken_over(
            lock,
            token=self._runtime.token(),
            owner=self.owner,
            ttl=self._options.lease_ttl,
            since=self._now(),
            progress=journal.progress(),
        )
        outcome = await self.locks.write(group, record, version)
        if isinstance(outcome, Lost) and outcome.current is not None:
            self._events.emit("claim.conflict", hash=group)
            return self._refusal(group, outcome.current)
        if not isinstance(outcome, Won):
            return Unsettled()
        if crashed:
            self._events.emit("lease.taken_over", logging.INFO, hash=group, epoch=record.epoch, lost_owner=lock.owner)
        return await self._unless_exhausted(await self._confirm(self._lease(group, record, outcome, journal)))

    async def _unless_exhausted(self, lease: Lease | Refused) -> Lease | Refused:
        """A group whose owners died too often while they ran it as a whole is dead as soon as somebody finds out."""
        if not isinstance(lease, Lease) or not lease.journal.exhausted(WHOLE, self._options.max_crashes):
            return lease
        try:
            await self.bury(lease, "lease expired")
        except (LeaseLost, OutcomeUnknown):
            return Unsettled()
        return GroupDead(lease.version)

    async def _confirm(self, lease: Lease) -> Lease | Refused:
        """The group may have been completed, and its lock deleted, before our lock was there: look."""
        try:
            done = await self.locks.is_done(lease.group)
        except StoreError:
            # Not knowing is not enough to run it. Handed back, or left to expire if that fails too.
            with anyio.CancelScope(deadline=self._runtime.monotonic() + self._options.request_timeout, shield=True):
                await self._give_back(lease)
            raise
        if done:
            lease.ended = True
            return Completed()
        return self._claimed(lease)

    def _claimed(self, lease: Lease) -> Lease | Refused:
        if not lease.valid(self._runtime.monotonic()):
            return Unsettled()
        self._events.emit("group.claimed", hash=lease.group, epoch=lease.epoch, done=lease.record.done)
        return lease

    async def renew(self, lease: Lease) -> bool:
        """Extend the lease, and put on record what was finished meanwhile.

        False if it is not known yet whether that worked. Raises `LeaseLost` if the lease is not ours."""
        async with lease.writing:
            await self._save_news(lease)
            return await self._renew(lease, until=lease.deadline)

    async def name(self, lease: Lease, unit: int | None) -> None:
        """Say in the lock which unit is about to run, so that a crash can be blamed on it; or that none runs.

        Raises `LeaseLost`, and `OutcomeUnknown` if the lease would end before that is acknowledged."""
        async with lease.writing:
            news_at, now = lease.journal.news_at, self._runtime.monotonic()
            if news_at is not None and now >= news_at + self._options.checkpoint_every:
                await self._save_news(lease)
            settled = await self._settle_pending(lease, until=lease.deadline)
            lease.journal.running = unit
            if not (settled and await self._renew(lease, until=lease.deadline)):
                raise OutcomeUnknown(f"it is not known whether the lock of group {lease.group} says what runs")

    async def complete(self, lease: Lease, result: Any = None) -> None:
        """Write the done flag; the lock may go `completion_grace` later.

        Raises `LeaseLost`, `OutcomeUnknown`, and `HandlerError` for a result that cannot be kept.
        A lease past its deadline completes only after one more renewal: whoever took it over shall be left alone.
        """
        await self._complete(
            lease, Flag(token=self._runtime.token(), epoch=lease.epoch, owner=self.owner, at=self._now(), result=result)
        )

    async def complete_paths(self, lease: Lease) -> None:
        """The same for a group whose paths are all done, by its journal, which has their results."""
        results, pieces = lease.journal.results()
        flag = Flag(
            token=self._runtime.token(),
            epoch=lease.epoch,
            owner=self.owner,
            at=self._now(),
            size=lease.journal.size,
            results=results,
            pieces=pieces,
        )
        await self._complete(lease, flag)

    async def _complete(self, lease: Lease, flag: Flag) -> None:
        intent = flag_intent(lease.group, flag)
        async with lease.writing:
            try:
                outcome = await self._settle_completion(lease, intent)
            except LeaseLost:
                # The lock may be gone because an earlier try was applied, and whoever found the flag cleared it away.
                known = await self._completed_before(lease)
                if known is None:
                    raise
                outcome = known
            lease.ended = not isinstance(outcome, Unknown)
        match outcome:
            case Lost():
                raise LeaseLost(f"group {lease.group} was completed by another owner: this result was dropped")
            case Unknown(cause=cause):
                raise OutcomeUnknown(f"it is not known whether group {lease.group} is completed ({cause})") from cause

    async def _settle_completion(self, lease: Lease, intent: Intent) -> Outcome:
        """Nothing is sent once the lease ran out, though it be a request that had to wait for its turn in here."""
        until = self.locks.until()
        while True:
            await self._revalidate(lease)
            lease.completion = lease.completion or intent
            outcome = await settle(self._store, self._runtime, lease.completion, until=min(until, lease.deadline))
            if not isinstance(outcome, Unknown) or self._runtime.monotonic() >= until:
                return outcome

    async def _completed_before(self, lease: Lease) -> Won | Lost | None:
        """What became of an earlier try to complete, as far as that shows."""
        if lease.completion is None:
            return None
        try:
            current = await self._store.get(lease.completion.key)
        except NotFound:
            return None
        if lease.completion.ours(current.data):
            return Won(version=current.version, sent=lease.sent)
        return Lost(current=current)

    async def release(self, lease: Lease, wait: float = 0.0) -> None:
        """Hand the group back, so that anybody may take it over, after `wait` seconds; counts as no attempt.

        Raises `LeaseLost`, `OutcomeUnknown`."""
        saved = lease.journal.worth_saving
        record = rules.released(lease.record, token=self._runtime.token(), wait=wait, saved=saved)
        await self._leave(lease, record)
        self._events.emit("group.released", hash=lease.group, epoch=lease.epoch)

    async def fail(
        self,
        lease: Lease,
        error: BaseException | str,
        *,
        dead: bool | None = None,
        wait: float = 0.0,
        paths: Sequence[str] = (),
    ) -> bool:
        """Record a failed attempt and release the group with a back-off, or as dead (then True).

        `dead` is the caller's decision; without it, a `PermanentError` and the last attempt allowed make it dead.
        `paths` are those that failed; `wait` is the least to wait. Raises `LeaseLost`, `OutcomeUnknown`."""
        if dead is None:
            dead = isinstance(error, PermanentError) or rules.is_last_attempt(lease.record, self._options)
        lease.journal.cleared(self._options.max_crashes)
        record = rules.failed(
            lease.record,
            token=self._runtime.token(),
            dead=dead,
            options=self._options,
            wait=wait,
            saved=lease.journal.worth_saving,
        )
        line = await self._evidence.of_failure(lease, self.owner, error, paths)
        await self._leave(lease, record)
        self._told_failed(lease, line)
        return dead

    async def bury(self, lease: Lease, why: str) -> None:
        """Give the group up, though this attempt at it did not fail. Raises `LeaseLost`, `OutcomeUnknown`."""
        saved = lease.journal.worth_saving
        await self._leave(lease, rules.buried(lease.record, token=self._runtime.token(), saved=saved))
        self._told_failed(lease, why)

    def _told_failed(self, lease: Lease, error: str) -> None:
        self._events.emit(
            "group.failed",
            logging.WARNING,
            hash=lease.group,
            epoch=lease.epoch,
            failures=lease.record.failures,
            error=error,
            dead=lease.record.state is LockState.DEAD,
        )

    # Below: one lock write at a time, each after the one before is settled.

    async def _leave(self, lease: Lease, record: LockRecord) -> None:
        async with lease.writing:
            if lease.ended:
                raise LeaseLost(f"the lease on group {lease.group} ended already")
            if not await self._settle_pending(lease, until=self.locks.until()):
                raise OutcomeUnknown(f"it is not known whether the lease on group {lease.group} is still ours")
            if record.saved and not await self._pieces.save(lease, until=self.locks.until(), leaving=True):
                raise OutcomeUnknown(f"it is not known whether the progress of group {lease.group} is written")
            outcome = await self.locks.write(lease.group, record, lease.version)
            lease.ended = True
        match outcome:
            case Won():
                lease.record, lease.version = record, outcome.version
            case Lost():
                raise self._lost(lease)
            case Unknown(cause=cause):
                raise OutcomeUnknown(f"it is not known whether group {lease.group} is released ({cause})") from cause

    async def _give_back(self, lease: Lease) -> None:
        try:
            await self.release(lease)
        except (StoreError, LeaseLost, OutcomeUnknown) as error:
            self._events.emit("lock.left", logging.INFO, hash=lease.group, error=str(error))

    async def _save_news(self, lease: Lease) -> None:
        """Before a renewal: write what the lock shall count on. The lease comes first, so this may fail, or wait."""
        if lease.ended or not lease.journal.needs_piece:
            return
        try:
            if await self._pieces.save(lease, until=self._runtime.monotonic() + self._options.request_timeout):
                return
            error = "no answer in time"
        except StoreError as refused:
            error = str(refused)
        lease.journal.news_at = self._runtime.monotonic()  # not again at once
        self._events.emit("progress.unsaved", logging.WARNING, hash=lease.group, error=error)

    async def _revalidate(self, lease: Lease) -> None:
        if lease.ended:
            raise LeaseLost(f"the lease on group {lease.group} ended already")
        until = self.locks.until()
        # The first renewal may be one that was sent long ago, and only now known: then it takes another.
        while not lease.valid(self._runtime.monotonic()):
            if not await self._renew(lease, until=until):
                raise LeaseLost(f"the lease on group {lease.group} ran out and was not renewed: the result was dropped")

    async def _renew(self, lease: Lease, *, until: float) -> bool:
        if lease.ended:
            raise LeaseLost(f"the lease on group {lease.group} ended already")
        if lease.pending is None:
            record = rules.renewed(lease.record, token=self._runtime.token(), progress=lease.journal.progress())
            lease.pending = lock_intent(lease.group, record, lease.version)
            lease.pending_record, lease.pending_since = record, self._runtime.monotonic()
        return await self._settle_pending(lease, until=until)

    async def _settle_pending(self, lease: Lease, *, until: float) -> bool:
        if lease.pending is None or lease.pending_record is None:
            return True
        outcome = await settle(self._store, self._runtime, lease.pending, until=until, since=lease.pending_since)
        match outcome:
            case Won():
                lease.record, lease.version, lease.sent = lease.pending_record, outcome.version, outcome.sent
                lease.deadline = rules.deadline(outcome.sent, lease.record.ttl or 0.0, self._options)
                lease.pending = lease.pending_record = None
                lease.journal.acknowledged(outcome.sent)
                self._events.emit("lease.renewed", hash=lease.group, beat=lease.record.beat, done=lease.record.done)
                return True
            case Lost():
                raise self._lost(lease)
        return False

    def _lost(self, lease: Lease) -> LeaseLost:
        lease.ended = True
        return LeaseLost(
            f"the lease on group {lease.group} (epoch {lease.epoch}) was taken over: its result was dropped"
        )

    def _lease(self, group: str, record: LockRecord, won: Won, journal: Journal) -> Lease:
        return Lease(
            group=group,
            record=record,
            journal=journal,
            began=won.sent,
            version=won.version,
            sent=won.sent,
            deadline=rules.deadline(won.sent, self._options.lease_ttl, self._options),
        )

    def _refusal(self, group: str, current: Body) -> Refused:
        lock = self.locks.decode(group, current)
        if lock is None:
            return Busy(None, current.version)
        match rules.standing(lock, current.date - current.modified, self._options):
            case rules.Dead():
                return GroupDead(current.version)
            case rules.Taken(seconds):
                return Busy(seconds, current.version)
        return Busy(0.0, current.version)

    def _now(self) -> str:
        return timestamp(self._runtime.wall())
