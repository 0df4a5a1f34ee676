"""A count of a workspace's groups that is cheap to bring up to date, with who works and what failed last. Reads only.

The first look lists everything, as `status` does. A later one lists the locks (few: the groups under way, and those
finished within `completion_grace`), and of the flags only the pages in which a group that has, or had, a lock may have
got one: owners walk the ring of names in order, so these groups lie close together. Nobody is missed as long as locks
outlive their flags; since olmOCR's do not, everything is listed again now and then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from s3queue import _keys as keys
from s3queue import _lease_rules as rules
from s3queue._catalogue import Catalogue, Loaded
from s3queue._errors import DamagedWorkspace, NotFound
from s3queue._index import Index
from s3queue._model import FailedAttempt, QueueStatus
from s3queue._options import QueueOptions
from s3queue._records import LockRecord, LockState, looks_released
from s3queue._runtime import Runtime
from s3queue._survey import all_of, batches, each_flag, last_attempt, list_locks
from s3queue._tasks import compute, task_group
from s3queue.stores._port import Listed, Page, Store, Version

__all__ = ["ActiveOwner", "Look", "Watch"]

#: Seconds after which everything is listed again; at once, if that takes no more pages than this.
_RECOUNT = 600.0
_FEW_PAGES = 16
_PAGE = 1000
#: Listings at the same time, and the fewest groups that one is about: those that lie close together share pages.
_WALKS = 16
_SHARE = 64
#: Locks read for their owners' names, and failures shown, a look.
_OWNERS_READ = 64
_FAILURES = 5
#: Seconds over which the rate is taken.
_WINDOW = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveOwner:
    """A process that holds leases."""

    owner: str
    """Its name, ``host:pid:random``; "olmOCR" for locks without one."""
    host: str
    """The machine's name."""
    groups: int
    """Leases known to be its own."""
    age: float
    """Seconds since the one of them was renewed that was renewed the longest ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A workspace at one moment."""

    status: QueueStatus
    """Its groups, counted."""
    rate: float | None
    """Groups completed a second, over the last minute at most; None at the first look."""
    eta: float | None
    """Seconds until all that is left is done, at this rate; None if nobody can say."""
    owners: tuple[ActiveOwner, ...]
    """Owners of live leases, those with the most groups first, as far as their locks are read."""
    unread: int
    """Live leases whose locks are not read yet: a look reads only some."""
    failures: tuple[tuple[str, FailedAttempt], ...]
    """The last failed attempts of groups that are dead or wait, by group, the latest first."""


