"""Looks at a workspace for everybody who wants to see it: as often as somebody asks, at most once every few seconds.

The first look lists every completion once. From then on a look lists the locks, which are few, and the completions only
near groups that are or were locked: every group that is worked on has a lock, which outlives its completion by
`completion_grace`. After a pause about that long, where olmOCR's workers delete their locks at once, and every ten
minutes in case something was missed, it lists everything anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import anyio

from s3queue import _keys as keys
from s3queue._errors import NotFound, S3QueueError
from s3queue._model import FailedAttempt, FailedGroup
from s3queue._survey import describe_failed, list_history, list_locks, read_locks
from s3queue._tasks import compute, task_group
from s3queue._workspace import Workspace
from s3queue.stores._listing import list_pages
from s3queue.stores._port import Head, Version
from s3queue.web._picture import Picture, ReadLock, slices

__all__ = ["Watch"]

_HEX = "0123456789abcdef"
#: Listings at the same time.
_LISTINGS = 8
#: Locks that one look reads, at most: the rest waits for the next one.
_READS = 512
#: How often everything is listed, where locks prove nothing and where they do.
_FOREIGN_EVERY = 60.0
_ANEW_EVERY = 600.0
#: The part of `completion_grace` that may pass between two looks.
_GRACE_PART = 0.8
#: Descriptions of failed groups that are kept.
_KEPT = 512


class Watch:
    """One workspace, looked at by one process. `refresh` looks; everything else only tells."""

    def __init__(self, workspace: Workspace, *, every: float) -> None:
        self.workspace = workspace
        self.every = every
        self.picture: Picture | None = None
        self.paths = 0
        #: What went wrong at the last look; empty if nothing did.
        self.error = ""
        #: Looks that were completed.
        self.looks = 0
        self._runtime = workspace.runtime
        self._version: Version | None = None
        self._index_at = self._listed_at = self._looked_at = self._tried_at = float("-inf")
        self._turn = anyio.Lock()
        self._described: OrderedDict[tuple[str, Version], FailedGroup] = OrderedDict()

    @property
    def age(self) -> float | None:
        """Seconds since the last complete look; None before it."""
        return self._runtime.monotonic() - self._looked_at if self.looks else None

    @property
    def stale(self) -> bool:
        """Whether it is time to look again."""
        return self._runtime.monotonic() - self._tried_at >= self.every

    async def refresh(self) -> None:
        """Look again, unless somebody else is looking, or has just looked. What went wrong is kept in `error`."""
        try:
            self._turn.acquire_nowait()
        except anyio.WouldBlock:
            return
        try:
            if self.stale:
                await self._look()
                self.error = ""
        except S3QueueError as error:
            self.error = " ".join(str(error).split())
        finally:
            self._turn.release()

    async def _look(self) -> None:
        self._tried_at = self._runtime.monotonic()
        picture = await self._load(self._tried_at)
        locks = await list_locks(self.workspace.store)
        picture.saw_locks(locks.found, locks.date)
        await self._list_flags(picture, self._runtime.monotonic())
        await self._read_locks(picture)
        picture.digest()
        # Counted from the end: a look that takes long is not followed by the next one at once.
        self._looked_at = self._tried_at = self._runtime.monotonic()
        self.looks += 1

    async def _load(self, now: float) -> Picture:
        """The picture, begun anew if the index is another one."""
        if self.picture is not None and now - self._index_at < self.workspace.options.index_refresh:
            return self.picture
        catalogue = self.workspace.catalogue
        if self.picture is None or await catalogue.changed(self._version):
            self._version = None
            loaded = await catalogue.load()
            self.picture = Picture(loaded.index, self.workspace.options)
            self._listed_at = float("-inf")
            self.paths = await compute(len(loaded.index) * 60, loaded.index.count_paths)
            self._version = loaded.version
        self._index_at = now
        return self.picture

    async def _list_flags(self, picture: Picture, now: float) -> None:
        patience = _FOREIGN_EVERY if picture.foreign or not self._in_order else _ANEW_EVERY
        missed = now - self._looked_at > self.workspace.options.completion_grace * _GRACE_PART
        if missed or now - self._listed_at > patience:
            everything = [keys.flag_prefix(digit) for digit in _HEX] if self._in_order else [keys.FLAGS]
            await self._list_each(picture, everything)
            self._listed_at = now
        elif self._in_order:
            near = slices(picture.near, len(picture.index))
            await self._list_each(picture, [keys.flag_prefix(digits) for digits in near])

    async def _list_each(self, picture: Picture, prefixes: Sequence[str]) -> None:
        limit, turn = anyio.CapacityLimiter(_LISTINGS), anyio.Lock()

        async def listed(prefix: str) -> None:
            async with limit:
                async for page in list_pages(self.workspace.store, prefix):
                    async with turn:  # a page in a turn of the loop: whoever wants to see something comes in between
                        picture.saw_flags(page)

        async with task_group() as tasks:
            for prefix in prefixes:
                tasks.start_soon(listed, prefix)

    @property
    def _in_order(self) -> bool:
        return self.workspace.store.lists_in_order

    async def _read_locks(self, picture: Picture) -> None:
        wanted = [group for group in picture.unread() if not picture.is_done(group)][:_READS]
        async for group, record, body in read_locks(self.workspace.store, wanted):
            picture.read[group] = ReadLock(body.version, record)

    def told(self, window: int) -> dict[str, Any]:
        """What a page shows, as JSON. `window`: seconds of the chart, 0 for all."""
        picture, age = self.picture, self.age
        told: dict[str, Any] = {"workspace": self.workspace.store.name, "error": self.error, "every": self.every}
        if picture is None:
            return {**told, "phase": "loading"}
        counts = picture.told_counts()
        if not self.looks or not picture.digested:
            return {**told, "phase": "counting", "counts": counts}
        rate, left = picture.rate(), counts["groups"] - counts["done"] - counts["dead"]
        return {
            **told,
            "phase": "ready",
            "age": round(age or 0.0, 1),
            "date": picture.date,
            "paths": self.paths,
            "counts": counts,
            "rate": rate,
            "eta": left / rate if rate and left else None,
            "series": picture.series(window),
            "owners": picture.told_owners(),
            "failed": len(picture.failed),
        }

    async def failures(self, offset: int, limit: int) -> list[FailedGroup]:
        """Some of the groups that failed, the last to fail first. Raises the store's errors."""
        picture = self.picture
        if picture is None:
            return []
        found = []
        for group in picture.failed[offset : offset + limit]:
            described = await self._describe(picture, group)
            if described is not None:
                found.append(described)
        return found

    async def _describe(self, picture: Picture, group: str) -> FailedGroup | None:
        lock, known = picture.locks.get(group), picture.read.get(group)
        if lock is None or known is None:
            return None
        key = (group, lock.version)
        if key not in self._described:
            head = Head(version=lock.version, size=lock.size, modified=lock.modified, date=picture.date)
            store, events = self.workspace.store, self.workspace.events
            self._described[key] = await describe_failed(store, picture.index, group, known.record, head, events)
            while len(self._described) > _KEPT:
                self._described.popitem(last=False)
        return self._described[key]

    async def history(self, group: str) -> list[FailedAttempt]:
        """Every failed attempt at a group of this workspace. Raises `NotFound`, and the store's errors."""
        self._require(group)
        return await list_history(self.workspace.store, group)

    async def retry(self, group: str) -> bool:
        """Make a dead or waiting group claimable; False if it is neither. Raises `NotFound`, and the store's errors."""
        self._require(group)
        if await self.workspace.operator.revive(group) is None:
            return False
        self._tried_at = float("-inf")
        return True

    def _require(self, group: str) -> None:
        if self.picture is None or self.picture.index.find(group) is None:
            raise NotFound(f"there is no group {group!r}")
