"""The index object: loaded whole, grown by compare-and-swap, never written over when it cannot be read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from s3queue import _keys as keys
from s3queue._errors import ConfigurationError, NotFound, OutcomeUnknown, WriteConflict
from s3queue._events import Events
from s3queue._index import Index, decompress, validate_paths
from s3queue._intent import Intent, Lost, Outcome, Unknown, Won, settle
from s3queue._runtime import Runtime
from s3queue._tasks import compute
from s3queue.stores._port import CREATE, Replace, Store, Version

__all__ = ["Catalogue", "Loaded"]

#: Within this many seconds one of any number of concurrent populates has long won its turn.
_POPULATE_FOR = 300.0


@dataclass(frozen=True, slots=True)
class Loaded:
    """An index and the version of the object it came from (None: there is no such object yet)."""

    index: Index
    version: Version | None


class Catalogue:
    """The index of one workspace."""

    def __init__(self, store: Store, runtime: Runtime, events: Events) -> None:
        self._store = store
        self._runtime = runtime
        self._events = events

    async def load(self) -> Loaded:
        """The index as it is; no object means no groups. Raises `DamagedWorkspace`."""
        try:
            body = await self._store.get(keys.INDEX)
        except NotFound:
            return Loaded(Index(b""), None)
        version, text = body.version, await compute(len(body.data), decompress, body.data)
        del body  # a third of the text: not kept while that is taken apart
        return Loaded(await compute(len(text), Index, text), version)

    async def changed(self, since: Version | None) -> bool:
        """Whether the index is another one than `since`."""
        try:
            return (await self._store.head(keys.INDEX)).version != since
        except NotFound:
            return since is not None

    async def populate(self, paths: Iterable[str], items_per_group: int) -> int:
        """Add the paths that the index lacks, in groups of `items_per_group`; returns the number of new groups.

        Any number of populates may run at once: each reads what the others wrote and adds only what is still missing.
        Raises `InvalidPath`, `ConfigurationError`, `DamagedWorkspace` (and writes nothing), `OutcomeUnknown`.
        """
        if not isinstance(items_per_group, int) or isinstance(items_per_group, bool) or items_per_group < 1:
            raise ConfigurationError(f"items_per_group must be a whole number, 1 or more, not {items_per_group!r}")
        wanted = validate_paths(paths)
        added = await self._change(lambda index: index.add(wanted, items_per_group), len(wanted))
        if added:
            self._events.emit("index.grown", logging.INFO, groups=added)
        return added

    async def rename(self, names: Mapping[str, str]) -> int:
        """Give groups new names; returns how many still had the old one. Raises `OutcomeUnknown`."""

        def renamed(index: Index) -> tuple[Index, int]:
            return index.renamed(names), sum(index.find(old) is not None for old in names)

        return await self._change(renamed, len(names))

    async def _change(self, change: Callable[[Index], tuple[Index, int]], count: int) -> int:
        """Change the index by compare-and-swap, starting over whenever it changed meanwhile; how much was changed."""
        until = self._runtime.monotonic() + _POPULATE_FOR
        while True:
            loaded = await self.load()
            size = 100 * (count + len(loaded.index))
            index, changes = await compute(size, change, loaded.index)
            if not changes:
                return 0
            data = await compute(size, index.encode)
            match await self._swap(data, loaded.version, until):
                case Won():
                    return changes
                case Lost():
                    self._events.emit("index.conflict", logging.INFO)
                    await self._runtime.sleep(self._runtime.rng.random())
                case Unknown(cause=cause):
                    raise OutcomeUnknown("it is not known whether the index was written: try again") from cause

    async def replace(self, lines: Sequence[str], since: Version | None) -> Version:
        """Write these records, if the index still is `since` (None: absent); returns the new version.

        Raises `WriteConflict` if it is not, `DamagedWorkspace` for lines that are no index, `OutcomeUnknown`.
        """
        index = Index("\n".join(lines).encode("utf-8"))
        match await self._swap(index.encode(), since, self._runtime.monotonic() + _POPULATE_FOR):
            case Won(version=version):
                return version
            case Lost():
                raise WriteConflict("the index changed since it was loaded: load it again")
            case Unknown(cause=cause):
                raise OutcomeUnknown("it is not known whether the index was written: load it again") from cause

    async def _swap(self, data: bytes, version: Version | None, until: float) -> Outcome:
        # Two populates that write the same bytes add the same groups: each may call them its own.
        intent = Intent(
            key=keys.INDEX,
            data=data,
            mode=CREATE if version is None else Replace(version),
            ours=lambda body: body == data,
        )
        return await settle(self._store, self._runtime, intent, until=until)
