"""Reads everything in a workspace, and reports whatever is not as it should be."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from functools import partial

from s3queue import _keys as keys
from s3queue import _lease_rules as rules
from s3queue._errors import DamagedWorkspace, NotFound
from s3queue._index import Index, successor
from s3queue._model import Finding
from s3queue._options import QueueOptions
from s3queue._progress import Piece, PieceName, names_in
from s3queue._records import Failure, Flag, LockRecord
from s3queue._survey import all_of, batches
from s3queue._tasks import compute
from s3queue.stores._listing import list_pages
from s3queue.stores._port import Body, Listed, Store

__all__ = ["inspect"]

#: A group that was reset this often is still recognised by its first name.
_RESETS_MOST = 100


async def inspect(store: Store, index: Index, options: QueueOptions) -> AsyncGenerator[Finding, None]:
    """Every inconsistency: in the index, then in locks, completions, failure records and pieces of results."""
    inspection = _Inspection(store, index, options)
    for finding in await compute(len(index) * 100, _twice, index):
        yield finding
    await inspection.list_flags()
    for prefix, parse, look in (
        (keys.LOCKS, keys.parse_lock, inspection.lock),
        (keys.FLAGS, keys.parse_flag, inspection.flag),
        (keys.FAILURES, _group_of(keys.parse_failure), inspection.failure),
        (keys.RESULTS, _group_of(keys.parse_piece), inspection.piece),
    ):
        async for page in list_pages(store, prefix):
            for batch in batches(page.objects):
                for findings in await all_of(batch, partial(inspection.object, parse, look)):
                    for finding in findings:
                        yield finding


def _twice(index: Index) -> list[Finding]:
    seen: dict[str, str] = {}
    found = []
    for group, paths in index:
        for path in paths:
            other = seen.setdefault(path, group)
            if other != group:
                found.append(
                    Finding(kind="path in two groups", where=group, detail=f"{path!r} is also in group {other}")
                )
    return found


Look = Callable[[str, Listed, Body], Awaitable[list[Finding]]]


class _Inspection:
    """Looks at one object at a time; what it is about is a group of the index, or is not."""

    def __init__(self, store: Store, index: Index, options: QueueOptions) -> None:
        self._store = store
        self._index = index
        self._options = options
        self._done: set[str] = set()

    async def list_flags(self) -> None:
        """Learn which groups are done."""
        async for page in list_pages(self._store, keys.FLAGS):
            self._done.update(group for item in page.objects if (group := keys.parse_flag(item.key)) is not None)

    async def object(self, parse: Callable[[str], str | None], look: Look, item: Listed) -> list[Finding]:
        """What there is to say about one object."""
        group = parse(item.key)
        if group is None:
            return [Finding(kind="foreign object", where=item.key, detail="s3queue does not write such a name")]
        try:
            body = await self._store.get(item.key)
        except NotFound:
            return []  # it went while we looked
        try:
            findings = await look(group, item, body)
        except DamagedWorkspace as error:
            findings = [Finding(kind="unreadable", where=item.key, detail=str(error))]
        if not self._known(group):
            detail = "the index has no such group: it was made by another populate, or the index was replaced"
            findings.append(Finding(kind="unknown group", where=item.key, detail=detail))
        return findings

    async def lock(self, group: str, item: Listed, body: Body) -> list[Finding]:
        """A lease past its time; a dead group; progress whose pieces are gone."""
        try:
            lock = LockRecord.decode(body.data)
        except DamagedWorkspace as error:
            detail = f"{error}; nobody claims the group until `release --force`"
            return [Finding(kind="unreadable", where=item.key, detail=detail)]
        age = body.date - body.modified
        if group in self._done:
            return []  # it guards nothing; whoever comes by sweeps it
        match rules.standing(lock, age, self._options):
            case rules.Dead():
                detail = f"failed {lock.failures} times: see `failures`, then `retry`"
                findings = [Finding(kind="dead group", where=group, detail=detail)]
            case rules.Takeable(crashed=True):
                detail = f"{lock.owner or 'olmOCR'} has not renewed it for {age:.0f} s: any worker takes it over"
                findings = [Finding(kind="lease past its ttl", where=item.key, detail=detail)]
            case _:
                findings = []
        return findings + await self._pieces(group, item.key, await self._names(group, lock))

    async def flag(self, group: str, item: Listed, body: Body) -> list[Finding]:
        """A completion of another number of paths, or whose pieces are gone."""
        flag = Flag.decode(body.data)
        position = self._index.find(group)
        findings = await self._pieces(group, item.key, names_in(flag.pieces))
        if position is not None and flag.size not in (0, len(self._index.paths(position))):
            detail = f"it is about {flag.size} paths, its group has {len(self._index.paths(position))}"
            findings.append(Finding(kind="wrong completion", where=item.key, detail=detail))
        return findings

    async def failure(self, group: str, item: Listed, body: Body) -> list[Finding]:
        """A record that cannot be read."""
        Failure.decode(body.data)
        return []

    async def piece(self, group: str, item: Listed, body: Body) -> list[Finding]:
        """The same."""
        Piece.decode(body.data)
        return []

    async def _names(self, group: str, lock: LockRecord) -> list[PieceName]:
        """The pieces that a lock counts on: those it names, and those that the ledger in its base names."""
        base = (lock.epoch, 0) if lock.saved else lock.progress.base if lock.progress is not None else None
        names = list(names_in(lock.progress.pieces)) if lock.progress is not None else []
        if base is None:
            return names
        try:
            piece = Piece.decode((await self._store.get(keys.piece(group, *base))).data)
        except (NotFound, DamagedWorkspace):
            return [*names, base]
        return [*names, *(names_in(piece.ledger.progress.pieces) if piece.ledger is not None else ())]

    async def _pieces(self, group: str, key: str, names: Iterable[PieceName]) -> list[Finding]:
        findings = []
        for name in names:
            try:
                await self._store.head(keys.piece(group, *name))
            except NotFound:
                detail = f"{keys.piece(group, *name)} is gone, and the results in it"
                findings.append(Finding(kind="missing results", where=key, detail=detail))
        return findings

    def _known(self, group: str) -> bool:
        for _ in range(_RESETS_MOST):
            if self._index.find(group) is not None:
                return True
            if group not in self._done:
                return False
            group = successor(group)  # a group that was reset has its history under its old name
        return False


def _group_of(parse: Callable[[str], tuple[str, int] | tuple[str, int, int] | None]) -> Callable[[str], str | None]:
    def group(key: str) -> str | None:
        found = parse(key)
        return None if found is None else found[0]

    return group
