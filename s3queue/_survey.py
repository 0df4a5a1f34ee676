"""What listings show of a workspace: which groups have flags, which have locks, and how many. Reads only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass

import anyio

from s3queue import _keys as keys
from s3queue import _lease_rules as rules
from s3queue._errors import DamagedWorkspace, NotFound
from s3queue._index import Index
from s3queue._model import FailedAttempt, FailedGroup, QueueStatus
from s3queue._options import QueueOptions
from s3queue._records import Failure, LockRecord, LockState, looks_released
from s3queue._tasks import compute, task_group
from s3queue.stores._listing import list_pages
from s3queue.stores._port import Listed, Page, Store

__all__ = ["Locks", "Stretch", "count", "list_failed", "list_flags", "list_history", "list_locks", "list_stretch"]

_HEX = "0123456789abcdef"
#: Locks read at the same time.
_READERS = 16


@dataclass(frozen=True, slots=True)
class Locks:
    """All locks, by group; `date` is the store's clock at the first page."""

    found: dict[str, Listed]
    date: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """The flags and locks of the groups up to and with `end`; "" for the ring's end."""

    done: set[str]
    locks: dict[str, Listed]
    end: str
    date: float


async def list_locks(store: Store) -> Locks:
    """Every lock of the workspace, page after page (they are few: one a running group)."""
    found: dict[str, Listed] = {}
    date: float | None = None
    async for page in list_pages(store, keys.LOCKS):
        date = page.date if date is None else date
        found.update(_by_group(page.objects, keys.parse_lock))
    return Locks(found, date or 0.0)


async def list_flags(store: Store) -> set[str]:
    """Every completed group, sixteen listings at a time: one for each first digit."""
    done: set[str] = set()

    async def listed(prefix: str) -> None:
        async for page in list_pages(store, prefix):
            done.update(_by_group(page.objects, keys.parse_flag))

    # A store that lists in no order may also refuse a prefix that is no folder (S3 Express does).
    prefixes = [keys.flag_prefix(digit) for digit in _HEX] if store.lists_in_order else [keys.FLAGS]
    async with task_group() as tasks:
        for prefix in prefixes:
            tasks.start_soon(listed, prefix)
    return done


async def list_stretch(store: Store, after: str) -> Stretch:
    """The state of the groups that follow `after` on the ring, as one page of flags and one of locks show it."""
    if not store.lists_in_order:
        locks = await list_locks(store)
        return Stretch(await list_flags(store), locks.found, "", locks.date)
    ends: dict[str, str] = {}
    pages: dict[str, Page] = {}

    async def first_page(prefix: str, start: str | None, parse: Callable[[str], str | None]) -> None:
        # Pages without a group (empty ones, or other people's objects) do not say how far we have seen.
        async with aclosing(list_pages(store, prefix, start_after=start)) as listing:
            async for page in listing:
                pages[prefix] = page
                groups = [group for item in page.objects if (group := parse(item.key)) is not None]
                ends[prefix] = groups[-1] if page.next is not None and groups else ""
                if groups:
                    return

    async with task_group() as tasks:
        tasks.start_soon(first_page, keys.FLAGS, keys.flag(after) if after else None, keys.parse_flag)
        tasks.start_soon(first_page, keys.LOCKS, keys.lock(after) if after else None, keys.parse_lock)
    end = min((end for end in ends.values() if end), default="")
    done = _by_group(pages[keys.FLAGS].objects, keys.parse_flag)
    locks_found = _by_group(pages[keys.LOCKS].objects, keys.parse_lock)
    return Stretch(
        {group for group in done if not end or group <= end},
        {group: item for group, item in locks_found.items() if not end or group <= end},
        end,
        pages[keys.LOCKS].date,
    )


async def count(store: Store, index: Index, options: QueueOptions) -> QueueStatus:
    """Count the groups of `index` by state. Released locks are read, to tell those of dead groups."""
    done = await list_flags(store)
    locks = await list_locks(store)
    names = await compute(len(index) * 60, index.names)
    done &= names
    open_locks = {group: lock for group, lock in locks.found.items() if group in names and group not in done}
    small = [group for group, lock in open_locks.items() if looks_released(lock.size)]
    dead = await _dead(store, small)
    waits = [
        rules.listed_wait(lock.size, locks.date - lock.modified, options)
        for lock in open_locks.values()
        if not looks_released(lock.size)
    ]
    return QueueStatus(
        groups=len(index),
        paths=await compute(len(index) * 60, index.count_paths),
        done=len(done),
        dead=dead,
        leased=sum(wait > 0 for wait in waits),
        expired=sum(wait == 0 for wait in waits),
        released=len(small) - dead,
    )


async def list_failed(store: Store, index: Index) -> list[FailedGroup]:
    """Groups that are dead or wait after a failure, with the record of their last one, in the order of their names."""
    locks = await list_locks(store)
    small = [group for group, lock in locks.found.items() if looks_released(lock.size)]
    failed: list[FailedGroup] = []

    async def read(group: str, lock: LockRecord) -> None:
        position = index.find(group)
        if position is None or not lock.failures:
            return
        failed.append(
            FailedGroup(
                hash=group,
                work_paths=index.paths(position),
                dead=lock.state is LockState.DEAD,
                failures=lock.failures,
                last=await _attempt(store, group, lock.epoch),
            )
        )

    await _each_lock(store, small, read)
    return sorted(failed, key=lambda group: group.hash)


async def list_history(store: Store, group: str) -> list[FailedAttempt]:
    """Every failed attempt at a group that is on record, first to last. Unreadable records are left out."""
    epochs = [
        found[1]
        async for page in list_pages(store, keys.failure_prefix(group))
        for item in page.objects
        if (found := keys.parse_failure(item.key)) is not None
    ]
    attempts = [await _attempt(store, group, epoch) for epoch in sorted(epochs)]
    return [attempt for attempt in attempts if attempt is not None]


async def _attempt(store: Store, group: str, epoch: int) -> FailedAttempt | None:
    try:
        record = Failure.decode((await store.get(keys.failure(group, epoch))).data)
    except (NotFound, DamagedWorkspace):
        return None
    return FailedAttempt(
        epoch=record.epoch,
        attempt=record.attempt,
        owner=record.owner,
        at=record.at,
        kind=record.kind,
        error=record.error,
        detail=record.detail,
    )


async def _dead(store: Store, groups: list[str]) -> int:
    found = 0

    async def look(group: str, lock: LockRecord) -> None:
        nonlocal found
        found += lock.state is LockState.DEAD

    await _each_lock(store, groups, look)
    return found


async def _each_lock(store: Store, groups: list[str], look: Callable[[str, LockRecord], Awaitable[None]]) -> None:
    """Read these groups' locks, several at a time; those that are gone or unreadable are left out."""
    limit = anyio.CapacityLimiter(_READERS)

    async def read(group: str) -> None:
        async with limit:
            try:
                lock = LockRecord.decode((await store.get(keys.lock(group))).data)
            except (NotFound, DamagedWorkspace):
                return
            await look(group, lock)

    async with task_group() as tasks:
        for group in groups:
            tasks.start_soon(read, group)


def _by_group(objects: Iterable[Listed], parse: Callable[[str], str | None]) -> dict[str, Listed]:
    return {group: item for item in objects if (group := parse(item.key)) is not None}
