"""What listings show of a workspace: which groups have flags, which have locks, and how many. Reads only."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

import anyio

from s3queue import _keys as keys
from s3queue import _lease_rules as rules
from s3queue._errors import DamagedWorkspace, NotFound
from s3queue._events import Events
from s3queue._index import Index
from s3queue._journal import Journal
from s3queue._model import FailedAttempt, FailedGroup, FailedPath, QueueStatus
from s3queue._options import QueueOptions
from s3queue._pieces import read_journal
from s3queue._records import Failure, LockRecord, LockState, looks_released
from s3queue._tasks import compute, task_group
from s3queue.stores._listing import list_pages
from s3queue.stores._port import Body, Head, Listed, Page, Store

__all__ = [
    "ListedLocks",
    "Stretch",
    "all_of",
    "batches",
    "count",
    "describe_failed",
    "each_flag",
    "last_attempt",
    "list_epochs",
    "list_failed",
    "list_flags",
    "list_history",
    "list_locks",
    "list_old_flags",
    "list_stretch",
    "read_locks",
]

T = TypeVar("T")
R = TypeVar("R")

#: Objects read at the same time; one is at most 4 MB.
_BATCH = 32

_HEX = "0123456789abcdef"
_CRASHED = "its process died while it ran"


@dataclass(frozen=True, slots=True)
class ListedLocks:
    """All locks, by group; `date` is the store's clock at the first page."""

    found: dict[str, Listed]
    date: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """The flags and locks of the groups up to and with `end`; "" for the ring's end."""

    done: dict[str, Listed]
    locks: dict[str, Listed]
    end: str
    date: float

    @property
    def is_foreign(self) -> bool:
        """Whether others work here, who delete their locks at once: olmOCR's flags and locks are empty."""
        return any(not item.size for items in (self.done, self.locks) for item in items.values())


async def list_locks(store: Store) -> ListedLocks:
    """Every lock of the workspace, page after page (they are few: one a running group)."""
    found: dict[str, Listed] = {}
    date: float | None = None
    async for page in list_pages(store, keys.LOCKS):
        date = page.date if date is None else date
        found.update(_by_group(page.objects, keys.parse_lock))
    return ListedLocks(found, date or 0.0)


async def list_flags(store: Store) -> set[str]:
    """Every completed group, sixteen listings at a time: one for each first digit."""
    done: set[str] = set()
    await each_flag(store, lambda page: done.update(_by_group(page.objects, keys.parse_flag)))
    return done


async def list_old_flags(store: Store, options: QueueOptions) -> set[str]:
    """Every group that was completed so long ago that nobody needs its lock any more."""
    done: set[str] = set()

    def look(page: Page) -> None:
        flags = _by_group(page.objects, keys.parse_flag)
        done.update(group for group, flag in flags.items() if rules.outlived(page.date - flag.modified, options))

    await each_flag(store, look)
    return done


async def each_flag(store: Store, look: Callable[[Page], None]) -> None:
    """Give every page of flags to `look`: a page in a turn of the event loop, so that others come in between."""
    turn = anyio.Lock()

    async def listed(prefix: str) -> None:
        async for page in list_pages(store, prefix):
            async with turn:
                look(page)

    # A store that lists in no order may also refuse a prefix that is no folder (S3 Express does).
    prefixes = [keys.flag_prefix(digit) for digit in _HEX] if store.lists_in_order else [keys.FLAGS]
    async with task_group() as tasks:
        for prefix in prefixes:
            tasks.start_soon(listed, prefix)


async def list_stretch(store: Store, after: str, *, flags: bool = True, locks: bool = True) -> Stretch:
    """The state of the groups that follow `after` on the ring, as one page of flags and one of locks show it.

    Without `flags`, or without `locks`, nothing is said of those, and their page is not listed."""
    if not store.lists_in_order:
        return await _list_all(store, flags=flags, locks=locks)
    found: dict[str, dict[str, Listed]] = {keys.FLAGS: {}, keys.LOCKS: {}}
    dates: dict[str, float] = {}
    ends: list[str] = []

    async def first_page(prefix: str, start: str | None, parse: Callable[[str], str | None]) -> None:
        # Pages without a group (empty ones, or other people's objects) do not say how far we have seen.
        async with aclosing(list_pages(store, prefix, start_after=start)) as listing:
            async for page in listing:
                dates[prefix] = page.date
                groups = found[prefix] = _by_group(page.objects, parse)
                if groups:
                    if page.next is not None:
                        ends.append(next(reversed(groups)))
                    return

    async with task_group() as tasks:
        if flags:
            tasks.start_soon(first_page, keys.FLAGS, keys.flag(after) if after else None, keys.parse_flag)
        if locks:
            tasks.start_soon(first_page, keys.LOCKS, keys.lock(after) if after else None, keys.parse_lock)
    end = min(ends, default="")

    def within(groups: dict[str, Listed]) -> dict[str, Listed]:
        return {group: item for group, item in groups.items() if group <= end} if end else groups

    date = dates[keys.LOCKS if locks else keys.FLAGS]
    return Stretch(within(found[keys.FLAGS]), within(found[keys.LOCKS]), end, date)


