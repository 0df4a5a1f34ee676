"""What is known of a workspace, kept small and up to date: a byte a group, and the few locks. No I/O, no clock.

A million groups cost a megabyte. `Follower` tells it what it lists and reads, and asks it what to list and read next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from s3queue import _keys as keys
from s3queue import _lease_rules as rules
from s3queue._index import Index
from s3queue._model import ActiveOwner, QueueStatus
from s3queue._options import QueueOptions
from s3queue._records import LockRecord, LockState, looks_released
from s3queue.stores._port import Listed, Page, Version

__all__ = ["BUCKET", "Picture", "ReadLock"]

#: Completions are counted by so many seconds, which costs a few numbers a minute however long a run is.
BUCKET = 10
#: Seconds back over which the present rate is taken.
_RATE_OVER = 120


@dataclass(frozen=True, slots=True)
class ReadLock:
    """What the lock says in its version `version`; None if it is unreadable, or was gone."""

    version: Version
    record: LockRecord | None


#: An empty lock need not be read.
_OLMOCR = ReadLock(Version(""), LockRecord.decode(b""))


@dataclass(slots=True)
class Picture:
    """One workspace with this index, as far as it was looked at."""

    index: Index
    #: Paths in the index.
    paths: int
    options: QueueOptions
    #: Groups by state, as of the last `digest`; until the first one only the completions, as they are seen.
    status: QueueStatus = field(init=False)
    #: Whether everything was seen once.
    digested: bool = False
    #: Whether olmOCR's workers are about, who delete their locks at once.
    is_foreign: bool = False
    #: Completions by `BUCKET` seconds, by the store's clock.
    finished: Counter[int] = field(default_factory=Counter)
    #: Locks of groups that are not done; the store's clock at their listing.
    locks: dict[str, Listed] = field(default_factory=dict)
    date: float = 0.0
    #: Groups that may have been completed since their flags were listed: a listing near them is due.
    near: set[str] = field(default_factory=set)
    #: Owners of live leases, those with the most first; live leases whose owner is not known.
    owners: tuple[ActiveOwner, ...] = ()
    unread: int = 0
    #: Dead and waiting groups that failed, the last to fail first; released locks of which it is not known.
    failed: tuple[str, ...] = ()
    unread_released: int = 0
    _done: bytearray = field(init=False)
    _done_count: int = 0
    #: Those read the longest ago first.
    _read: dict[str, ReadLock] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._done = bytearray(len(self.index))
        self._sum_up(Counter())

    def saw_flags(self, page: Page) -> None:
        """Note the completions on a page."""
        for item in page.objects:
            group = keys.parse_flag(item.key)
            position = self.index.find(group) if group is not None else None
            if position is not None and not self._done[position]:
                self._done[position] = 1
                self._done_count += 1
                self.finished[int(item.modified) // BUCKET] += 1
                self.is_foreign |= not item.size
        if not self.digested:
            self._sum_up(Counter())

    def saw_locks(self, found: Mapping[str, Listed], date: float) -> None:
        """Note all locks, listed at `date`. Groups with one, now or before, may have been completed.

        They stay `near` until the next `digest`, so that a look that fails on its way loses none."""
        before = self.locks
        self.locks = {group: lock for group, lock in found.items() if self.index.find(group) is not None}
        self.date = date
        self.is_foreign |= any(not lock.size for lock in found.values())
        groups = self.near | before.keys() | self.locks.keys()
        self.near = {group for group in groups if group in self.near or self._may_be_done(group, before)}
        self.near = {group for group in self.near if not self._is_done(group)}

    def _may_be_done(self, group: str, before: Mapping[str, Listed]) -> bool:
        """A lock that was released and has not changed since is nobody's, so nobody has finished its group."""
        old, new = before.get(group), self.locks.get(group)
        return old is None or new is None or not looks_released(new.size) or old.version != new.version

    def saw_lock(self, group: str, version: Version, record: LockRecord | None) -> None:
        """Note what a lock says."""
        self._read.pop(group, None)
        self._read[group] = ReadLock(version, record)

    def wanted(self) -> tuple[list[str], list[str]]:
        """The locks whose words are not known: (released ones, the last to change first; leases, those first that were
        never read, then those read the longest ago, since a renewal tells nothing new and a take-over is rare)."""
        unknown = [group for group, lock in self.locks.items() if not self._knows(group, lock)]
        unknown.sort(key=lambda group: -self.locks[group].modified)
        released = [group for group in unknown if looks_released(self.locks[group].size)]
        order = {group: i for i, group in enumerate(self._read)}
        leases = [group for group in unknown if not looks_released(self.locks[group].size)]
        return released, sorted(leases, key=lambda group: order.get(group, -1))

    def _knows(self, group: str, lock: Listed) -> bool:
        known = self._read.get(group)
        return not lock.size or self._is_done(group) or (known is not None and known.version == lock.version)

    def record(self, group: str) -> LockRecord | None:
        """What the group's lock said when it was read last; None if that is not known."""
        lock = self.locks.get(group)
        known = _OLMOCR if lock is not None and not lock.size else self._read.get(group)
        return known.record if known is not None else None

    def digest(self) -> None:
        """All completions near locks are seen: sum up what is known of the locks."""
        self.locks = {group: lock for group, lock in self.locks.items() if not self._is_done(group)}
        self.near.clear()
        self._read = {group: known for group, known in self._read.items() if group in self.locks}
        sums: Counter[str] = Counter()
        failed: list[str] = []
        leases: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for group, lock in self.locks.items():
            record = self.record(group)
            if not looks_released(lock.size):
                sums[self._digest_lease(lock, record, leases)] += 1
            elif record is None or record.state is LockState.HELD:
                sums["released"] += 1
                sums["unread"] += record is not None or group not in self._read
            else:
                is_dead = record.state is LockState.DEAD
                sums["dead" if is_dead else "released"] += 1
                if is_dead or record.failures:
                    failed.append(group)
        self.digested = True
        self.failed = tuple(sorted(failed, key=lambda group: (-self.locks[group].modified, group)))
        self.unread_released = sums["unread"]
        self.unread = len(leases.pop("", ()))
        self.owners = tuple(sorted((_active(*one) for one in leases.items()), key=lambda one: (-one.groups, one.owner)))
        self._sum_up(sums)

    def _digest_lease(self, lock: Listed, record: LockRecord | None, leases: dict[str, list[tuple[float, str]]]) -> str:
        """Whether it is live, by its own ttl if that is known; then it goes to its owner's (age, begin) in `leases`."""
        if record is not None and record.state is not LockState.HELD:
            record = None
        age = self.date - lock.modified
        if age >= rules.patience(self.options.lease_ttl if record is None else record.ttl, self.options):
            return "expired"
        owner, since = ("", "") if record is None else (record.owner or "olmOCR", record.since)
        leases[owner].append((age, since))
        return "leased"

    def _is_done(self, group: str) -> bool:
        position = self.index.find(group)
        return position is not None and bool(self._done[position])

    def _sum_up(self, sums: Counter[str]) -> None:
        states = {state: sums[state] for state in ("dead", "leased", "expired", "released")}
        self.status = QueueStatus(groups=len(self.index), paths=self.paths, done=self._done_count, **states)

    @property
    def rate(self) -> float | None:
        """Groups a second, over the last two minutes, or since the first one; None as long as nothing is done.

        By the store's dates of completions, not by what looks counted: so the first look knows it, and neither a pause
        nor a recount makes a peak."""
        if not self.finished:
            return None
        first = int(max(self.date - _RATE_OVER, min(self.finished) * BUCKET)) // BUCKET
        recent = sum(self.finished[bucket] for bucket in range(first, int(self.date) // BUCKET + 1))
        return recent / max(BUCKET, self.date - first * BUCKET)

    @property
    def eta(self) -> float | None:
        """Seconds until all that is left is done, at this rate; None if nobody can say.

        Nobody can while all that is left waits for its next attempt: how long is not a matter of the rate.
        """
        left = self.status.groups - self.status.done - self.status.dead
        only_waits = 0 < left == self.status.released
        return left / self.rate if self.rate and not only_waits else None


def _active(owner: str, leases: list[tuple[float, str]]) -> ActiveOwner:
    return ActiveOwner(
        owner=owner,
        host=owner.rsplit(":", 2)[0],
        groups=len(leases),
        age=min(age for age, _ in leases),
        since=min((since for _, since in leases if since), default=""),
    )
