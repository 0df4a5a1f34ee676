"""A folder as an object store, atomic between processes, readable by olmOCR. POSIX.

A key is a file's path below the root. A write goes to a temporary file, is flushed to the disk, and is linked (create)
or renamed (otherwise) into place, so a crash leaves the old object or the new one, never half of one. What makes the
check of a condition and the write one step is an advisory lock on one of 64 files, chosen by the key, below
``.s3queue/``; olmOCR writes without it, in place, as it always did.

A version is the file's inode, size and time of modification; a write makes that time later than the one it replaces,
so no two states of one file share a version.
"""

from __future__ import annotations

import errno
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.to_thread

from s3queue._errors import (
    AccessDenied,
    ConfigurationError,
    InvalidPath,
    NotFound,
    PreconditionFailed,
    StoreError,
    Throttled,
)
from s3queue._runtime import Runtime
from s3queue.stores._port import Body, Create, Deleted, Head, Listed, Page, PutMode, Replace, Version, Written

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
#: A file's time of modification may be this far ahead of the clock, after very many quick writes, without harm.
_TICK = 1


class LocalStore:
    """A folder workspace. It is made by the first write. Raises `ConfigurationError` where it cannot work at all."""

    def __init__(self, root: str | os.PathLike[str], runtime: Runtime) -> None:
        if fcntl is None:
            raise ConfigurationError("a folder workspace needs a POSIX system (flock): use an s3:// workspace here")
        self.root = Path(root).absolute()
        self.name = str(self.root)
        self.lists_in_order = True
        self._runtime = runtime
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._prepared = False

    async def get(self, key: str) -> Body:
        return await self._run(self._get, self._path(key))

    async def head(self, key: str) -> Head:
        return await self._run(self._head, self._path(key))

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        return await self._run(self._put, key, self._path(key), bytes(data), mode)

    async def delete(self, key: str) -> Deleted:
        return await self.delete_many([key])

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        return await self._run(self._delete, [(key, self._path(key)) for key in keys])

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        return await self._run(self._list, prefix, resume if resume is not None else start_after, limit)

    async def _run(self, work: Callable[..., T], *args: object) -> T:
        # Not abandoned when cancelled: a write under way is finished, and then its outcome is on the disk.
        with _mapped(self.name):
            return await anyio.to_thread.run_sync(work, *args, limiter=self._threads)

    def _path(self, key: str) -> Path:
        segments = key.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in segments) or segments[0] == _PRIVATE:
            raise InvalidPath(f"{key!r} cannot be the name of a file in a workspace folder")
        if any(len(part.encode("utf-8")) > _SEGMENT_MOST for part in segments):
            raise InvalidPath(f"a part of {key!r} is longer than {_SEGMENT_MOST} bytes, which a folder cannot hold")
        return self.root.joinpath(*segments)

    # Below: in threads.

    def _date(self) -> float:
        # Files of one host are stamped by its own clock, so that clock is the store's.
        return self._runtime.wall()

    def _get(self, path: Path) -> Body:
        with _opened(path) as file:
            # One open file is one state of an object that is replaced by renaming; olmOCR's locks and flags are empty.
            info = os.fstat(file)
            data = bytearray()
            while chunk := os.read(file, 1 << 20):
                data += chunk
        return Body(version=_version(info), size=len(data), modified=info.st_mtime, date=self._date(), data=bytes(data))

    def _head(self, path: Path) -> Head:
        info = _stat(path)
        if info is None:
            raise NotFound(f"there is no file {path}")
        return Head(version=_version(info), size=info.st_size, modified=info.st_mtime, date=self._date())

    def _put(self, key: str, path: Path, data: bytes, mode: PutMode) -> Written:
        self._prepare()
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._locked(key):
            current = _stat(path)
            _require(path, current, mode)
            temporary, info = self._write(data, after=current)
            try:
                if isinstance(mode, Create):
                    os.link(temporary, path)  # unlike a rename, refuses if olmOCR was quicker
                else:
                    temporary.replace(path)
            except FileExistsError:
                raise PreconditionFailed(f"{path} exists", date=self._date()) from None
            finally:
                temporary.unlink(missing_ok=True)
            _flush(path.parent)
        return Written(version=_version(info), date=self._date())

    def _write(self, data: bytes, *, after: os.stat_result | None) -> tuple[Path, os.stat_result]:
        """A flushed temporary file with these bytes, modified later than `after`."""
        temporary = self.root / _PRIVATE / "tmp" / self._runtime.token()
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(file, view) :]
            if after is not None and os.fstat(file).st_mtime_ns <= after.st_mtime_ns:
                later = after.st_mtime_ns + _TICK
                os.utime(file, ns=(later, later))
            os.fsync(file)
            return temporary, os.fstat(file)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)

    def _delete(self, targets: Sequence[tuple[str, Path]]) -> Deleted:
        if self.root.is_dir():
            self._prepare()
        folders = set()
        for key, path in targets:
            if _stat(path) is None:
                continue
            with self._locked(key):
                path.unlink(missing_ok=True)
            folders.add(path.parent)
        for folder in folders:
            _flush(folder)
        return Deleted(date=self._date())

    def _list(self, prefix: str, after: str | None, limit: int) -> Page:
        date = self._date()
        found: list[Listed] = []
        for key, path in self._walk(prefix):
            if after is not None and key.encode("utf-8") <= after.encode("utf-8"):
                continue
            info = _stat(path)
            if info is None:
                continue  # deleted meanwhile
            if len(found) == limit:
                return Page(objects=found, next=found[-1].key, date=date)
            found.append(Listed(key=key, version=_version(info), size=info.st_size, modified=info.st_mtime))
        return Page(objects=found, next=None, date=date)

    def _walk(self, prefix: str) -> Iterator[tuple[str, Path]]:
        """(key, path) of all files whose key starts with `prefix`, in order of the keys' bytes."""
        folder = prefix.rpartition("/")[0]
        start = self.root.joinpath(*folder.split("/")) if folder else self.root
        pending = [(folder + "/" if folder else "", start)]
        while pending:
            base, path = pending.pop()
            if not base.endswith("/") and base:
                yield base, path
                continue
            entries = [entry for entry in _scan(path) if base or entry.name != _PRIVATE]
            names = [(base + e.name + ("/" if e.is_dir(follow_symlinks=False) else ""), Path(e.path)) for e in entries]
            matching = [(key, p) for key, p in names if key.startswith(prefix) or prefix.startswith(key)]
            pending.extend(sorted(matching, key=lambda item: item[0].encode("utf-8", "surrogateescape"), reverse=True))

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        stripe = self.root / _PRIVATE / f"lock.{zlib.crc32(key.encode('utf-8')) % _STRIPES:02d}"
        file = os.open(stripe, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield
        finally:
            os.close(file)  # which unlocks, as the end of the process does

    def _prepare(self) -> None:
        """Make the private folder, and clean up after processes that died, once."""
        if self._prepared:
            return
        temporary = self.root / _PRIVATE / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        for entry in _scan(temporary):
            info = _stat(Path(entry.path))
            if info is not None and self._date() - info.st_mtime > _LEFTOVER:
                Path(entry.path).unlink(missing_ok=True)
        self._prepared = True


def _version(info: os.stat_result) -> Version:
    return Version(f"{info.st_mtime_ns:x}-{info.st_size:x}-{info.st_ino:x}")


def _stat(path: Path) -> os.stat_result | None:
    """The file's status; None if there is no regular file."""
    try:
        info = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return info if stat.S_ISREG(info.st_mode) else None


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"there is no file {path}") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise NotFound(f"{path} is not a file")
        yield file
    finally:
        os.close(file)


def _require(path: Path, current: os.stat_result | None, mode: PutMode) -> None:
    if isinstance(mode, Create) and current is not None:
        raise PreconditionFailed(f"{path} exists")
    if isinstance(mode, Replace):
        if current is None:
            raise NotFound(f"there is no file {path} to replace")
        if _version(current) != mode.version:
            raise PreconditionFailed(f"{path} is another version")


def _scan(path: Path) -> list[os.DirEntry[str]]:
    """Regular files and folders in a folder; what is a link or special is nobody's object."""
    try:
        with os.scandir(path) as entries:
            return [e for e in entries if e.is_file(follow_symlinks=False) or e.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _flush(folder: Path) -> None:
    """Make the names in a folder durable."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def _mapped(name: str) -> Iterator[None]:
    try:
        yield
    except (PermissionError, NotADirectoryError, IsADirectoryError, FileExistsError) as error:
        raise AccessDenied(f"{name}: {error.strerror}: {error.filename}") from error
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN):
            raise Throttled(f"{name}: {error.strerror}") from error
        raise StoreError(f"{name}: {error.strerror or error}: {error.filename or ''}") from error