class Watch:
    """Follows one workspace; `look` as often as you like."""

    def __init__(self, store: Store, catalogue: Catalogue, options: QueueOptions, runtime: Runtime) -> None:
        self._store = store
        self._catalogue = catalogue
        self._options = options
        self._runtime = runtime
        self._loaded = Loaded(Index(b""), None)
        self._paths = 0
        #: One byte a group, in the order of the index.
        self._done = bytearray()
        self._counted_at: float | None = None
        self._locks: dict[str, Listed] = {}
        #: What was read of locks, and which version of them that was.
        self._released: dict[str, tuple[Version, LockRecord | None]] = {}
        self._owners: dict[str, tuple[Version, str]] = {}
        self._attempts: dict[tuple[str, int], FailedAttempt | None] = {}
        self._history: deque[tuple[float, int]] = deque()

    async def look(self) -> Look:
        """The workspace as it is now. Raises `DamagedWorkspace` and the store's errors."""
        await self._refresh_index()
        before = self._locks
        locks = await list_locks(self._store)
        self._locks = {group: item for group, item in locks.found.items() if self._index.find(group) is not None}
        await self._refresh_done(before)
        open_locks = {group: item for group, item in self._locks.items() if not self._is_done(group)}
        ages = {group: locks.date - item.modified for group, item in open_locks.items()}
        held = {group for group, item in open_locks.items() if not looks_released(item.size)}
        await self._read_released({group: open_locks[group] for group in open_locks.keys() - held})
        live = {
            group: open_locks[group]
            for group in held
            if rules.listed_wait(open_locks[group].size, ages[group], self._options) > 0
        }
        await self._read_owners(live)
        status = self._status(open_locks.keys(), held, live.keys())
        rate = self._rate(status.done)
        return Look(
            status=status,
            rate=rate,
            eta=(status.groups - status.done - status.dead) / rate if rate else None,
            owners=self._active(ages),
            unread=len(live.keys() - self._owners.keys()),
            failures=await self._last_failures(),
        )

    @property
    def _index(self) -> Index:
        return self._loaded.index

    async def _refresh_index(self) -> None:
        if self._counted_at is not None and not await self._catalogue.changed(self._loaded.version):
            return
        self._loaded = await self._catalogue.load()
        self._done = bytearray(len(self._index))
        self._paths = await compute(len(self._index) * 60, self._index.count_paths)
        self._counted_at = None
        self._history.clear()

    # What is done.

    async def _refresh_done(self, before: dict[str, Listed]) -> None:
        now = self._runtime.monotonic()
        few = self._done.count(1) <= _FEW_PAGES * _PAGE
        if self._counted_at is None or now - self._counted_at > _RECOUNT or few or not self._store.lists_in_order:
            await each_flag(self._store, self._mark)
            self._counted_at = now
            return
        groups = sorted(group for group in before.keys() | self._locks.keys() if self._may_be_done(group, before))
        share = max(_SHARE, -(-len(groups) // _WALKS))
        async with task_group() as tasks:
            for start in range(0, len(groups), share):
                tasks.start_soon(self._walk, groups[start : start + share])

    def _may_be_done(self, group: str, before: dict[str, Listed]) -> bool:
        """A lock that was released and has not changed since is nobody's, so nobody has finished its group."""
        if self._is_done(group):
            return False
        old, new = before.get(group), self._locks.get(group)
        return old is None or new is None or not looks_released(new.size) or old.version != new.version

    async def _walk(self, groups: Sequence[str]) -> None:
        """List the pages of flags in which these groups' would be."""
        left = deque(groups)
        while left:
            # What the flag's key begins with sorts before it, and after those of all lesser groups.
            page = await self._store.list(keys.FLAGS, start_after=keys.flag_prefix(left[0]), limit=_PAGE)
            self._mark(page)
            seen = [group for item in page.objects if (group := keys.parse_flag(item.key)) is not None]
            if page.next is None:
                return
            end = seen[-1] if seen else left[0]
            while left and left[0] <= end:
                left.popleft()

    def _mark(self, page: Page) -> None:
        for item in page.objects:
            group = keys.parse_flag(item.key)
            position = self._index.find(group) if group is not None else None
            if position is not None:
                self._done[position] = 1

    def _is_done(self, group: str) -> bool:
        position = self._index.find(group)
        return position is not None and bool(self._done[position])

    # What locks say.

    async def _read_released(self, small: dict[str, Listed]) -> None:
        self._released = {group: known for group, known in self._released.items() if group in small}
        new = [group for group, item in small.items() if self._released.get(group, ("", None))[0] != item.version]
        for group, version, lock in await self._read(new):
            self._released[group] = (version, lock)

    async def _read_owners(self, live: dict[str, Listed]) -> None:
        """Of those that are not known; what is left of the allowance goes to those read the longest ago."""
        self._owners = {group: known for group, known in self._owners.items() if group in live}
        unknown = [group for group in live if group not in self._owners]
        renewed = [group for group, (version, _) in self._owners.items() if live[group].version != version]
        for group, version, lock in await self._read([*unknown, *renewed][:_OWNERS_READ]):
            self._owners.pop(group, None)
            self._owners[group] = (version, (lock.owner if lock is not None else "") or "olmOCR")

    async def _read(self, groups: Sequence[str]) -> list[tuple[str, Version, LockRecord | None]]:
        async def read(group: str) -> tuple[str, Version, LockRecord | None] | None:
            try:
                body = await self._store.get(keys.lock(group))
            except NotFound:
                return None
            try:
                return group, body.version, LockRecord.decode(body.data)
            except DamagedWorkspace:
                return group, body.version, None

        return [found for batch in batches(groups) for found in await all_of(batch, read) if found is not None]

    def _active(self, ages: dict[str, float]) -> tuple[ActiveOwner, ...]:
        groups = Counter(owner for _, owner in self._owners.values())
        oldest: dict[str, float] = {}
        for group, (_, owner) in self._owners.items():
            oldest[owner] = max(ages[group], oldest.get(owner, 0.0))
        return tuple(
            ActiveOwner(owner=owner, host=owner.rsplit(":", 2)[0], groups=count, age=oldest[owner])
            for owner, count in groups.most_common()
        )

    async def _last_failures(self) -> tuple[tuple[str, FailedAttempt], ...]:
        failed = [
            (self._locks[group].modified, group, lock.epoch)
            for group, (_, lock) in self._released.items()
            if lock is not None and (lock.failures or lock.state is LockState.DEAD)
        ]
        latest = [(group, epoch) for _, group, epoch in sorted(failed, reverse=True)[:_FAILURES]]
        for key in latest:
            if key not in self._attempts:
                self._attempts[key] = await last_attempt(self._store, *key)
        self._attempts = {key: self._attempts[key] for key in latest}
        return tuple((group, attempt) for (group, _), attempt in self._attempts.items() if attempt is not None)

    # The sums.

    def _status(self, open_locks: Iterable[str], held: set[str], live: Iterable[str]) -> QueueStatus:
        dead = sum(lock is not None and lock.state is LockState.DEAD for _, lock in self._released.values())
        leased = len(set(live))
        return QueueStatus(
            groups=len(self._index),
            paths=self._paths,
            done=self._done.count(1),
            dead=dead,
            leased=leased,
            expired=len(held) - leased,
            released=len(set(open_locks) - held) - dead,
        )

    def _rate(self, done: int) -> float | None:
        now = self._runtime.monotonic()
        self._history.append((now, done))
        while len(self._history) > 2 and now - self._history[1][0] >= _WINDOW:
            self._history.popleft()
        began, before = self._history[0]
        return (done - before) / (now - began) if now > began else None
