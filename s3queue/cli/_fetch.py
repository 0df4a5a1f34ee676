"""`--fetch`: handlers get local copies of what lies on S3, which are removed when they are done.

The copies of all handlers together stay within a number of bytes: who wants more than is left waits, first come, first
served. A group's copies are asked for at once, so that two groups never wait for each other.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import anyio.to_thread
import typer

from s3queue._errors import ConfigurationError, HandlerError, StoreError
from s3queue._handlers import Handler, Runner, current_item
from s3queue._model import WorkItem
from s3queue._options import QueueOptions
from s3queue._runtime import Runtime
from s3queue._survey import all_of, batches
from s3queue.cli._commands import fetched_from
from s3queue.stores._retry import RetryPolicy

if TYPE_CHECKING:
    from s3queue.stores._s3_download import Downloads, Remote

__all__ = ["Fetch", "FetchSpace", "Space", "fetching", "parse_size"]

T = TypeVar("T")

_S3 = "s3://"
_TRIES = 4
_NAME_MOST = 120
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)

Fetch = Annotated[
    bool, typer.Option("--fetch", help="Give the handler local copies of s3:// paths, removed afterwards.")
]
FetchSpace = Annotated[
    str, typer.Option("--fetch-space", metavar="SIZE", help="The most that copies take on the disk; TMPDIR says where.")
]


def parse_size(text: str) -> int:
    """``500MB``, ``1.5GiB``, ``4096``: in bytes. Raises `ConfigurationError`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise ConfigurationError(f"--fetch-space {text!r}: write a size as 500MB or 20GiB")
    unit = "kmgt".index(match[2].lower()) + 1 if match[2] else 0
    return int(float(match[1]) * (1024 if match[3] else 1000) ** unit)


class Space:
    """A number of bytes that handlers share."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._turn = anyio.Lock()
        self._freed = anyio.Event()

    @asynccontextmanager
    async def taken(self, size: int) -> AsyncIterator[None]:
        """Wait for `size` bytes, and hold them inside the block. Raises `HandlerError` if they will never be there."""
        if size > self.limit:
            raise HandlerError(f"--fetch: {size:,} bytes are more than --fetch-space, {self.limit:,}", detail="")
        async with self._turn:
            while self.used + size > self.limit:
                await self._freed.wait()
            self.used += size
        try:
            yield
        finally:
            self.used -= size
            self._freed.set()
            self._freed = anyio.Event()


@asynccontextmanager
async def fetching(
    handler: Handler, options: QueueOptions, *, workers: int, timeout: float | None, space: int
) -> AsyncIterator[Handler]:
    """A handler that gives `handler` local copies. `timeout` is for `handler` alone, not for what it waits for."""
    from s3queue.stores._s3_download import open_downloads  # the SDK takes half a second to import

    # One connection a worker: each downloads for itself.
    connections = dataclasses.replace(options, connections=max(workers, int(options.connections)))
    with tempfile.TemporaryDirectory(prefix="s3queue-", ignore_cleanup_errors=True) as folder:
        async with open_downloads(connections) as downloads:
            copies = _Copies(downloads, Space(space), Path(folder), Runtime())
            runner = Runner(handler, workers=workers, timeout=timeout)

            @functools.wraps(handler, updated=())
            async def fetched(work: WorkItem | str) -> Any:
                item = current_item()
                async with copies.of([work] if isinstance(work, str) else work.work_paths) as local:
                    if isinstance(work, str):
                        fetched_from.set(work)
                        return await runner(item, local[0])
                    return await runner(item, dataclasses.replace(work, work_paths=tuple(local)))

            yield fetched


class _Copies:
    """Copies in one folder, each in one of its own: what a command writes beside it goes with it."""

    def __init__(self, downloads: Downloads, space: Space, folder: Path, runtime: Runtime) -> None:
        self._downloads = downloads
        self._space = space
        self._folder = folder
        self._runtime = runtime
        self._policy = RetryPolicy(retry_for=float("inf"))

    @asynccontextmanager
    async def of(self, paths: Sequence[str]) -> AsyncIterator[list[str]]:
        """The paths, those on S3 as local ones. Raises `HandlerError`."""
        remotes: Mapping[str, Remote] = {path: remote for path, remote in await self._each(paths, self._look) if remote}
        if not remotes:
            yield list(paths)
            return
        async with self._space.taken(sum(remote.size for remote in remotes.values())):
            folder = Path(tempfile.mkdtemp(dir=self._folder))
            targets = {path: folder / str(i) / local_name(path) for i, path in enumerate(remotes)}
            try:
                await self._each(list(remotes), lambda path: self._download(remotes[path], targets[path]))
                yield [str(targets.get(path, path)) for path in paths]
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.to_thread.run_sync(functools.partial(shutil.rmtree, folder, ignore_errors=True))

    async def _each(self, paths: Sequence[str], do: Callable[[str], Any]) -> list[tuple[str, Any]]:
        return [found for batch in batches(paths) for found in zip(batch, await all_of(batch, do), strict=True)]

    async def _look(self, path: str) -> Remote | None:
        if not path.startswith(_S3):
            return None
        bucket, _, key = path.removeprefix(_S3).partition("/")
        if not bucket or not key:
            raise HandlerError(f"--fetch: {path!r} names no object: write s3://bucket/key", detail="")
        return await self._persistently(lambda: self._downloads.look(bucket, key))

    async def _download(self, remote: Remote, target: Path) -> None:
        try:
            await anyio.Path(target.parent).mkdir()
            await self._persistently(lambda: self._write(remote, target))
        except OSError as error:
            raise HandlerError(f"--fetch: {remote} cannot be kept: {error}", detail="") from error

    async def _write(self, remote: Remote, target: Path) -> None:
        """The file appears under its name once it is whole."""
        partial = target.with_name(".partial")
        async with await anyio.open_file(partial, "wb") as file, aclosing(self._downloads.read(remote)) as pieces:
            async for piece in pieces:
                await file.write(piece)
        os.replace(partial, target)

    async def _persistently(self, request: Callable[[], Awaitable[T]]) -> T:
        attempt = 0
        while True:
            attempt += 1
            try:
                return await request()
            except (StoreError, ConfigurationError) as error:
                wait = self._wait(error, attempt) if isinstance(error, StoreError) else None
                if wait is None:
                    raise HandlerError(f"--fetch: {error}", detail="") from error
            await self._runtime.sleep(wait)

    def _wait(self, error: StoreError, attempt: int) -> float | None:
        if attempt >= _TRIES:
            return None
        return self._policy.decide(
            error, repeatable=True, attempt=attempt, elapsed=0.0, chance=self._runtime.rng.random()
        )


def local_name(path: str) -> str:
    """A file name as near to the key's as is safe, with its extension."""
    name = re.sub(r"[^\w.+-]", "_", path.rsplit("/", 1)[-1]).lstrip(".-") or "object"
    stem, dot, extension = name.rpartition(".")
    if len(name.encode()) <= _NAME_MOST or not dot or len(extension.encode()) > _NAME_MOST // 4:
        return name.encode()[:_NAME_MOST].decode("utf-8", "ignore")
    room = _NAME_MOST - len(extension.encode()) - 1
    return f"{stem.encode()[:room].decode('utf-8', 'ignore')}.{extension}"
