"""The queue: what is claimed when, failures and their retries, use by hand; in virtual time."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import anyio
import pytest

from s3queue import (
    Backend,
    ConfigurationError,
    InvalidPath,
    LeaseLost,
    PermanentError,
    RetryLater,
    WorkItem,
)
from s3queue import _keys as keys
from s3queue._records import LockState
from s3queue.stores import MemoryBucket
from s3queue.testing import Fault
from tests.machines import Machine, machine
from tests.virtual import virtual


@virtual
async def test_a_failure_stops_nothing_else() -> None:
    """A handler that raises fails its group, again and again until it is dead; everything else is done (B25)."""
    made = await machine(20)
    calls = Counter[str]()

    async def handler(item: WorkItem) -> None:
        calls[item.hash] += 1
        if item.work_paths == ("p007",):
            raise ValueError(f"broken, attempt {item.failures + 1}")

    summary = await made.run(handler)

    assert (summary.done, summary.failed, summary.dead, summary.unfinished) == (19, 3, 1, 0)
    assert sorted(calls.values()) == [1] * 19 + [3]
    assert [(f.attempt, f.error) for f in made.failures()] == [(n, f"broken, attempt {n}") for n in (1, 2, 3)]
    status = await made.queue.status()
    assert (status.done, status.dead, status.complete) == (19, 1, True)


@virtual
async def test_a_permanent_error() -> None:
    """A handler that says so is not tried again."""
    made = await machine(3)

    async def handler(item: WorkItem) -> None:
        if item.work_paths == ("p001",):
            raise PermanentError("no such page")

    summary = await made.run(handler)

    assert (summary.done, summary.failed, summary.dead) == (2, 1, 1)
    (group,) = await made.queue.failures()
    assert (group.work_paths, group.dead, group.failures) == (("p001",), True, 1)
    assert group.last is not None
    assert (group.last.kind, group.last.error) == ("PermanentError", "no such page")


@virtual
async def test_a_misused_retry_later() -> None:
    """A wrong argument is the handler's own failure, and stops nothing."""
    made = await machine(2, max_attempts=1)

    async def handler(item: WorkItem) -> None:
        if item.work_paths == ("p001",):
            raise RetryLater("not yet")  # type: ignore[arg-type]

    summary = await made.run(handler)

    assert (summary.done, summary.dead) == (1, 1)
    assert made.failures()[0].kind == "TypeError"


@virtual
async def test_not_now() -> None:
    """`RetryLater` hands the group back for so long, and counts as no attempt, however often."""
    made = await machine(1, max_attempts=1)
    calls = []

    async def handler(item: WorkItem) -> None:
        calls.append(anyio.current_time())
        if len(calls) < 5:
            raise RetryLater(100)

    summary = await made.run(handler)

    assert (summary.done, summary.failed, len(calls)) == (1, 0, 5)
    assert all(100 <= later - earlier < 120 for earlier, later in pairwise(calls))


@virtual
async def test_retry() -> None:
    """A dead group that is retried runs again with all its attempts, and what failed before stays on record (B25)."""
    made = await machine(4, max_attempts=2)
    fixed = False

    async def handler(item: WorkItem) -> None:
        if not fixed and item.work_paths[0] in ("p001", "p002"):
            raise ValueError("broken")

    await made.run(handler)
    assert len(await made.queue.failures()) == 2
    with pytest.raises(ConfigurationError, match="no group"):
        await made.queue.retry(["f" * 40])
    fixed = True

    assert await made.queue.retry() == 2

    assert (await made.queue.status()).dead == 0
    summary = await made.run(handler)
    assert (summary.done, summary.dead) == (2, 0)
    assert not await made.queue.failures()
    flags = made.flags()
    assert sorted(flag.epoch for flag in flags.values()) == [1, 1, 3, 3]
    dead_once = [key for key, flag in flags.items() if flag.epoch == 3]
    for key in dead_once:
        attempts = await made.queue.history(keys.parse_flag(key) or "")
        assert [(one.epoch, one.attempt, one.error) for one in attempts] == [(1, 1, "broken"), (2, 2, "broken")]


@virtual
async def test_retry_leaves_running_groups_alone() -> None:
    """A group that somebody holds, or that is done, is not touched."""
    made = await machine(2)
    held, done = await made.queue.get_work(), await made.queue.get_work()
    assert held is not None
    assert done is not None
    await made.queue.mark_done(done)

    assert await made.queue.retry([held.hash, done.hash]) == 0

    await made.queue.mark_done(held)


@virtual
async def test_everything_left_is_leased_elsewhere() -> None:
    """That others hold the rest is not that it is done: waiting finishes it, not waiting says so (B23)."""
    made = await machine(20)
    dead = Machine(made.bucket, 2)
    for _ in range(10):
        assert await dead.queue.get_work() is not None
    ran = []

    async def handler(item: WorkItem) -> None:
        ran.append(item.hash)

    impatient = await made.run(handler, wait=False)
    patient = await made.run(handler)

    assert (impatient.done, impatient.unfinished, impatient.leased_elsewhere) == (10, 10, 10)
    assert (patient.done, patient.unfinished) == (10, 0)
    assert len(set(ran)) == len(ran) == 20
    assert anyio.current_time() < 60


