"""The contract of the store port, as checks. Each gets a store, or a prefix of one, that is empty and nobody else's.

A check that fails raises `AssertionError`, or what the store raised. What it wrote stays.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from itertools import pairwise

import anyio
import anyio.lowlevel

from s3queue._errors import NotFound, PreconditionFailed, WriteConflict
from s3queue._tasks import task_group
from s3queue.stores._listing import list_pages
from s3queue.stores._port import CREATE, OVERWRITE, Listed, PutMode, Replace, Store

__all__ = ["STORE_CHECKS", "StoreCheck"]

StoreCheck = Callable[[Store], Awaitable[None]]
"""Given a store that is empty, returns if it keeps this part of the contract; otherwise raises `AssertionError`."""

_RACERS = 64
_MANY = 1100
_AWKWARD = (
    "a b", "a+b", "a%2Bb", "100%.pdf", "a%20b", 'q"uote', "it's", "tab\there", "日本/é", "e\u0301", "k=v&x=#?",
    "<tag>", "a;b,c", "dots..", ".hidden", "~tilde", "(round)[square]{curly}", "*star", "@:$!", "a?",
    " blanks at both ends ", "\U0001f600", "l" * 200,
)  # fmt: skip


async def check_put_and_get(store: Store) -> None:
    """What was written is read, whole, whatever its size."""
    for data in (b"", b"x", bytes(range(256)), b"\r\n" * 10, b"1234567" * 150_000):
        written = await store.put("object", data, OVERWRITE)
        body = await store.get("object")
        assert body.data == data, f"{len(data)} bytes were written, {len(body.data)} were read"
        assert (body.version, body.size) == (written.version, len(data))


async def check_missing_object(store: Store) -> None:
    """Reading what is not there raises NotFound; deleting it is no error."""
    for read in (store.get, store.head):
        try:
            await read("nothing")
        except NotFound:
            continue
        raise AssertionError(f"{read} of a missing object did not raise NotFound")
    await store.delete("nothing")
    await store.delete_many(["nothing", "nothing else"])


async def check_create(store: Store) -> None:
    """A create of what exists is refused, and changes nothing."""
    await store.put("object", b"first", CREATE)
    assert await _refused(store, "object", b"second", CREATE)
    assert (await store.get("object")).data == b"first"


async def check_create_after_delete(store: Store) -> None:
    """What was deleted can be created again, and is then another version."""
    first = (await store.put("object", b"first", CREATE)).version
    await store.delete("object")
    second = (await store.put("object", b"other", CREATE)).version
    assert second != first, "what was deleted and made anew has its old version"
    assert await _refused(store, "object", b"third", Replace(first))
    assert (await store.get("object")).data == b"other"


async def check_replace(store: Store) -> None:
    """A replace of the current version succeeds; one of a stale version is refused, and changes nothing."""
    first = (await store.put("object", b"first", CREATE)).version
    second = (await store.put("object", b"second", Replace(first))).version
    assert second != first, "two states of an object have one version"
    assert await _refused(store, "object", b"third", Replace(first))
    assert (await store.get("object")).data == b"second"
    await store.put("object", b"third", Replace(second))
    assert (await store.get("object")).data == b"third"


async def check_replace_missing(store: Store) -> None:
    """A replace of what is not there is refused, and creates nothing."""
    version = (await store.put("object", b"first", CREATE)).version
    await store.delete("object")
    assert await _refused(store, "object", b"second", Replace(version))
    try:
        await store.get("object")
    except NotFound:
        return
    raise AssertionError("a replace of a missing object created it")


async def check_versions_agree(store: Store) -> None:
    """Put, get, head and list tell one version, size and time of one state."""
    written = await store.put("object", b"data", OVERWRITE)
    head, body = await store.head("object"), await store.get("object")
    (listed,) = await _listed(store, "obj")
    assert {written.version, head.version, body.version, listed.version} == {written.version}
    assert {head.size, body.size, listed.size} == {4}
    # Some stores tell fractions of a second in a listing only.
    assert max(abs(head.modified - body.modified), abs(head.modified - listed.modified)) <= 1


async def check_dates(store: Store) -> None:
    """Every answer carries the store's clock, which does not run backwards, and fits the times of modification."""
    dates = [(await store.put("a", b"1", OVERWRITE)).date]
    head = await store.head("a")
    dates += [head.date, (await store.get("a")).date, (await store.list("")).date]
    dates += [(await store.delete("a")).date, (await store.delete_many(["a"])).date]
    assert all(date > 1e9 for date in dates), f"not POSIX seconds: {dates}"
    assert all(later >= earlier - 2 for earlier, later in pairwise(dates)), dates
    assert dates[0] - 3 <= head.modified <= head.date + 2, (head.modified, head.date)


