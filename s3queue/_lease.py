"""The lease: claim, confirm, take over, renew, complete, release, fail. Locks and flags are written here only.

Each step is one `Intent`; `_intent` settles it. The rules are `_lease_rules`; the bytes are `_records`.
"""

from __future__ import annotations

import logging
from typing import Any

import anyio

from s3queue import _keys as keys
from s3queue import _lease_rules as rules
from s3queue._errors import (
    DamagedWorkspace,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    PermanentError,
    StoreError,
)
from s3queue._events import Events
from s3queue._intent import Intent, Lost, Outcome, Unknown, Won, settle
from s3queue._options import QueueOptions
from s3queue._outcomes import Busy, Completed, GroupDead, Lease, Refused, Unsettled
from s3queue._records import Failure, Flag, LockRecord, LockState, describe, timestamp
from s3queue._runtime import Runtime
from s3queue.stores._port import CREATE, Body, Replace, Store, Version

__all__ = ["Leases"]


class Leases:
    """The lease protocol on one store, for one owner."""

    def __init__(self, store: Store, options: QueueOptions, runtime: Runtime, events: Events) -> None:
        self._store = store
        self._options = options
        self._runtime = runtime
        self._events = events
        self.owner = runtime.owner()

    async def claim(self, group: str) -> Lease | Refused:
        """Claim a group that no lock is known of: one create, then the confirmation that it is not done.

        A claim that is not settled within `request_timeout` is let go: other groups are quicker."""
        record = LockRecord(
            state=LockState.HELD,
            token=self._runtime.token(),
            epoch=1,
            ttl=self._options.lease_ttl,
            owner=self.owner,
            since=self._now(),
        )
        outcome = await self._write(group, record, None)
        match outcome:
            case Won():
                return await self._confirm(self._lease(group, record, outcome))
            case Lost(current=None):
                return Unsettled()
            case Lost(current=Body() as current):
                self._events.emit("claim.conflict", hash=group)
                return self._refusal(group, current)
        self._events.emit("claim.unknown", logging.WARNING, hash=group)
        return Unsettled()

    async def take_over(self, group: str) -> Lease | Refused:
        """Claim a group whose lock is released or past its ttl; the lock's own words and the store's clock decide."""
        try:
            current = await self._store.get(keys.lock(group))
        except NotFound:
            return Busy(0.0)
        lock = self._decode(group, current)
        if lock is None:
            return Busy(None, current.version)
        match rules.standing(lock, current.date - current.modified, self._options):
            case rules.Taken(seconds):
                return Busy(seconds, current.version)
            case rules.Dead():
                return GroupDead(current.version)
            case rules.Takeable(crashed=True):
                return await self._take_crashed(group, lock, current.version)
            case rules.Takeable():
                return await self._take(group, lock, current.version, crashed=False)

    async def _take_crashed(self, group: str, lock: LockRecord, version: Version) -> Lease | Refused:
        if await self.is_done(group):
            # The owner died between its flag and its lock's deletion: the lock may go now.
            await self.drop(group)
            return Completed()
        await self._record_crash(group, lock)
        if lock.failures + 1 < self._options.max_attempts:
            return await self._take(group, lock, version, crashed=True)
        record = rules.buried(lock, token=self._runtime.token())
        outcome = await self._write(group, record, version)
        if not isinstance(outcome, Won):
            return Unsettled()
        self._events.emit(
            "group.failed", logging.WARNING, hash=group, failures=record.failures, error="lease expired", dead=True
        )
        return GroupDead(outcome.version)

    async def _take(self, group: str, lock: LockRecord, version: Version, *, crashed: bool) -> Lease | Refused:
        record = rules.taken_over(
            lock,
            token=self._runtime.token(),
            owner=self.owner,
            ttl=self._options.lease_ttl,
            since=self._now(),
            crashed=crashed,
        )
        outcome = await self._write(group, record, version)
        if isinstance(outcome, Lost) and outcome.current is not None:
            return self._refusal(group, outcome.current)
        if not isinstance(outcome, Won):
            return Unsettled()
        if crashed:
            self._events.emit("lease.taken_over", logging.INFO, hash=group, epoch=record.epoch, lost_owner=lock.owner)
        return await self._confirm(self._lease(group, record, outcome))

    async def _confirm(self, lease: Lease) -> Lease | Refused:
        """The group may have been completed, and its lock deleted, before our lock was there: look."""
        try:
            done = await self.is_done(lease.group)
        except StoreError:
            # Not knowing is not enough to run it. Handed back, or left to expire if that fails too.
            with anyio.CancelScope(deadline=self._runtime.monotonic() + self._options.request_timeout, shield=True):
                await self._give_back(lease)
            raise
        if done:
            await self.drop(lease.group)
            return Completed()
        if not lease.valid(self._runtime.monotonic()):
            return Unsettled()
        self._events.emit("group.claimed", hash=lease.group, epoch=lease.epoch)
        return lease

    async def renew(self, lease: Lease) -> bool:
        """Extend the lease. False if it is not known yet whether that worked. Raises `LeaseLost` if it is not ours."""
        async with lease.writing:
            return await self._renew(lease, until=lease.deadline)

    async def complete(self, lease: Lease, result: Any = None) -> None:
        """Write the done flag; then the lock may go. Raises `LeaseLost`, `OutcomeUnknown`, `HandlerError` (bad result).

        A lease past its deadline completes only after one more renewal: whoever took it over shall be left alone.
        """
        flag = Flag(token=self._runtime.token(), epoch=lease.epoch, owner=self.owner, at=self._now(), result=result)
        intent = _flag_intent(lease.group, flag)
        async with lease.writing:
            await self._revalidate(lease)
            lease.completion = lease.completion or intent
            outcome = await settle(self._store, self._runtime, lease.completion, until=self._until())
            lease.ended = not isinstance(outcome, Unknown)
        match outcome:
            case Won():
                await self.drop(lease.group)
            case Lost():
                await self.drop(lease.group)
                raise LeaseLost(f"group {lease.group} was completed by another owner: this result was dropped")
            case Unknown(cause=cause):
                raise OutcomeUnknown(f"it is not known whether group {lease.group} is completed ({cause})") from cause

    async def release(self, lease: Lease, wait: float = 0.0) -> None:
        """Hand the group back, so that anybody may take it over, after `wait` seconds; counts as no attempt.

        Raises `LeaseLost`, `OutcomeUnknown`."""
        record = rules.released(lease.record, token=self._runtime.token(), wait=wait)
        await self._leave(lease, record)
        self._events.emit("group.released", hash=lease.group)

    async def fail(self, lease: Lease, error: BaseException | str) -> bool:
        """Record a failed attempt and release the group with a back-off, or as dead (then True).

        A `PermanentError` makes it dead at once. Raises `LeaseLost`, `OutcomeUnknown`."""
        permanent = isinstance(error, PermanentError)
        token = self._runtime.token()
        record = rules.failed(lease.record, token=token, permanent=permanent, options=self._options)
        kind, line, detail = describe(error)
        await self._record_failure(lease.group, lease.epoch, record.failures, self.owner, kind, line, detail)
        await self._leave(lease, record)
        dead = record.state is LockState.DEAD
        self._events.emit(
            "group.failed", logging.WARNING, hash=lease.group, failures=record.failures, error=line, dead=dead
        )
        return dead

    async def revive(self, group: str) -> Version | None:
        """Give a dead or waiting group a clean slate: no failures, claimable now. None if its lock is neither.

        What failed before stays on record. Raises `NotFound` if the group has no lock."""
        current = await self._store.get(keys.lock(group))
        lock = self._decode(group, current)
        if lock is None or lock.state is LockState.HELD:
            return None
        record = rules.revived(lock, token=self._runtime.token())
        outcome = await self._write(group, record, current.version)
        if not isinstance(outcome, Won):
            return None
        self._events.emit("group.revived", logging.INFO, hash=group)
        return outcome.version

    async def look(self, group: str) -> tuple[LockRecord | None, float]:
        """The group's lock (None: unreadable) and its age in seconds by the store's clock. Raises `NotFound`."""
        current = await self._store.get(keys.lock(group))
        return self._decode(group, current), current.date - current.modified

    async def is_done(self, group: str) -> bool:
        """Whether the group has a done flag."""
        try:
            await self._store.head(keys.flag(group))
        except NotFound:
            return False
        return True

    async def drop(self, group: str) -> None:
        """Delete the lock of a group *that is done*: then it guards nothing. What fails is left to be swept."""
        try:
            await self._store.delete(keys.lock(group))
        except StoreError as error:
            self._events.emit("lock.left", logging.INFO, hash=group, error=str(error))

    # Below: one lock write at a time, each after the one before is settled.

    async def _leave(self, lease: Lease, record: LockRecord) -> None:
        async with lease.writing:
            if lease.ended:
                raise LeaseLost(f"the lease on group {lease.group} ended already")
            if not await self._settle_pending(lease, until=self._until()):
                raise OutcomeUnknown(f"it is not known whether the lease on group {lease.group} is still ours")
            outcome = await self._write(lease.group, record, lease.version)
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

    async def _revalidate(self, lease: Lease) -> None:
        if lease.ended:
            raise LeaseLost(f"the lease on group {lease.group} ended already")
        if lease.valid(self._runtime.monotonic()):
            return
        if not await self._renew(lease, until=self._until()):
            raise LeaseLost(f"the lease on group {lease.group} ran out and was not renewed: the result was dropped")

    async def _renew(self, lease: Lease, *, until: float) -> bool:
        if lease.ended:
            raise LeaseLost(f"the lease on group {lease.group} ended already")
        if lease.pending is None:
            record = rules.renewed(lease.record, token=self._runtime.token())
            lease.pending = _lock_intent(lease.group, record, lease.version)
            lease.pending_record = record
        return await self._settle_pending(lease, until=until)

    async def _settle_pending(self, lease: Lease, *, until: float) -> bool:
        if lease.pending is None or lease.pending_record is None:
            return True
        outcome = await settle(self._store, self._runtime, lease.pending, until=until)
        match outcome:
            case Won():
                lease.record, lease.version, lease.sent = lease.pending_record, outcome.version, outcome.sent
                lease.deadline = rules.deadline(outcome.sent, lease.record.ttl or 0.0, self._options)
                lease.pending = lease.pending_record = None
                self._events.emit("lease.renewed", hash=lease.group, beat=lease.record.beat)
                return True
            case Lost():
                raise self._lost(lease)
        return False

    def _lost(self, lease: Lease) -> LeaseLost:
        lease.ended = True
        return LeaseLost(
            f"the lease on group {lease.group} (epoch {lease.epoch}) was taken over: its result was dropped"
        )

    async def _write(self, group: str, record: LockRecord, version: Version | None) -> Outcome:
        return await settle(self._store, self._runtime, _lock_intent(group, record, version), until=self._until())

    async def _record_crash(self, group: str, lock: LockRecord) -> None:
        error = f"lease expired: the owner {lock.owner or '(olmOCR)'} stopped renewing it"
        await self._record_failure(group, lock.epoch, lock.failures + 1, lock.owner, "lease expired", error, "")

    async def _record_failure(
        self, group: str, epoch: int, attempt: int, owner: str, kind: str, error: str, detail: str
    ) -> None:
        """Write the record of an epoch's failure, if there is none yet. It is evidence: without it, work goes on."""
        failure = Failure(
            token=self._runtime.token(),
            epoch=epoch,
            attempt=attempt,
            owner=owner,
            at=self._now(),
            kind=kind,
            error=error,
            detail=detail,
        )
        data = failure.encode()
        intent = Intent(key=keys.failure(group, epoch), data=data, mode=CREATE, ours=lambda body: body == data)
        try:
            if not isinstance(await settle(self._store, self._runtime, intent, until=self._until()), Unknown):
                return
        except StoreError as refused:
            error = f"{error} (and its record was refused: {refused})"
        self._events.emit("failure.unrecorded", logging.WARNING, hash=group, epoch=epoch, error=error)

    def _lease(self, group: str, record: LockRecord, won: Won) -> Lease:
        return Lease(
            group=group,
            record=record,
            version=won.version,
            sent=won.sent,
            deadline=rules.deadline(won.sent, self._options.lease_ttl, self._options),
        )

    def _refusal(self, group: str, current: Body) -> Refused:
        lock = self._decode(group, current)
        if lock is None:
            return Busy(None, current.version)
        match rules.standing(lock, current.date - current.modified, self._options):
            case rules.Dead():
                return GroupDead(current.version)
            case rules.Taken(seconds):
                return Busy(seconds, current.version)
        return Busy(0.0, current.version)

    def _decode(self, group: str, body: Body) -> LockRecord | None:
        try:
            return LockRecord.decode(body.data)
        except DamagedWorkspace as error:
            self._events.emit("lock.unreadable", logging.WARNING, hash=group, error=str(error))
            return None

    def _until(self) -> float:
        return self._runtime.monotonic() + self._options.retry_for

    def _now(self) -> str:
        return timestamp(self._runtime.wall())


def _lock_intent(group: str, record: LockRecord, version: Version | None) -> Intent:
    return Intent(
        key=keys.lock(group),
        data=record.encode(),
        mode=CREATE if version is None else Replace(version),
        ours=lambda body: _lock_token(body) == record.token,
    )


def _flag_intent(group: str, flag: Flag) -> Intent:
    return Intent(
        key=keys.flag(group),
        data=flag.encode(),
        mode=CREATE,
        ours=lambda body: _flag_token(body) == flag.token,
    )


def _lock_token(body: bytes) -> str | None:
    try:
        return LockRecord.decode(body).token
    except DamagedWorkspace:
        return None


def _flag_token(body: bytes) -> str | None:
    try:
        return Flag.decode(body).token
    except DamagedWorkspace:
        return None