@virtual
async def test_an_index_that_grows() -> None:
    """A run picks up what another machine populates meanwhile."""
    made = await machine(5, index_refresh=5)
    ran = []

    async def handler(item: WorkItem) -> None:
        ran.append(item.work_paths[0])
        await anyio.sleep(8)
        if len(ran) == 5:
            await Machine(made.bucket, 2).queue.populate_queue(["new1", "new2"])

    summary = await made.run(handler, workers=1)

    assert summary.done == 7
    assert {"new1", "new2"} <= set(ran)


@virtual
async def test_a_second_run_finds_nothing_to_do() -> None:
    """A complete workspace is left at once, and so is an empty one."""
    made = await machine(3)

    async def handler(item: WorkItem) -> None:
        return None

    assert (await made.run(handler)).done == 3
    assert (await made.run(handler)).done == 0
    assert (await Machine(MemoryBucket()).run(handler)).complete
    assert await Machine(MemoryBucket()).queue.initialize_queue() == 0


@pytest.mark.parametrize(
    ("paths", "per_group", "kind"),
    [
        (["a"], 0, ConfigurationError),
        (["a"], True, ConfigurationError),
        ("a string", 1, InvalidPath),
        (["a", ""], 1, InvalidPath),
        (["a", "\udcff"], 1, InvalidPath),
        (["a", 3], 1, InvalidPath),
    ],
)
@virtual
async def test_bad_input_writes_nothing(paths: Any, per_group: Any, kind: type[Exception]) -> None:
    """A populate that cannot be done whole does nothing."""
    made = Machine(MemoryBucket())

    with pytest.raises(kind):
        await made.queue.populate_queue(paths, per_group)

    assert len(made.bucket) == 0


@virtual
async def test_concurrent_populates() -> None:
    """Populates at the same time all keep their paths, each in one group, also when answers get lost (B33)."""
    bucket = MemoryBucket()
    machines = [Machine(bucket, seed) for seed in range(1, 6)]
    async with anyio.create_task_group() as tasks:
        for i, made in enumerate(machines):
            made.store.script("put", keys.INDEX, Fault.APPLIED_THEN_ERROR if i % 2 else Fault.FAILS_BEFORE)
            tasks.start_soon(made.queue.populate_queue, [f"{i}-{n}" for n in range(50)] + ["shared"], 7)

    loaded = await Backend(machines[0].memory).load_index_lines()

    paths = [path for line in loaded for path in line.split(",")[1:]]
    assert sorted(paths) == sorted([f"{i}-{n}" for i in range(5) for n in range(50)] + ["shared"])


@virtual
async def test_bare_use_after_a_take_over() -> None:
    """Without renewals a slow user loses the group to another, and is told so; the other's completion stands."""
    made = await machine(1)
    other = Machine(made.bucket, 2)
    old = await made.queue.get_work()
    assert old is not None
    await anyio.sleep(60)
    new = await other.queue.get_work()
    assert new is not None
    assert new.epoch == 2

    with pytest.raises(LeaseLost):
        await made.queue.mark_done(old, "old")
    await other.queue.mark_done(new, "new")

    assert [flag.result for flag in made.flags().values()] == ["new"]
    with pytest.raises(LeaseLost):
        await other.queue.mark_done(new)


@virtual
async def test_inside_the_context_leases_are_renewed_and_handed_back() -> None:
    """In ``async with`` an item is kept as long as it is worked on, and what is not ended is released."""
    made = await machine(3)
    async with made.queue as queue:
        item = await queue.get_work()
        kept = await queue.get_work()
        assert item is not None
        assert kept is not None
        await anyio.sleep(500)
        await queue.mark_done(item, "slow")
        assert len(made.locks()) == 1

    assert len(made.flags()) == 1
    assert [lock.state for lock in made.locks()] == [LockState.FREE]


@virtual
async def test_get_work_that_is_cancelled_loses_nothing() -> None:
    """A claim that was won while its caller was cancelled goes to the next caller."""
    made = await machine(1)
    await made.queue.initialize_queue()
    item = None
    with anyio.move_on_after(0.025):
        item = await made.queue.get_work()

    item = item or await made.queue.get_work()

    assert item is not None
    assert item.epoch == 1


@virtual
async def test_get_work_waits() -> None:
    """With `wait`, None means that everything is done; a group that fails elsewhere is waited for."""
    made = await machine(2)
    other = Machine(made.bucket, 2)
    held = await other.queue.get_work()
    assert held is not None
    got: list[WorkItem | None] = []

    async def worker() -> None:
        while (item := await made.queue.get_work(wait=True)) is not None:
            got.append(item)
            await made.queue.mark_done(item)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(worker)
        await anyio.sleep(3)
        await other.queue.mark_failed(held, "try elsewhere")

    assert len(got) == 2
    assert len(made.flags()) == 2
