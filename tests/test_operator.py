"""What a person does to groups: break a lease, reset, sweep, check, and read results."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from s3queue import ConfigurationError, DamagedWorkspace, LeaseLost, WorkItem
from s3queue import _keys as keys
from s3queue._index import group_hash
from s3queue._records import LockState
from s3queue.stores import CREATE, OVERWRITE
from tests.machines import Machine, machine
from tests.virtual import virtual


async def whole(item: WorkItem) -> list[str]:
    return list(item.work_paths)


async def kinds(made: Machine) -> list[str]:
    """What `check` finds."""
    return sorted([finding.kind async for finding in made.queue.check()])


@virtual
async def test_a_broken_lease_is_free_at_the_same_epoch() -> None:
    """The next owner has the next epoch; the old one, if it is alive, finds out and stops."""
    made = await machine(1)
    other = Machine(made.bucket, 2)
    async with made.queue:
        item = await made.queue.get_work()
        assert item is not None
        assert await other.queue.break_lease(item.hash) is True
        assert await other.queue.break_lease(item.hash) is False
        (lock,) = made.locks()
        assert (lock.state, lock.epoch, lock.failures) == (LockState.FREE, 1, 0)
        taken = await other.queue.get_work()
        assert taken is not None
        assert taken.epoch == 2
        await anyio.sleep(60)
        with pytest.raises(LeaseLost):
            await made.queue.mark_done(item)


@virtual
async def test_a_broken_lease_keeps_its_progress() -> None:
    """What the lock had on record as done is not run again, and its results are there."""
    made = await machine(30, 30)
    other = Machine(made.bucket, 2)
    ran: list[str] = []

    async def slow(path: str) -> str:
        await anyio.sleep(2)
        return path.upper()

    async def quick(path: str) -> str:
        ran.append(path)
        return path.upper()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: made.run(slow, per="path", workers=3))
        await anyio.sleep(13)
        made.unplug()
        (lock,) = made.locks()
        assert lock.progress is not None
        done = int.from_bytes(lock.progress.done, "little").bit_count()
        assert done >= 9
        assert await other.queue.break_lease(group_hash([f"p{i:03}" for i in range(30)]))
        await other.run(quick, per="path")
        tasks.cancel_scope.cancel()

    assert len(ran) == 30 - done
    assert await other.results() == {f"p{i:03}": f"P{i:03}" for i in range(30)}


@virtual
async def test_an_unreadable_lock_can_be_broken() -> None:
    """It held its group for ever; its epoch goes on after the last one on record."""
    made = await machine(1, max_attempts=5)
    group = group_hash(["p000"])
    await made.memory.put(keys.lock(group), b"\x00garbage", OVERWRITE)
    await made.memory.put(keys.failure(group, 6), b"{}", CREATE)

    assert await kinds(made) == ["unreadable", "unreadable"]
    assert await made.queue.break_lease(group)

    (lock,) = made.locks()
    assert (lock.state, lock.epoch) == (LockState.FREE, 6)
    with pytest.raises(ConfigurationError, match="no group"):
        await made.queue.break_lease("f" * 40)


@virtual
async def test_a_reset_runs_again_and_keeps_the_old_completion() -> None:
    """Under a new name, at the next epoch; the old flag is untouched, and the results are the new ones."""
    made = await machine(4, 2)
    await made.run(whole)
    old = made.flags()
    first, second = (keys.parse_flag(key) or "" for key in old)

    names = await made.queue.reset([first])

    assert set(names) == {first}
    assert await kinds(made) == []
    status = await made.queue.status()
    assert (status.groups, status.paths, status.done) == (2, 4, 1)

    async def again(item: WorkItem) -> str:
        assert (item.hash, item.epoch) == (names[first], 2)
        return "again"

    summary = await made.run(again)

    assert summary.done == 1
    assert {key: flag for key, flag in made.flags().items() if key in old} == old
    results = [result async for result in made.queue.results()]
    assert (
        sorted((result.hash, str(result.result)) for result in results if result.hash != second)
        == [(names[first], "again")] * 2
    )
    assert await kinds(made) == []
    assert await made.queue.reset([names[first]])
    for unknown in (first, "f" * 40):
        with pytest.raises(ConfigurationError, match="no group"):
            await made.queue.reset([unknown])


@virtual
async def test_only_finished_groups_are_reset() -> None:
    """A group that still runs, or is dead, has other remedies, which the error names."""
    made = await machine(1)
    with pytest.raises(ConfigurationError, match="retry"):
        await made.queue.reset([group_hash(["p000"])])


@virtual
async def test_two_resets_at_once() -> None:
    """One new name, one new run."""
    made = await machine(1)
    other = Machine(made.bucket, 2)
    await made.run(whole)
    (group,) = (keys.parse_flag(key) or "" for key in made.flags())
    names: list[dict[str, str]] = []

    async def reset(one: Machine) -> None:
        names.append(await one.queue.reset([group]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reset, made)
        tasks.start_soon(reset, other)

    assert names[0] == names[1]
    assert (await made.run(whole)).done == 1
    assert (await other.run(whole)).done == 0
    assert await kinds(made) == []


@virtual
async def test_a_sweep() -> None:
    """Locks of finished groups go, once their flags are so old that nobody needs them; others stay."""
    made = await machine(3, 1)
    await made.run(whole)
    assert await made.queue.sweep() == 0
    await anyio.sleep(100)
    await made.queue.populate_queue(["new"])
    assert await made.queue.get_work() is not None
    assert len(made.locks()) == 1
    await made.memory.put(keys.lock(group_hash(["p000"])), b"", OVERWRITE)

    left = len(made.bucket.slice(keys.LOCKS, None, 10)[0]) - 1

    assert await made.queue.sweep() == left >= 1

    assert len(made.bucket.slice(keys.LOCKS, None, 10)[0]) == 1
    assert await kinds(made) == []


@virtual
async def test_a_check_finds_everything() -> None:
    """Each kind of inconsistency by its name; of what is right, nothing."""
    made = await machine(4, 1, max_attempts=1)

    async def handler(item: WorkItem) -> None:
        if item.work_paths == ("p001",):
            raise ValueError("no")

    assert await kinds(made) == []
    await made.run(handler)
    assert await kinds(made) == ["dead group"]
    await made.memory.put(keys.lock("a" * 40), b"", CREATE)
    await made.memory.put(keys.flag("b" * 40), b"", CREATE)
    await made.memory.put(keys.LOCKS + "notes.txt", b"", CREATE)
    await made.memory.put(keys.flag(group_hash(["p002"])), b"?", OVERWRITE)
    await made.memory.put(keys.piece(group_hash(["p002"]), 1, 1), b"?", CREATE)
    lines = await made.backend.load_index_lines()
    await made.backend.save_index_lines([*lines, "c" * 40 + ",p000,extra"])
    await made.queue.populate_queue(["late"])
    assert await made.queue.get_work() is not None
    await anyio.sleep(100)

    assert await kinds(made) == [
        "dead group", "foreign object", "lease past its ttl", "path in two groups", "unknown group", "unknown group",
        "unreadable", "unreadable",
    ]  # fmt: skip
    with pytest.raises(DamagedWorkspace, match="done_flags"):
        await made.results()


@virtual
async def test_results_while_groups_are_completed() -> None:
    """No path twice, if its group is completed between the looks at its flag and at its lock."""
    made = await machine(20, 10)

    async def slow(path: str) -> str:
        await anyio.sleep(3)
        return path.upper()

    seen: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: made.run(slow, per="path", workers=4))
        await anyio.sleep(15)
        assert [lock.progress is not None for lock in made.locks()] == [True]
        async for result in made.queue.results():
            seen.append(result.path)
            if len(seen) == 1:
                await anyio.sleep(60)

    assert len(set(seen)) == len(seen) >= 14
    assert len(await made.results()) == 20


@virtual
async def test_results_of_olmocr() -> None:
    """An empty flag is a completion without a result."""
    made = await machine(2, 2)
    await made.memory.put(keys.flag(group_hash(["p000", "p001"])), b"", CREATE)
    found = [result async for result in made.queue.results()]
    assert [(one.path, one.result, one.epoch) for one in found] == [("p000", None, 0), ("p001", None, 0)]


@virtual
async def test_results_are_streamed() -> None:
    """A reader that stops early has caused no more reads than a few dozen groups need."""
    made = await machine(300, 1)
    await made.run(whole)
    reads = len([entry for entry in made.store.log if entry[0] == "get"])
    results: Any = made.queue.results()

    async for _ in results:
        break
    await results.aclose()

    assert len([entry for entry in made.store.log if entry[0] == "get"]) - reads <= 40
