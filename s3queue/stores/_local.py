"""A folder as an object store, atomic between processes, readable by olmOCR. POSIX.

A key is a file's path below the root. A write goes to a temporary file, is flushed to the disk, and is linked (create)
or renamed (otherwise) into place, so a crash leaves the old object or the new one, never half of one. What makes the
check of a condition and the write one step is an advisory lock on one of 64 files, chosen by the key, below
``.s3queue/``; olmOCR writes without it, in place, as it always did.

A version is the file's inode, size and time of modification; a write makes that time later than the one it replaces,
so no two states of one file share a version.

The store's clock is the one that stamps its files (the kernel's or, on NFS, the server's), read by touching a file.
"""

from __future__ import annotations

import errno
import heapq
import os
import stat
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from s3queue._errors import ConfigurationError, InvalidPath, NotFound, PreconditionFailed, Unanswered
from s3queue._runtime import Runtime
from s3queue.stores._files import (
    encodes,
    file_status,
    flush,
    link,
    make_folder,
    mapped,
    remove,
    scan,
    version_of,
    writable_status,
    write,
)
from s3queue.stores._port import Body, Create, Deleted, Head, Listed, Page, PutMode, Replace, Written

try:
    import fcntl
except ImportError:  # not POSIX
    fcntl = None  # type: ignore[assignment]

__all__ = ["LocalStore"]

T = TypeVar("T")

_PRIVATE = ".s3queue"
_STRIPES = 64
_THREADS = 16
_SEGMENT_MOST = 255
#: Age from which a temporary file belongs to a process that died.
_LEFTOVER = 3600.0
#: Listings that are kept open for their next page; what falls out is scanned anew.
_CURSORS = 32
#: Times that a file is read which changes meanwhile, before we say so.
_READS = 5
#: First and longest wait for another process that holds a lock.
_BUSY_FIRST = 0.001
_BUSY_MOST = 0.05
#: See `write`.
_SPREAD = 1_000_000


class _Locked(Exception):
    """Another process is at work on this stripe."""


