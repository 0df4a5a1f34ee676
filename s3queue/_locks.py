"""Reading and writing the objects of the protocol: locks and flags. Which write is right is the callers' affair."""

from __future__ import annotations

import logging

from s3queue import _keys as keys
from s3queue import _lease_rules as rules
from s3queue._errors import DamagedWorkspace, NotFound, StoreError
from s3queue._events import Events
from s3queue._intent import Intent, Outcome, settle
from s3queue._options import QueueOptions
from s3queue._records import Flag, LockRecord
from s3queue._runtime import Runtime
from s3queue.stores._port import CREATE, Body, Replace, Store, Version

__all__ = ["Locks", "flag_intent", "lock_intent"]


class Locks:
    """The locks and flags of one workspace."""

    def __init__(self, store: Store, options: QueueOptions, runtime: Runtime, events: Events) -> None:
        self._store = store
        self._options = options
        self._runtime = runtime
        self._events = events

    async def read(self, group: str) -> tuple[LockRecord | None, Body]:
        """The group's lock (None: unreadable) and the object that it is in. Raises `NotFound`."""
        body = await self._store.get(keys.lock(group))
        return self.decode(group, body), body

    def decode(self, group: str, body: Body) -> LockRecord | None:
        """The lock in this object; None, and an event, if it is unreadable: then it is neither ours nor expired."""
        try:
            return LockRecord.decode(body.data)
        except DamagedWorkspace as error:
            self._events.emit("lock.unreadable", logging.WARNING, hash=group, error=str(error))
            return None

    async def write(self, group: str, record: LockRecord, version: Version | None) -> Outcome:
        """Write the lock in place of this version of it (None: of none)."""
        return await settle(self._store, self._runtime, lock_intent(group, record, version), until=self.until())

    async def is_done(self, group: str) -> bool:
        """Whether the group has a done flag. Its lock, if it is left over and nobody needs it any more, goes."""
        try:
            flag = await self._store.head(keys.flag(group))
        except NotFound:
            return False
        if rules.outlived(flag.date - flag.modified, self._options):
            await self._drop(group)
        return True

    async def _drop(self, group: str) -> None:
        try:
            await self._store.delete(keys.lock(group))
        except StoreError as error:
            self._events.emit("lock.left", logging.INFO, hash=group, error=str(error))

    def until(self) -> float:
        """How long a write may take to be settled, by our monotonic clock."""
        return self._runtime.monotonic() + self._options.retry_for


def lock_intent(group: str, record: LockRecord, version: Version | None) -> Intent:
    """The write of a lock in place of this version (None: of none)."""
    return Intent(
        key=keys.lock(group),
        data=record.encode(),
        mode=CREATE if version is None else Replace(version),
        ours=lambda body: _lock_token(body) == record.token,
    )


def flag_intent(group: str, flag: Flag) -> Intent:
    """The write of a completion."""
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
