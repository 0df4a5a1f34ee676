"""Follows a workspace: counts its groups again and again, cheaply, with who works and what failed last. Reads only.

The first look lists every completion. A later one lists the locks (few: the groups under way, and those finished within
`completion_grace`), and of the flags only the pages in which a group that has, or had, a lock may have got one: owners
walk the ring of names in order, so these groups lie close together, and share pages. Whoever is worked on has a lock,
which outlives its flag by `completion_grace`: after a pause about that long, where olmOCR's workers delete their locks
at once, and every ten minutes in case something was missed, everything is listed anew.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import anyio

from s3queue import _keys as keys
from s3queue._model import FailedAttempt, Look
from s3queue._picture import Picture
from s3queue._survey import each_flag, last_attempt, list_locks, read_locks
from s3queue._tasks import compute, task_group
from s3queue._workspace import Workspace
from s3queue.stores._port import Version

__all__ = ["Follower", "Watch"]

#: Seconds after which everything is listed again, where locks prove nothing and where they do.
_FOREIGN_EVERY = 60.0
_ANEW_EVERY = 600.0
#: The part of `completion_grace` that may pass between two listings of locks.
_GRACE_PART = 0.8
_PAGE = 1000
#: Listings at the same time, and the fewest groups that one is about: those that lie close together share pages.
_WALKS = 16
_SHARE = 64
#: Locks that a refresh reads, at most; of them leases, if all released ones are read.
_READS = 512
_LEASES_READ = 64
#: Failures that a look shows.
_FAILURES = 5


class Follower:
    """Keeps the picture of one workspace up to date."""

    def __init__(self, workspace: Workspace) -> None:
        self._store = workspace.store
        self._catalogue = workspace.catalogue
        self._options = workspace.options
        self._runtime = workspace.runtime
        #: What is known by now, also while a look goes on; None until the index is read.
        self.picture: Picture | None = None
        self._version: Version | None = None
        self._index_at = self._listed_at = self._locked_at = float("-inf")
        self._turn, self._page_turn = anyio.Lock(), anyio.Lock()

    async def refresh(self, *, exact: bool = False) -> Picture:
        """Bring the picture up to date; `exact`: with what costs more, so that it counts what `status` counts.

        That is: look for a new index each time, not each `index_refresh`; read all released locks; and list everything
        each time on a store that lists in no order. Raises `DamagedWorkspace` and the store's errors.
        """
        async with self._turn:
            picture = await self._load(exact)
            now = self._runtime.monotonic()
            anew = self._is_due(picture, now, exact)
            if anew:
                await each_flag(self._store, picture.saw_flags)
                self._listed_at = now
            # After that long listing, so that no time has passed when the next look asks which locks have gone since.
            locked_at = self._runtime.monotonic()
            locks = await list_locks(self._store)
            picture.saw_locks(locks.found, locks.date)
            if not anew and self._store.lists_in_order:
                await self._list_near(picture)
            await self._read_locks(picture, exact)
            picture.digest()
            self._locked_at = locked_at
            return picture

    async def _load(self, exact: bool) -> Picture:
        """The picture, begun anew if the index is another one."""
        now = self._runtime.monotonic()
        if self.picture is not None and not exact and now - self._index_at < self._options.index_refresh:
            return self.picture
        if self.picture is None or await self._catalogue.changed(self._version):
            loaded = await self._catalogue.load()
            paths = await compute(len(loaded.index) * 60, loaded.index.count_paths)
            self.picture, self._version = Picture(loaded.index, paths, self._options), loaded.version
            self._listed_at = float("-inf")
        self._index_at = now
        return self.picture

    def _is_due(self, picture: Picture, now: float, exact: bool) -> bool:
        """Whether to list everything."""
        if now - self._locked_at > self._options.completion_grace * _GRACE_PART:
            return True
        if not self._store.lists_in_order and exact:
            return True
        is_blind = picture.is_foreign or not self._store.lists_in_order
        return now - self._listed_at > (_FOREIGN_EVERY if is_blind else _ANEW_EVERY)

    async def _list_near(self, picture: Picture) -> None:
        groups = sorted(picture.near)
        share = max(_SHARE, -(-len(groups) // _WALKS))
        async with task_group() as tasks:
            for start in range(0, len(groups), share):
                tasks.start_soon(self._walk, picture, groups[start : start + share])

    async def _walk(self, picture: Picture, groups: Sequence[str]) -> None:
        """List the pages of flags in which these groups' would be."""
        left = deque(groups)
        while left:
            # What the flag's key begins with sorts before it, and after those of all lesser groups.
            page = await self._store.list(keys.FLAGS, start_after=keys.flag_prefix(left[0]), limit=_PAGE)
            async with self._page_turn:  # a page in a turn of the loop
                picture.saw_flags(page)
            if page.next is None:
                return
            seen = [group for item in page.objects if (group := keys.parse_flag(item.key)) is not None]
            end = seen[-1] if seen else left[0]
            while left and left[0] <= end:
                left.popleft()

    async def _read_locks(self, picture: Picture, exact: bool) -> None:
        released, leases = picture.wanted()
        wanted = [*released, *leases[:_LEASES_READ]] if exact else [*released, *leases][:_READS]
        found = {group: (body.version, record) async for group, record, body in read_locks(self._store, wanted)}
        for group in wanted:
            picture.saw_lock(group, *found.get(group, (picture.locks[group].version, None)))


class Watch:
    """Follows one workspace; `look` as often as you like."""

    def __init__(self, workspace: Workspace) -> None:
        self._store = workspace.store
        self._follower = Follower(workspace)
        self._attempts: dict[tuple[str, int], FailedAttempt | None] = {}

    async def look(self) -> Look:
        """The workspace as it is now. Raises `DamagedWorkspace` and the store's errors."""
        picture = await self._follower.refresh(exact=True)
        return Look(
            status=picture.status,
            rate=picture.rate,
            eta=picture.eta,
            owners=picture.owners,
            unread=picture.unread,
            failures=await self._last_failures(picture),
        )

    async def _last_failures(self, picture: Picture) -> tuple[tuple[str, FailedAttempt], ...]:
        latest = [(group, lock.epoch) for group in picture.failed[:_FAILURES] if (lock := picture.record(group))]
        self._attempts = {
            key: self._attempts[key] if key in self._attempts else await last_attempt(self._store, *key)
            for key in latest
        }
        return tuple((group, attempt) for (group, _), attempt in self._attempts.items() if attempt is not None)