async def check_racing_creates(store: Store) -> None:
    """Of 64 concurrent creates one wins, and its bytes stand."""
    await _race(store, [CREATE] * _RACERS)


async def check_racing_replaces(store: Store) -> None:
    """Of 64 concurrent replaces of one version one wins, and its bytes stand."""
    version = (await store.put("race", b"start", CREATE)).version
    await _race(store, [Replace(version)] * _RACERS)


async def check_counter(store: Store) -> None:
    """Eight workers that each add one ten times, by compare-and-swap, make eighty."""
    await store.put("counter", b"0", CREATE)

    async def add() -> None:
        added = 0
        while added < 10:
            current = await store.get("counter")
            assert current.data.isdigit(), f"nobody wrote {current.data!r}"
            added += not await _refused(store, "counter", b"%d" % (int(current.data) + 1), Replace(current.version))

    async with task_group() as tasks:
        for _ in range(8):
            tasks.start_soon(add)
    assert int((await store.get("counter")).data) == 80


async def check_delete(store: Store) -> None:
    """A deleted object is gone from reads and listings at once."""
    await store.put("a", b"1", OVERWRITE)
    await store.put("b", b"1", OVERWRITE)
    await store.delete("a")
    assert [item.key for item in await _listed(store, "")] == ["b"]
    assert await _refused(store, "b", b"2", CREATE)
    await check_missing_object(store)


async def check_many_objects(store: Store) -> None:
    """More than 1000 objects are listed whole, in order, from any point; and deleted in one call."""
    keys = [f"many/{i:05d}" for i in range(_MANY)]
    await _fill(store, keys)
    pages = [page async for page in list_pages(store, "many/")]
    seen = [item.key for page in pages for item in page.objects]
    assert len(seen) == len(set(seen)), "a listing shows an object twice"
    assert sorted(seen) == keys
    assert len(pages) > 1, "more than 1000 objects came on one page"
    if store.lists_in_order:
        assert seen == keys, "a listing is out of order"
        for after in (keys[0], keys[1049], "many/00500!", "many/", keys[-1], "many0"):
            expected = [key for key in keys if key > after]
            assert [item.key for item in await _listed(store, "many/", after)] == expected, after
    await store.delete_many([*keys[1:], "many/none"])
    assert [item.key for item in await _listed(store, "many/")] == keys[:1]


async def check_pages(store: Store) -> None:
    """Pages of any size join to the whole listing."""
    keys = [f"page/{i}" for i in range(7)]
    await _fill(store, keys)
    for limit in (1, 2, 3, 7, 8):
        seen: list[str] = []
        resume = None
        while True:
            page = await store.list("page/", resume=resume, limit=limit)
            assert len(page.objects) <= limit
            seen += [item.key for item in page.objects]
            resume = page.next
            if resume is None:
                break
        assert sorted(seen) == keys, (limit, seen)


async def check_prefixes(store: Store) -> None:
    """A listing shows what starts with its prefix, and nothing else; an empty one has no objects and no next page."""
    await _fill(store, ["a/1", "a/2", "ab", "b/1"])
    assert sorted(item.key for item in await _listed(store, "a/")) == ["a/1", "a/2"]
    assert sorted(item.key for item in await _listed(store, "")) == ["a/1", "a/2", "ab", "b/1"]
    page = await store.list("nothing/")
    assert (list(page.objects), page.next) == ([], None)
    if store.lists_in_order:
        assert [item.key for item in await _listed(store, "a")] == ["a/1", "a/2", "ab"]


