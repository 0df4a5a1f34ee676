"""Limits of a run: so many groups, so much time, one pass. In virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from s3queue import ConfigurationError, WorkItem
from s3queue._limits import TimeLimit
from s3queue._records import LockState
from tests.machines import Machine, machine
from tests.virtual import virtual


def leased(made: Machine) -> int:
    return sum(lock.state is LockState.HELD for lock in made.locks())


async def quick(item: WorkItem) -> None:
    await anyio.sleep(1)


@virtual
async def test_max_groups() -> None:
    """So many are worked on, not one is claimed beyond that, and the summary says what ended the run."""
    for limit, workers in ((7, 3), (3, 8), (1, 1), (50, 8)):
        made = await machine(400)

        summary = await made.run(quick, workers=workers, max_groups=limit)

        assert (summary.done, summary.unfinished) == (limit, 400 - limit)
        assert (summary.limit, summary.stopped, summary.complete) == ("max_groups", False, False)
        assert len(made.saw("group.claimed")) == limit
        assert leased(made) == 0


@virtual
async def test_max_groups_that_are_not_there() -> None:
    """A limit that is not reached changes nothing; failures count like others."""
    made = await machine(5, max_attempts=1)

    async def fails(item: WorkItem) -> None:
        raise ValueError(item.hash)

    summary = await made.run(fails, max_groups=3)
    assert (summary.failed, summary.dead, summary.limit) == (3, 3, "max_groups")

    summary = await made.run(quick, max_groups=3)
    assert (summary.done, summary.limit, summary.complete) == (2, None, True)


@virtual
async def test_once() -> None:
    """Without `wait` a run takes what is claimable now, and leaves what waits after a failure or is held elsewhere."""
    made = await machine(6, backoff=100, backoff_max=100)
    held = await Machine(made.bucket, seed=2).queue.get_work()
    assert held is not None

    async def handler(item: WorkItem) -> None:
        await anyio.sleep(1)
        if item.work_paths == ("p003",) or (item.work_paths == ("p004",) and held.work_paths == ("p003",)):
            raise ValueError(item.hash)

    summary = await made.run(handler, wait=False)

    assert (summary.done, summary.failed, summary.unfinished) == (4, 1, 2)
    assert (summary.stopped, summary.limit) == (False, None)
    assert anyio.current_time() < 10


@virtual
async def test_max_runtime_of_quick_groups() -> None:
    """It works almost to the end, starts nothing that would not end, and is gone before the limit."""
    made = await machine(2000)
    cancelled = []

    async def handler(item: WorkItem) -> None:
        try:
            await anyio.sleep(1)
        except BaseException:
            cancelled.append(item)
            raise

    summary = await made.run(handler, workers=4, max_runtime=300)

    assert 290 < anyio.current_time() <= 300
    assert (summary.limit, summary.stopped) == ("max_runtime", False)
    assert summary.done >= 4 * 285
    assert not cancelled
    assert leased(made) == 0


@virtual
async def test_max_runtime_of_long_groups() -> None:
    """A group that takes 100 minutes is not begun 230 - 200 minutes before the end, though the grace is short."""
    made = await machine(20)
    began = []

    async def handler(item: WorkItem) -> None:
        began.append(anyio.current_time())
        await anyio.sleep(6000)

    summary = await made.run(handler, workers=2, max_runtime=13_800, grace=30)

    assert (len(began), summary.done, summary.limit) == (4, 4, "max_runtime")
    assert anyio.current_time() == pytest.approx(12_000, abs=10)
    assert leased(made) == 0


@virtual
async def test_max_runtime_cuts_off_what_takes_too_long() -> None:
    """Calls that surprise are cancelled shortly before the limit, their groups handed back, no attempt counted."""
    made = await machine(20)
    calls = 0

    async def handler(item: WorkItem) -> None:
        nonlocal calls
        calls += 1
        await anyio.sleep(1 if calls < 5 else 10_000)

    summary = await made.run(handler, workers=2, max_runtime=100)

    assert 85 < anyio.current_time() < 100
    assert (summary.done, summary.failed) == (4, 0)
    assert leased(made) == 0
    assert {lock.failures for lock in made.locks()} == {0}


@virtual
async def test_max_runtime_inside_a_group() -> None:
    """Of a large group no path starts that would not end; what is done stays done."""
    made = await machine(2000, 1000)
    calls, cut = [], []

    async def handler(path: str) -> None:
        calls.append(path)
        try:
            await anyio.sleep(10)
        except BaseException:
            cut.append(path)
            raise

    summary = await made.run(handler, per="path", workers=4, max_runtime=300)

    assert 270 < anyio.current_time() <= 300
    assert (len(cut), leased(made)) == (0, 0)
    assert summary.done_paths == len(calls) >= 4 * 27
    await made.run(handler, per="path", workers=500)
    assert len(calls) == len(set(calls)) == 2000


@virtual
async def test_max_runtime_with_nothing_to_do() -> None:
    """Also a run that waits for others, or for ever, ends in time."""
    made = await machine(2)
    other = Machine(made.bucket, seed=2)

    async def forever(item: WorkItem) -> None:
        await anyio.sleep_forever()

    async with other.queue.pool(forever):
        await anyio.sleep(1)
        summary = await made.run(quick, max_runtime=60)
    assert anyio.current_time() <= 61
    assert (summary.done, summary.limit) == (0, "max_runtime")

    summary = await made.run(quick, forever=True, max_runtime=60)
    assert anyio.current_time() <= 61 + 60
    assert (summary.done, summary.complete, summary.limit) == (2, True, "max_runtime")


@virtual
async def test_a_stop_near_the_time_limit() -> None:
    """The grace that a stop gives ends with the limit, if that is sooner; a limit does not lengthen it."""
    for at, end in ((80, 90), (20, 50)):
        made = await machine(20)
        began = anyio.current_time()

        async def handler(item: WorkItem) -> None:
            await anyio.sleep_forever()

        async with made.queue.pool(handler, max_runtime=100, grace=30) as pool:
            await anyio.sleep(at)
            pool.stop()
            summary = await pool.wait()

        assert anyio.current_time() - began == pytest.approx(end, abs=6)
        assert summary.stopped
        assert leased(made) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"max_groups": 0}, "max_groups"),
        ({"max_groups": 1.5}, "max_groups"),
        ({"max_runtime": 0}, "max_runtime"),
        ({"max_runtime": float("nan")}, "max_runtime"),
    ],
)
@virtual
async def test_nonsense_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    """A wrong limit is named."""
    made = await machine(1)

    with pytest.raises(ConfigurationError, match=complaint):
        await made.run(quick, **arguments)


def test_what_calls_take() -> None:
    """A guess before the first call has ended; then nine of ten of the latest hundred took no longer."""
    limit = TimeLimit(1000, began=100, reserve=10, guess=30)
    assert (limit.cutoff, limit.last_start) == (1090, 1060)

    limit.took(5)
    assert limit.last_start == 1085
    for _ in range(50):
        limit.took(1)
    assert limit.last_start == 1089
    for _ in range(9):
        limit.took(7)
    assert limit.last_start == 1083
    for _ in range(100):
        limit.took(2)
    assert limit.last_start == 1088
    assert TimeLimit(10, began=0, reserve=1, guess=30).last_start == 4.5