async def _list_all(store: Store, *, flags: bool, locks: bool) -> Stretch:
    """The same where listings are in no order: of the whole ring."""
    listed = await list_locks(store) if locks else ListedLocks({}, 0.0)
    done: dict[str, Listed] = {}
    if flags:
        await each_flag(store, lambda page: done.update(_by_group(page.objects, keys.parse_flag)))
    return Stretch(done, listed.found, "", listed.date)


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


async def list_failed(store: Store, index: Index, events: Events) -> list[FailedGroup]:
    """Groups that are dead or wait after a failure, with the record of their last one, in the order of their names."""
    locks = await list_locks(store)
    small = [
        group for group, lock in locks.found.items() if looks_released(lock.size) and index.find(group) is not None
    ]
    failed = [
        found async for found in read_locks(store, small) if found[1].failures or found[1].state is LockState.DEAD
    ]

    async def described(found: tuple[str, LockRecord, Body]) -> FailedGroup:
        return await describe_failed(store, index, *found, events)

    return [group for batch in batches(failed) for group in await all_of(batch, described)]


async def describe_failed(
    store: Store, index: Index, group: str, lock: LockRecord, body: Head, events: Events
) -> FailedGroup:
    """What there is to say about a dead or waiting group of this lock, with the record of its last failure."""
    position = index.find(group)
    assert position is not None, group
    paths = index.paths(position)
    journal = await read_journal(store, group, lock, events)
    is_known = journal.size == len(paths)
    return FailedGroup(
        hash=group,
        work_paths=paths,
        dead=lock.state is LockState.DEAD,
        failures=lock.failures,
        last=await last_attempt(store, group, lock.epoch),
        done=journal.count_done() if is_known else 0,
        paths=tuple(_failed_paths(journal, paths)) if is_known else (),
        age=body.date - body.modified,
    )


def _failed_paths(journal: Journal, paths: Sequence[str]) -> Iterator[FailedPath]:
    for unit, path in enumerate(paths):
        attempts, crashes = journal.tries.get(unit, 0), journal.crashes(unit)
        error = journal.errors.get(unit, "")
        if not journal.is_done(unit) and (attempts or crashes or error):
            yield FailedPath(path=path, attempts=attempts, crashes=crashes, error=error or _CRASHED)


async def last_attempt(store: Store, group: str, epoch: int) -> FailedAttempt | None:
    """The record of a group's last failed attempt, if it can be read; `epoch` is its lock's."""
    found = await _attempt(store, group, epoch)
    if found is not None:
        return found
    # Of a group that a crash made dead: the crash is on record under the epoch before.
    epochs = await list_epochs(store, group)
    return await _attempt(store, group, epochs[-1]) if epochs else None


async def list_epochs(store: Store, group: str) -> list[int]:
    """The epochs of a group that have a failure record, from the first one on."""
    return sorted(
        [
            found[1]
            async for page in list_pages(store, keys.failure_prefix(group))
            for item in page.objects
            if (found := keys.parse_failure(item.key)) is not None
        ]
    )


async def list_history(store: Store, group: str) -> list[FailedAttempt]:
    """Every failed attempt at a group that is on record, first to last. Unreadable records are left out."""
    attempts = [await _attempt(store, group, epoch) for epoch in await list_epochs(store, group)]
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
        host=record.host,
        seconds=record.seconds,
        paths=record.paths,
    )


async def _dead(store: Store, groups: list[str]) -> int:
    return sum([lock.state is LockState.DEAD async for _, lock, _ in read_locks(store, groups)])


async def read_locks(store: Store, groups: Sequence[str]) -> AsyncIterator[tuple[str, LockRecord, Body]]:
    """These groups' locks, several read at a time; those that are gone or unreadable are left out."""

    async def read(group: str) -> tuple[str, LockRecord, Body] | None:
        try:
            body = await store.get(keys.lock(group))
            return group, LockRecord.decode(body.data), body
        except (NotFound, DamagedWorkspace):
            return None

    for batch in batches(groups):
        for found in await all_of(batch, read):
            if found is not None:
                yield found


def batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """The items, as many at a time as are read at the same time."""
    return (items[i : i + _BATCH] for i in range(0, len(items), _BATCH))


async def all_of(items: Sequence[T], read: Callable[[T], Awaitable[R]]) -> list[R]:
    """`read` of each, at the same time; in the order of the items."""
    found: dict[int, R] = {}

    async def one(i: int, item: T) -> None:
        found[i] = await read(item)

    async with task_group() as tasks:
        for i, item in enumerate(items):
            tasks.start_soon(one, i, item)
    return [found[i] for i in range(len(items))]


def _by_group(objects: Iterable[Listed], parse: Callable[[str], str | None]) -> dict[str, Listed]:
    return {group: item for item in objects if (group := parse(item.key)) is not None}