async def check_awkward_keys(store: Store) -> None:
    """A key with any character is written, read, listed, replaced and deleted under exactly that name."""
    keys = [f"odd/{name}" for name in _AWKWARD]
    for key in keys:
        version = (await store.put(key, key.encode(), CREATE)).version
        await store.put(key, key.encode() + b"!", Replace(version))
    for key in keys:
        assert (await store.get(key)).data == key.encode() + b"!", key
        assert (await store.head(key)).size == len(key.encode()) + 1, key
    seen = {item.key for item in await _listed(store, "odd/")}
    assert seen == set(keys), f"not listed: {set(keys) - seen}; listed instead: {seen - set(keys)}"
    if store.lists_in_order:
        ordered = sorted(keys, key=str.encode)
        assert [item.key for item in await _listed(store, "odd/", ordered[3])] == ordered[4:]
    await store.delete(keys[0])
    await store.delete_many(keys[1:])
    assert await _listed(store, "odd/") == []


async def check_line_end_in_key(store: Store) -> None:
    """A key may hold a line end."""
    key = "odd/x\ny"
    await store.put(key, b"x", CREATE)
    assert (await store.get(key)).data == b"x"
    assert [item.key for item in await _listed(store, "odd/")] == [key]
    await store.delete_many([key])
    assert await _listed(store, "odd/") == []


async def check_cancelled_put(store: Store) -> None:
    """A put that is cancelled, at whatever point, leaves the old object or the new one, and a store that works.

    A server that takes what it got of a body for the whole of it fails here: send a checksum with it.
    """
    for steps in range(24):
        await store.put("object", b"old", OVERWRITE)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(store.put, "object", b"new" * 1000, OVERWRITE)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        left = (await store.get("object")).data
        assert left in (b"old", b"new" * 1000), f"a put cancelled after {steps} steps left {len(left)} bytes"
    # The last cancelled one may still be under way.
    await store.put("other", b"newer", OVERWRITE)
    assert (await store.get("other")).data == b"newer"


async def _refused(store: Store, key: str, data: bytes, mode: PutMode) -> bool:
    try:
        await store.put(key, data, mode)
    except (PreconditionFailed, WriteConflict):
        return True
    except NotFound:
        assert isinstance(mode, Replace), "a create raised NotFound"
        return True
    return False


async def _race(store: Store, modes: Iterable[PutMode]) -> None:
    winners: list[bytes] = []

    async def run(name: bytes, mode: PutMode) -> None:
        if not await _refused(store, "race", name, mode):
            winners.append(name)

    async with task_group() as tasks:
        for i, mode in enumerate(modes):
            tasks.start_soon(run, b"racer %d" % i, mode)
    assert len(winners) == 1, f"{len(winners)} of {_RACERS} won"
    assert (await store.get("race")).data == winners[0]


async def _fill(store: Store, keys: Iterable[str]) -> None:
    limit = anyio.CapacityLimiter(16)

    async def put(key: str) -> None:
        async with limit:
            await store.put(key, b"x", OVERWRITE)

    async with task_group() as tasks:
        for key in keys:
            tasks.start_soon(put, key)


async def _listed(store: Store, prefix: str, start_after: str | None = None) -> list[Listed]:
    return [item async for page in list_pages(store, prefix, start_after=start_after) for item in page.objects]


STORE_CHECKS: tuple[StoreCheck, ...] = (
    check_put_and_get,
    check_missing_object,
    check_create,
    check_create_after_delete,
    check_replace,
    check_replace_missing,
    check_versions_agree,
    check_dates,
    check_racing_creates,
    check_racing_replaces,
    check_counter,
    check_delete,
    check_many_objects,
    check_pages,
    check_prefixes,
    check_awkward_keys,
    check_line_end_in_key,
    check_cancelled_put,
)
"""Every check; run each on a store, or a prefix, of its own."""
