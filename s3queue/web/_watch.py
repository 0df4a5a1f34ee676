"""Looks at a workspace for everybody who wants to see it: as often as somebody asks, at most once every few seconds."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import anyio

from s3queue._errors import NotFound, S3QueueError
from s3queue._model import ActiveOwner, FailedAttempt, FailedGroup, QueueStatus
from s3queue._picture import BUCKET, Picture
from s3queue._survey import describe_failed, list_history
from s3queue._watch import Follower
from s3queue._workspace import Workspace
from s3queue.stores._port import Head, Version

__all__ = ["SharedWatch", "told_counts"]

#: Points of a chart, at most.
_POINTS = 120
#: Owners that are shown.
_OWNERS_MOST = 100
#: Descriptions of failed groups that are kept.
_KEPT = 512


class SharedWatch:
    """One workspace, looked at by one process. `refresh` looks; everything else only tells."""

    def __init__(self, workspace: Workspace, *, every: float) -> None:
        self.workspace = workspace
        self.every = every
        #: What went wrong at the last look; empty if nothing did.
        self.error = ""
        #: Looks that were completed.
        self.looks = 0
        self._follower = Follower(workspace)
        self._runtime = workspace.runtime
        self._looked_at = self._tried_at = float("-inf")
        self._turn = anyio.Lock()
        self._described: OrderedDict[tuple[str, Version], FailedGroup] = OrderedDict()

    @property
    def picture(self) -> Picture | None:
        """What is known by now; None until the index is read."""
        return self._follower.picture

    async def refresh(self) -> None:
        """Look again, unless somebody else is looking, or has just looked. What went wrong is kept in `error`."""
        if not self._turn.locked():
            await self.wait_for_look()

    async def wait_for_look(self) -> None:
        """Look again, unless somebody else has just looked; whoever is looking is waited for."""
        async with self._turn:
            if self._runtime.monotonic() - self._tried_at >= self.every:
                await self._look()

    async def _look(self) -> None:
        self._tried_at = self._runtime.monotonic()
        try:
            await self._follower.refresh()
        except S3QueueError as error:
            self.error = " ".join(str(error).split())
        else:
            # Counted from the end: a look that takes long is not followed by the next one at once.
            self._looked_at = self._tried_at = self._runtime.monotonic()
            self.looks += 1
            self.error = ""

    def told(self, window: int) -> dict[str, Any]:
        """What a page shows, as JSON. `window`: seconds of the chart, 0 for all."""
        picture = self.picture
        told: dict[str, Any] = {"workspace": self.workspace.store.name, "error": self.error, "every": self.every}
        if picture is None:
            return {**told, "phase": "loading"}
        told["counts"] = {**told_counts(picture.status), "unread": picture.unread_released}
        if not picture.digested:
            return {**told, "phase": "counting"}
        return {
            **told,
            "phase": "ready",
            "age": round(self._runtime.monotonic() - self._looked_at, 1),
            "date": picture.date,
            "paths": picture.paths,
            "rate": picture.rate or 0.0,
            "eta": picture.eta,
            "series": _series(picture.finished, picture.date, window),
            "owners": _owners(picture.owners, picture.unread),
            "failed": len(picture.failed),
        }

    async def failures(self, offset: int, limit: int) -> list[FailedGroup]:
        """Some of the groups that failed, the last to fail first. Raises the store's errors."""
        picture = self.picture
        if picture is None:
            return []
        described = [await self._describe(picture, group) for group in picture.failed[offset : offset + limit]]
        return [failed for failed in described if failed is not None]

    async def _describe(self, picture: Picture, group: str) -> FailedGroup | None:
        lock, record = picture.locks.get(group), picture.record(group)
        if lock is None or record is None:
            return None
        key = (group, lock.version)
        if key not in self._described:
            head = Head(version=lock.version, size=lock.size, modified=lock.modified, date=picture.date)
            store, events = self.workspace.store, self.workspace.events
            self._described[key] = await describe_failed(store, picture.index, group, record, head, events)
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


def told_counts(status: QueueStatus) -> dict[str, int]:
    """Groups by state, by the words of the page and the metrics."""
    return {
        "groups": status.groups,
        "done": status.done,
        "dead": status.dead,
        "leased": status.leased,
        "expired": status.expired,
        "waiting": status.released,
        "free": status.free,
    }


def _owners(owners: tuple[ActiveOwner, ...], unread: int) -> dict[str, Any]:
    return {
        "count": len(owners),
        "unread": unread,
        "shown": [
            {"owner": one.owner, "leases": one.groups, "silent": round(one.age, 1), "since": one.since}
            for one in owners[:_OWNERS_MOST]
        ],
    }


def _series(finished: Counter[int], date: float, window: int) -> dict[str, Any]:
    """Completions over the last `window` seconds (0: since the first one), in at most 120 steps."""
    now = int(date) // BUCKET
    first = min(finished, default=now) if not window else now - window // BUCKET + 1
    step = -(-max(1, now - first + 1) // _POINTS)
    counts = [0] * -(-(now - first + 1) // step)
    before = 0
    for bucket, count in finished.items():
        at = (bucket - first) // step
        if at < 0:
            before += count
        elif at < len(counts):
            counts[at] += count
    return {"start": first * BUCKET, "step": step * BUCKET, "counts": counts, "before": before}
