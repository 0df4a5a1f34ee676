"""What came out: the results of all finished paths, streamed. Reads only."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from s3queue import _keys as keys
from s3queue._errors import DamagedWorkspace, NotFound
from s3queue._events import Events
from s3queue._index import Index
from s3queue._journal import Journal
from s3queue._model import PathResult
from s3queue._pieces import read_journal, read_piece
from s3queue._progress import Spans, names_in
from s3queue._records import Flag, LockRecord
from s3queue._survey import all_of, batches, list_locks
from s3queue.stores._listing import list_pages
from s3queue.stores._port import Store

__all__ = ["stream_results"]


async def stream_results(store: Store, index: Index, events: Events) -> AsyncGenerator[PathResult, None]:
    """Every finished path of the workspace, once: first those of complete groups, then what is on record of others.

    Raises `DamagedWorkspace` for a completion that cannot be read, and the store's errors.
    """
    reader = _Reader(store, index, events)
    # Listed first: whatever is completed from now on has its lock still, or its flag is in the listing below.
    unfinished = set((await list_locks(store)).found)
    async with aclosing(list_pages(store, keys.FLAGS)) as pages:
        async for page in pages:
            groups = [group for item in page.objects if (group := keys.parse_flag(item.key)) is not None]
            unfinished.difference_update(groups)
            for batch in batches([group for group in groups if index.find(group) is not None]):
                for results in await all_of(batch, reader.of_flag):
                    for result in results:
                        yield result
    for batch in batches(sorted(group for group in unfinished if index.find(group) is not None)):
        for results in await all_of(batch, reader.of_lock):
            for result in results:
                yield result


class _Reader:
    """Reads one group's results."""

    def __init__(self, store: Store, index: Index, events: Events) -> None:
        self._store = store
        self._index = index
        self._events = events

    async def of_lock(self, group: str) -> list[PathResult]:
        """Of a group that is not complete: the paths on record as done."""
        try:
            lock = LockRecord.decode((await self._store.get(keys.lock(group))).data)
        except (NotFound, DamagedWorkspace):
            return []
        journal = await read_journal(self._store, group, lock, self._events)
        paths = self._paths(group)
        if journal.size != len(paths):
            return []
        results = await self._from_pieces(group, _pieces_of(journal))
        made = PathResult(path="", hash=group, epoch=lock.epoch, owner=lock.owner, at="", result=None)
        return [_of(made, path, results.get(unit)) for unit, path in enumerate(paths) if journal.is_done(unit)]

    async def of_flag(self, group: str) -> list[PathResult]:
        """Of a complete group: all its paths."""
        try:
            flag = Flag.decode((await self._store.get(keys.flag(group))).data)
        except NotFound:
            return []
        except DamagedWorkspace as error:
            raise DamagedWorkspace(f"{keys.flag(group)}: {error}") from error
        paths = self._paths(group)
        made = PathResult(path="", hash=group, epoch=flag.epoch, owner=flag.owner, at=flag.at, result=None)
        if not flag.size:
            return [_of(made, path, flag.result) for path in paths]
        if flag.size != len(paths):
            raise DamagedWorkspace(f"{keys.flag(group)} is of {flag.size} paths, but its group has {len(paths)}")
        results = await self._from_pieces(group, flag.pieces) | dict(flag.results)
        return [_of(made, path, results.get(unit)) for unit, path in enumerate(paths)]

    async def _from_pieces(self, group: str, pieces: Spans) -> dict[int, Any]:
        results: dict[int, Any] = {}
        for name in names_in(pieces):
            piece = await read_piece(self._store, group, name, self._events)
            results.update({} if piece is None else piece.results)
        return results

    def _paths(self, group: str) -> tuple[str, ...]:
        position = self._index.find(group)
        return () if position is None else self._index.paths(position)


def _of(made: PathResult, path: str, result: Any) -> PathResult:
    return PathResult(path=path, hash=made.hash, epoch=made.epoch, owner=made.owner, at=made.at, result=result)


def _pieces_of(journal: Journal) -> Spans:
    return journal.results()[1]