class LocalStore:
    """A folder workspace. It is made by the first write. Raises `ConfigurationError` where it cannot work at all."""

    def __init__(self, root: str | os.PathLike[str], runtime: Runtime) -> None:
        if fcntl is None:
            raise ConfigurationError("a folder workspace needs a POSIX system (flock): use an s3:// workspace here")
        self.root = Path(root).absolute()
        self.name = str(self.root)
        self.lists_in_order = True
        self._private = self.root / _PRIVATE
        self._runtime = runtime
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._stripes = [anyio.Lock() for _ in range(_STRIPES)]
        self._cursors: dict[tuple[str, str], Iterator[str]] = {}
        self._prepared = False

    def __repr__(self) -> str:
        return f"<LocalStore {self.name}>"

    async def get(self, key: str) -> Body:
        return await self._run(self._get, self._path(key), self._runtime.wall())

    async def head(self, key: str) -> Head:
        return await self._run(self._head, self._path(key), self._runtime.wall())

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        path = self._path(key)
        if not self._prepared:
            await self._run(self._prepare, self._runtime.wall())
        token, wall = self._runtime.token(), self._runtime.wall()
        return await self._exclusively(_stripe(key), partial(self._put, path, bytes(data), mode, token, wall))

    async def delete(self, key: str) -> Deleted:
        return await self.delete_many([key])

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        wall = self._runtime.wall()
        stripes: defaultdict[int, list[Path]] = defaultdict(list)
        for key in keys:
            stripes[_stripe(key)].append(self._path(key))
        if not self._prepared and not await self._run(self._prepare, wall, False):
            return Deleted(date=wall)  # there is no folder
        errors: list[OSError] = []
        for stripe, paths in stripes.items():
            errors += await self._exclusively(stripe, partial(remove, paths))
        with mapped(self.name):
            for error in errors:
                raise error
        folders = {path.parent for paths in stripes.values() for path in paths}
        return Deleted(date=await self._run(self._flush_all, folders, wall))

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        # A scan of a folder costs as much for one page as for all, so the rest of it waits for the next page.
        keys = self._cursors.pop((prefix, resume), None) if resume is not None else None
        if keys is None:
            keys = self._walk(prefix, resume if resume is not None else start_after)
        page, rest = await self._run(self._list, keys, limit, self._runtime.wall())
        if page.next is not None:
            self._cursors[prefix, page.next] = rest
            while len(self._cursors) > _CURSORS:
                del self._cursors[next(iter(self._cursors))]
        return page

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        # Not abandoned when cancelled: a write under way is finished, and then its outcome is on the disk.
        with mapped(self.name):
            return await anyio.to_thread.run_sync(work, *args, limiter=self._threads)

    async def _exclusively(self, stripe: int, work: Callable[[], T]) -> T:
        """Do `work` in a thread while nobody else, here or in another process, works on a key of this stripe.

        One waits here, where waiting can be cancelled, and not in a thread: the other process may be stopped.
        """
        pause = _BUSY_FIRST
        async with self._stripes[stripe]:
            while True:
                try:
                    return await self._run(self._with_lock, stripe, work)
                except _Locked:
                    await self._runtime.sleep(pause * (0.5 + self._runtime.rng.random()))
                    pause = min(_BUSY_MOST, 2 * pause)

    def _path(self, key: str) -> Path:
        segments = key.split("/")
        if not _is_name(segments):
            raise InvalidPath(f"{key!r} cannot be the name of a file in a workspace folder")
        if any(len(part.encode("utf-8")) > _SEGMENT_MOST for part in segments):
            raise InvalidPath(f"a part of {key!r} is longer than {_SEGMENT_MOST} bytes, which a folder cannot hold")
        return self.root.joinpath(*segments)

    # Below: in threads. `wall` stands in for the store's clock in a folder where we may not write.

    def _date(self, wall: float) -> float:
        clock = self._private / "clock"
        try:
            os.utime(clock)
            return clock.stat().st_mtime
        except OSError:
            return wall

    def _get(self, path: Path, wall: float) -> Body:
        for _ in range(_READS):
            with self._opened(path) as file:
                data = bytearray()
                info = os.fstat(file)
                while chunk := os.read(file, 1 << 20):
                    data += chunk
                # Ours are replaced by renaming, and an open file stays what it was; olmOCR writes its index in place.
                unchanged = version_of(os.fstat(file)) == version_of(info)
            if unchanged:
                return Body(
                    version=version_of(info),
                    size=len(data),
                    modified=info.st_mtime,
                    date=self._date(wall),
                    data=bytes(data),
                )
        raise Unanswered(f"{path} changes each time it is read: something keeps writing to it")

    def _head(self, path: Path, wall: float) -> Head:
        with self._opened(path) as file:
            info = os.fstat(file)
        return Head(version=version_of(info), size=info.st_size, modified=info.st_mtime, date=self._date(wall))

    @contextmanager
    def _opened(self, path: Path) -> Iterator[int]:
        try:
            # NONBLOCK, or a named pipe would hold us up.
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            self._require_folder()
            raise NotFound(f"there is no file {path}") from None
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise NotFound(f"{path} is not a file")
            yield file
        finally:
            os.close(file)

    def _put(self, path: Path, data: bytes, mode: PutMode, token: str, wall: float) -> Written:
        current = writable_status(path)
        _require(path, current, mode, self._date(wall))
        make_folder(path.parent)
        temporary = self._private / "tmp" / token
        try:
            info = write(temporary, data, after=current, spread=zlib.crc32(token.encode("ascii")) % _SPREAD)
            if isinstance(mode, Create):
                link(temporary, path)
            else:
                temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        flush(path.parent)
        return Written(version=version_of(info), date=self._date(wall))

    def _list(self, keys: Iterator[str], limit: int, wall: float) -> tuple[Page, Iterator[str]]:
        date = self._date(wall)
        found: list[Listed] = []
        for key in keys:
            if len(found) == limit:
                return Page(objects=found, next=found[-1].key, date=date), chain([key], keys)
            info = file_status(self.root / key)
            if info is not None:  # None: deleted meanwhile
                found.append(Listed(key=key, version=version_of(info), size=info.st_size, modified=info.st_mtime))
        return Page(objects=found, next=None, date=date), keys

    def _walk(self, prefix: str, after: str | None) -> Iterator[str]:
        """The keys of all files that start with `prefix`, after `after`, in order.

        Strings compare by code point, as their UTF-8 does by byte. A folder's name with its slash comes before
        whatever is in it, and nothing comes between: so folders and files can wait in one heap.
        """
        folder, slash, _ = prefix.rpartition("/")
        if slash and not _is_name(folder.split("/")):
            return
        heap = [folder + slash]
        while heap:
            key = heapq.heappop(heap)
            if key and not key.endswith("/"):
                yield key
                continue
            found = [key + name for name in self._names(key)]
            # A folder may also lie on the way to the prefix, or to the key to go on after.
            heap += [
                key
                for key in found
                if (key.startswith(prefix) or (key.endswith("/") and prefix.startswith(key)))
                and (after is None or key > after or (key.endswith("/") and after.startswith(key)))
            ]
            heapq.heapify(heap)

    def _names(self, folder: str) -> Sequence[str]:
        try:
            names = scan(self.root / folder)
        except (FileNotFoundError, NotADirectoryError):
            self._require_folder()
            return []
        return names if folder else [name for name in names if name != _PRIVATE + "/"]

    def _require_folder(self) -> None:
        """A workspace that is not there yet is empty; a file in its place is a mistake."""
        there = next(path for path in chain([self.root], self.root.parents) if path.exists() or path == path.parent)
        if not there.is_dir():
            raise ConfigurationError(f"{there} is a file: a workspace is s3://bucket/prefix or a folder")

    def _prepare(self, wall: float, make: bool = True) -> bool:
        """Make the private folder, and clean up after processes that died. False if there is nothing to prepare."""
        self._require_folder()
        if not make and not self.root.is_dir():
            return False
        temporary = self._private / "tmp"
        make_folder(temporary)
        (self._private / "clock").touch()
        now = self._date(wall)
        for path in temporary.iterdir():
            info = file_status(path)
            if info is not None and now - info.st_mtime > _LEFTOVER:
                path.unlink(missing_ok=True)
        self._prepared = True
        return True

    def _with_lock(self, stripe: int, work: Callable[[], T]) -> T:
        file = os.open(self._private / f"lock.{stripe:02d}", os.O_RDWR | os.O_CREAT, 0o666)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _Locked from None
            try:
                return work()
            finally:
                # Not left to close(): a process that a handler forked meanwhile has the file open too.
                fcntl.flock(file, fcntl.LOCK_UN)
        finally:
            os.close(file)

    def _flush_all(self, folders: set[Path], wall: float) -> float:
        for folder in folders:
            if folder.is_dir():
                flush(folder)
        return self._date(wall)


def _stripe(key: str) -> int:
    return zlib.crc32(key.encode("utf-8", "surrogatepass")) % _STRIPES


def _is_name(segments: Sequence[str]) -> bool:
    """Whether these are the parts of a path that stays below the root and is not ours."""
    return segments[0] != _PRIVATE and all(
        part not in ("", ".", "..") and "\0" not in part and encodes(part) for part in segments
    )


def _require(path: Path, current: os.stat_result | None, mode: PutMode, date: float) -> None:
    if isinstance(mode, Create) and current is not None:
        raise PreconditionFailed(f"{path} exists", date=date)
    if isinstance(mode, Replace):
        if current is None:
            raise NotFound(f"there is no file {path} to replace", date=date)
        if version_of(current) != mode.version:
            raise PreconditionFailed(f"{path} is another version", date=date)
