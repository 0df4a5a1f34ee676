"""What is known of a workspace, kept small and up to date: a bit a group, and the few locks. No I/O, no clock.

A million groups cost a megabyte, and what is shown of them is counted as it is learned.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from s3queue import _keys as keys
from s3queue import _lease_rules as rules
from s3queue._index import Index
from s3queue._options import QueueOptions
from s3queue._records import LockRecord, LockState, looks_released
from s3queue.stores._port import Listed, Page, Version

__all__ = ["BUCKET", "Counts", "Owner", "Picture", "ReadLock", "slices"]

#: Completions are counted by so many seconds.
BUCKET = 10
#: Points of a chart, at most.
_POINTS = 120
#: Seconds back over which the present rate is taken.
_RATE_OVER = 120
#: Owners that are shown.
_OWNERS_MOST = 100


@dataclass(frozen=True, slots=True)
class ReadLock:
    """A lock's words, as its version `version` had them."""

    version: Version
    record: LockRecord


@dataclass(slots=True)
class Counts:
    """Groups by state; `unread` of the released ones may yet turn out to be dead, and are counted as waiting."""

    done: int = 0
    dead: int = 0
    leased: int = 0
    expired: int = 0
    waiting: int = 0
    unread: int = 0


@dataclass(slots=True)
class Owner:
    """Who holds leases, how many, and seconds since it wrote one of them last."""

    leases: int = 0
    paths_done: int = 0
    silent: float = float("inf")
    since: str = ""


