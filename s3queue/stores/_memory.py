"""A store in memory: for tests, simulations and trials. As strict as S3 and as coarse in its stamps."""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import anyio.lowlevel

from s3queue._errors import NotFound, PreconditionFailed
from s3queue._runtime import Runtime
from s3queue.stores._port import Body, Create, Deleted, Head, Listed, Page, PutMode, Replace, Version, Written

__all__ = ["MemoryBucket", "MemoryStore"]

_EPOCH = 1_790_000_000


@dataclass(frozen=True, slots=True)
class _Object:
    data: bytes
    version: Version
    modified: float


class MemoryBucket:
    """The objects of one store; any number of `MemoryStore` share it, as machines share a bucket."""

    def __init__(self) -> None:
        self._objects: dict[str, _Object] = {}
        #: All keys in the order of a listing: strings compare by code point, as their UTF-8 does by byte.
        self._order: list[str] = []

    def __len__(self) -> int:
        return len(self._objects)

    def find(self, key: str) -> _Object:
        """Raises `NotFound`."""
        try:
            return self._objects[key]
        except KeyError:
            raise NotFound(f"there is no object {key!r}") from None

    def write(self, key: str, data: bytes, mode: PutMode, now: float) -> Version:
        """Raises `PreconditionFailed`, `NotFound`."""
        current = self._objects.get(key)
        if isinstance(mode, Create) and current is not None:
            raise PreconditionFailed(f"{key!r} exists", date=now)
        if isinstance(mode, Replace):
            if current is None:
                raise NotFound(f"there is no object {key!r} to replace", date=now)
            if current.version != mode.version:
                raise PreconditionFailed(f"{key!r} is another version", date=now)
        if current is None:
            insort(self._order, key)
        # As with an ETag, equal bytes are equal versions.
        version = Version(hashlib.md5(data, usedforsecurity=False).hexdigest())
        self._objects[key] = _Object(data, version, now)
        return version

    def remove(self, key: str) -> None:
        """Removes the object, if it is there."""
        if self._objects.pop(key, None) is not None:
            del self._order[bisect_left(self._order, key)]

    def slice(self, prefix: str, after: str | None, limit: int) -> tuple[list[Listed], bool]:
        """The next `limit` objects, and whether there are more."""
        start = bisect_left(self._order, prefix)
        if after is not None:
            start = max(start, bisect_right(self._order, after))
        found: list[Listed] = []
        for key in self._order[start : start + limit + 1]:
            if not key.startswith(prefix):
                break
            item = self._objects[key]
            found.append(Listed(key=key, version=item.version, size=len(item.data), modified=item.modified))
        return found[:limit], len(found) > limit


class MemoryStore:
    """One process's view of a `MemoryBucket`. Stamps are whole seconds of the event loop's clock, virtual or not.

    Each request takes `latency` seconds. `requests` counts them by verb (``get``, ``put``, …).
    """

    def __init__(
        self, runtime: Runtime, bucket: MemoryBucket | None = None, *, name: str = "memory", latency: float = 0.0
    ) -> None:
        self.bucket = bucket if bucket is not None else MemoryBucket()
        self.name = name
        self.lists_in_order = True
        #: Requests so far, by verb.
        self.requests: Counter[str] = Counter()
        self._runtime = runtime
        self._latency = latency

    async def get(self, key: str) -> Body:
        now = await self._begin("get")
        item = self.bucket.find(key)
        return Body(version=item.version, size=len(item.data), modified=item.modified, date=now, data=item.data)

    async def head(self, key: str) -> Head:
        now = await self._begin("head")
        item = self.bucket.find(key)
        return Head(version=item.version, size=len(item.data), modified=item.modified, date=now)

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        now = await self._begin("put")
        return Written(version=self.bucket.write(key, bytes(data), mode, now), date=now)

    async def delete(self, key: str) -> Deleted:
        now = await self._begin("delete")
        self.bucket.remove(key)
        return Deleted(date=now)

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        now = await self._begin("delete_many")
        for key in keys:
            self.bucket.remove(key)
        return Deleted(date=now)

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        now = await self._begin("list")
        objects, more = self.bucket.slice(prefix, resume if resume is not None else start_after, limit)
        return Page(objects=objects, next=objects[-1].key if more else None, date=now)

    async def _begin(self, verb: str) -> float:
        """Let others run first: cancelled here, a request has had no effect; after this it has one, at once."""
        self.requests[verb] += 1
        if self._latency:
            await self._runtime.sleep(self._latency)
        else:
            await anyio.lowlevel.checkpoint()
        return float(_EPOCH + math.floor(self._runtime.monotonic()))
