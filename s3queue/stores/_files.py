"""What the folder store does to the disk: steps that are atomic, durable, or say what went wrong. All of it blocks."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from s3queue._errors import (
    AccessDenied,
    PreconditionFailed,
    StoreError,
    StoreFull,
    Throttled,
    Unanswered,
    Unsupported,
)
from s3queue.stores._port import Version

__all__ = [
    "encodes",
    "file_status",
    "flush",
    "link",
    "make_folder",
    "mapped",
    "remove",
    "scan",
    "version_of",
    "writable_status",
    "write",
]

#: Steps, in nanoseconds, that file systems may keep stamps in: tried until one shows.
_TICKS = (1, 1_000, 1_000_000, 1_000_000_000, 2_000_000_000)

_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_BUSY = {errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOLCK}
_NO_ANSWER = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT}
_FULL = {errno.ENOSPC, errno.EDQUOT}


def encodes(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def scan(folder: Path) -> list[str]:
    """The names of files, and with a slash those of folders. Links and special files are nobody's object.

    So is a name that is not UTF-8: no key can be it. Raises `FileNotFoundError`, `NotADirectoryError`.
    """
    with os.scandir(folder) as entries:
        names = [
            entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
            for entry in entries
            if entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
        ]
    return [name for name in names if encodes(name)]


def version_of(info: os.stat_result) -> Version:
    return Version(f"{info.st_mtime_ns:x}-{info.st_size:x}-{info.st_ino:x}")


def file_status(path: Path) -> os.stat_result | None:
    """The status of a regular file; None if there is none."""
    try:
        info = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return info if stat.S_ISREG(info.st_mode) else None


def writable_status(path: Path) -> os.stat_result | None:
    """As `file_status`; raises `StoreError` if something else is in the place of the file."""
    info = file_status(path)
    if info is None and (path.is_symlink() or path.exists()):
        raise StoreError(f"{path} cannot be written: it is a folder (an object below it exists), a link or a device")
    return info


def write(path: Path, data: bytes, *, after: os.stat_result | None, spread: int) -> os.stat_result:
    """Make a file with these bytes, flushed, modified later than `after`.

    The kernel's stamps tick every few milliseconds, and the inode of a file that was just deleted is soon used again:
    `spread`, nanoseconds that differ from write to write, keeps the versions of an object apart that is made anew.
    """
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        info = _stamp(file, after, spread)
        os.fsync(file)
        return info
    finally:
        os.close(file)


def _stamp(file: int, after: os.stat_result | None, spread: int) -> os.stat_result:
    wanted = os.fstat(file).st_mtime_ns + spread
    before = after.st_mtime_ns if after is not None else 0
    for tick in _TICKS:
        wanted = max(wanted, before + tick)
        os.utime(file, ns=(wanted, wanted))
        if os.fstat(file).st_mtime_ns > before:
            break
    return os.fstat(file)


def link(temporary: Path, path: Path) -> None:
    """Unlike a rename, this refuses if olmOCR was quicker."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise PreconditionFailed(f"{path} exists") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP):
            raise
        raise Unsupported(f"{path}: this file system has no hard links, which creating an object needs") from error


def remove(paths: Sequence[Path]) -> list[OSError]:
    """Delete what is there of `paths`; the errors of those that could not be."""
    errors = []
    for path in paths:
        try:
            if file_status(path) is not None:
                path.unlink(missing_ok=True)
        except OSError as error:
            errors.append(error)
    return errors


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, for good."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    try:
        folder.mkdir(exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise StoreError(f"{folder} is a file: in a folder workspace no object can be below another one") from None
    flush(folder.parent)


def flush(folder: Path) -> None:
    """Make the names in a folder durable."""
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def mapped(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"{name}: {error.strerror or error}" + (f": {error.filename}" if error.filename else "")
        if error.errno in _DENIED:
            raise AccessDenied(text) from error
        if error.errno in _BUSY:
            raise Throttled(text) from error
        if error.errno in _FULL:
            raise StoreFull(f"{text}: make room there, and start again") from error
        # An error of the disk in a write's last step does not say that nothing was written.
        raise (Unanswered if error.errno in _NO_ANSWER else StoreError)(text) from error
