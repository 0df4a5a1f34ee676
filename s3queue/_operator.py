"""What a person does to groups: retry what failed, break a stuck lease, run a finished group again, sweep."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from s3queue import _keys as keys
from s3queue import _lease_rules as rules
from s3queue._catalogue import Catalogue
from s3queue._errors import ConfigurationError, DamagedWorkspace, NotFound, OutcomeUnknown
from s3queue._events import Events
from s3queue._index import successor
from s3queue._intent import Lost, Unknown, Won, settle
from s3queue._locks import Locks
from s3queue._options import QueueOptions
from s3queue._pieces import piece_intent, read_journal
from s3queue._records import Flag, LockRecord, LockState
from s3queue._runtime import Runtime
from s3queue._survey import list_epochs, list_locks, list_old_flags
from s3queue.stores._port import Store, Version

__all__ = ["Operator"]


class Operator:
    """A person's side of the protocol: each step is one compare-and-swap, so it is safe while workers run."""

    def __init__(
        self, locks: Locks, store: Store, catalogue: Catalogue, options: QueueOptions, runtime: Runtime, events: Events
    ) -> None:
        self._locks = locks
        self._store = store
        self._catalogue = catalogue
        self._options = options
        self._runtime = runtime
        self._events = events

    async def revive(self, group: str) -> Version | None:
        """Give a dead or waiting group a clean slate: no failures, claimable now. None if its lock is neither.

        What failed before stays on record, what is done stays done. Raises `NotFound` if the group has no lock."""
        lock, current = await self._locks.read(group)
        if lock is None or lock.state is LockState.HELD:
            return None
        outcome = await self._locks.write(group, rules.revived(lock, token=self._runtime.token()), current.version)
        if not isinstance(outcome, Won):
            return None
        self._events.emit("group.revived", logging.INFO, hash=group)
        return outcome.version

    async def break_lease(self, group: str) -> bool:
        """Take a group's lock out of its owner's hands: it is free for anybody, at the same epoch, with its progress.

        False if nobody holds it, or it is done. An owner that is alive finds out at its next renewal, and stops. A lock
        that cannot be read is replaced too. Raises `OutcomeUnknown` if the lock changed meanwhile: look again.
        """
        try:
            lock, current = await self._locks.read(group)
        except NotFound:
            return False
        if lock is None:
            lock = LockRecord(
                state=LockState.HELD, token="", epoch=max(await list_epochs(self._store, group), default=0)
            )
        if lock.state is not LockState.HELD or await self._locks.is_done(group):
            return False
        saved = await self._save(group, lock)
        record = rules.released(lock, token=self._runtime.token(), saved=saved)
        if not isinstance(await self._locks.write(group, record, current.version), Won):
            raise OutcomeUnknown(
                f"the lock of group {group} changed meanwhile, or the store did not answer: look again"
            )
        self._events.emit("lease.broken", logging.WARNING, hash=group, owner=lock.owner, epoch=lock.epoch)
        return True

    async def _save(self, group: str, lock: LockRecord) -> bool:
        """Keep what a held lock says of the work inside; whether there is anything."""
        journal = await read_journal(self._store, group, lock, self._events)
        if not journal.worth_saving:
            return False
        piece, name = journal.piece(self._runtime.token(), lock.epoch, leaving=True)
        intent = piece_intent(group, piece, name)
        if isinstance(await settle(self._store, self._runtime, intent, until=self._locks.until()), Unknown):
            raise OutcomeUnknown(f"it is not known whether the progress of group {group} is written: try again")
        return True

    async def reset(self, groups: Iterable[str]) -> dict[str, str]:
        """Run finished groups again, under new names (returned by the old ones), at epochs that go on.

        The old completions are never touched: they stay as history. Raises `ConfigurationError` for a group that is
        unknown, or not finished.
        """
        index = (await self._catalogue.load()).index
        names = {}
        for group in [index.resolve(start) for start in groups]:
            epoch = await self._finished_epoch(group)
            name = successor(group)
            while index.find(name) is not None:
                name = successor(name)
            lock = LockRecord(state=LockState.FREE, token=self._runtime.token(), epoch=epoch)
            outcome = await self._locks.write(name, lock, None)
            if not isinstance(outcome, (Won, Lost)):
                raise OutcomeUnknown(f"it is not known whether group {group} is reset: try again")
            names[group] = name
        await self._catalogue.rename(names)
        self._events.emit("group.reset", logging.INFO, count=len(names))
        return names

    async def _finished_epoch(self, group: str) -> int:
        try:
            return Flag.decode((await self._store.get(keys.flag(group))).data).epoch
        except NotFound:
            raise ConfigurationError(
                f"group {group} is not finished: it runs by itself, or after `retry` if it is dead"
            ) from None
        except DamagedWorkspace as error:
            raise DamagedWorkspace(f"{keys.flag(group)}: {error}") from error

    async def sweep(self) -> int:
        """Delete the locks that are left over on groups that were finished a while ago; returns how many."""
        locks = await list_locks(self._store)
        done = await list_old_flags(self._store, self._options)
        left = [keys.lock(group) for group in locks.found if group in done]
        if left:
            await self._store.delete_many(left)
        return len(left)