@dataclass(slots=True)
class Picture:
    """One workspace with this index, as far as it was looked at."""

    index: Index
    options: QueueOptions
    done: bytearray = field(init=False)
    done_count: int = 0
    #: Completions by ten seconds, by the store's clock.
    finished: Counter[int] = field(default_factory=Counter)
    #: Locks of groups that are not done; the store's clock at their listing.
    locks: dict[str, Listed] = field(default_factory=dict)
    date: float = 0.0
    #: Groups that were locked when we looked, and may have been completed since.
    near: set[str] = field(default_factory=set)
    read: dict[str, ReadLock] = field(default_factory=dict)
    #: Whether olmOCR's workers are about, who delete their locks at once.
    foreign: bool = False
    counts: Counts = field(default_factory=Counts)
    owners: dict[str, Owner] = field(default_factory=dict)
    #: Dead and waiting groups, the last to fail first.
    failed: list[str] = field(default_factory=list)
    #: Whether everything was seen once.
    digested: bool = False

    def __post_init__(self) -> None:
        self.done = bytearray(len(self.index))

    def saw_flags(self, page: Page) -> None:
        """Note the completions on a page."""
        for item in page.objects:
            group = keys.parse_flag(item.key)
            position = self.index.find(group) if group is not None else None
            if position is None or self.done[position]:
                continue
            self.done[position] = 1
            self.done_count += 1
            self.finished[int(item.modified) // BUCKET] += 1
            self.foreign |= not item.size

    def is_done(self, group: str) -> bool:
        """Whether a completion of the group was seen."""
        position = self.index.find(group)
        return position is not None and bool(self.done[position])

    def saw_locks(self, found: Mapping[str, Listed], date: float) -> None:
        """Note all locks."""
        self.foreign |= any(not item.size for item in found.values())
        self.locks = {group: lock for group, lock in found.items() if self.index.find(group) is not None}
        self.date = date
        self.near = {group for group in self.near.union(self.locks) if not self.is_done(group)}

    def unread(self) -> list[str]:
        """Locks whose words are not known, those first that say the most: released ones, then leases never read."""
        unknown = [group for group, lock in self.locks.items() if not self._knows(group, lock)]
        return sorted(
            unknown,
            key=lambda group: (
                not looks_released(self.locks[group].size), group in self.read, -self.locks[group].modified
            ),
        )  # fmt: skip

    def _knows(self, group: str, lock: Listed) -> bool:
        known = self.read.get(group)
        return known is not None and known.version == lock.version

    def digest(self) -> None:
        """All completions near locks are seen: count what is known of the locks."""
        self.locks = {group: lock for group, lock in self.locks.items() if not self.is_done(group)}
        self.near = set(self.locks)
        self.read = {group: known for group, known in self.read.items() if group in self.locks}
        counts, failed = Counts(), []
        owners: dict[str, Owner] = {}
        for group, lock in self.locks.items():
            known = self.read.get(group)
            record = known.record if known is not None else None
            if looks_released(lock.size):
                if record is None or record.state is LockState.HELD:
                    counts.unread += 1
                    counts.waiting += 1
                    continue
                dead = record.state is LockState.DEAD
                counts.dead += dead
                counts.waiting += not dead
                if dead or record.failures:
                    failed.append(group)
                continue
            self._digest_held(lock, record, counts, owners)
        counts.done = self.done_count
        self.counts, self.owners, self.digested = counts, owners, True
        self.failed = sorted(failed, key=lambda group: (-self.locks[group].modified, group))

    def _digest_held(self, lock: Listed, record: LockRecord | None, counts: Counts, owners: dict[str, Owner]) -> None:
        age = self.date - lock.modified
        is_held = record is not None and record.state is LockState.HELD
        ttl = record.ttl if record is not None and is_held else (self.options.lease_ttl if lock.size else None)
        if age > rules.patience(ttl, self.options):
            counts.expired += 1
            return
        counts.leased += 1
        name = (record.owner or "olmOCR") if record is not None and is_held else "" if lock.size else "olmOCR"
        owner = owners.setdefault(name, Owner())
        owner.leases += 1
        owner.silent = min(owner.silent, age)
        if record is not None and is_held:
            owner.paths_done += record.done
            owner.since = min(filter(None, (owner.since, record.since)), default="")

    def is_dead(self, group: str) -> bool:
        """Whether the group's lock, as it was read, says so."""
        known = self.read.get(group)
        return known is not None and known.record.state is LockState.DEAD

    def told_counts(self) -> dict[str, Any]:
        """The counts as JSON."""
        counts = self.counts
        taken = self.done_count + counts.dead + counts.leased + counts.expired + counts.waiting
        return {
            "groups": len(self.index),
            "done": self.done_count,
            "dead": counts.dead,
            "leased": counts.leased,
            "expired": counts.expired,
            "waiting": counts.waiting,
            "free": max(0, len(self.index) - taken),
            "unread": counts.unread,
        }

    def told_owners(self) -> dict[str, Any]:
        """Who holds leases, those with the most first, as JSON."""
        known = sorted(
            ((name, owner) for name, owner in self.owners.items() if name), key=lambda pair: (-pair[1].leases, pair[0])
        )
        return {
            "count": len(known),
            "unread": self.owners[""].leases if "" in self.owners else 0,
            "shown": [
                {
                    "owner": name,
                    "leases": owner.leases,
                    "paths_done": owner.paths_done,
                    "silent": round(owner.silent, 1),
                    "since": owner.since,
                }
                for name, owner in known[:_OWNERS_MOST]
            ],
        }

    def rate(self) -> float:
        """Groups a second, over the last two minutes, or since the first one."""
        since = max(self.date - _RATE_OVER, min(self.finished, default=0) * BUCKET)
        recent = sum(self.finished[bucket] for bucket in range(int(since) // BUCKET, int(self.date) // BUCKET + 1))
        return recent / max(BUCKET, self.date - int(since) // BUCKET * BUCKET)

    def series(self, window: int) -> dict[str, Any]:
        """Completions over the last `window` seconds (0: since the first one), in at most 120 steps, as JSON."""
        now = int(self.date) // BUCKET
        first = min(self.finished, default=now) if not window else now - window // BUCKET + 1
        step = -(-max(1, now - first + 1) // _POINTS)
        counts = [0] * -(-(now - first + 1) // step)
        before = 0
        for bucket, count in self.finished.items():
            at = (bucket - first) // step
            if at < 0:
                before += count
            elif at < len(counts):
                counts[at] += count
        return {"start": first * BUCKET, "step": step * BUCKET, "counts": counts, "before": before}


def slices(groups: Iterable[str], size: int) -> list[str]:
    """The first digits of these groups' names, each once: as many as make a page of a listing of `size` groups."""
    digits = next(digits for digits in range(4) if digits == 3 or size <= 900 * 16**digits)
    return sorted({group[:digits] for group in groups})
