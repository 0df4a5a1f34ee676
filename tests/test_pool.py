"""The worker pool, in virtual time over the memory store."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import anyio
import pytest
import trio
import trio.testing

from s3queue import (
    ConfigurationError,
    DamagedWorkspace,
    WorkItem,
    current_item,
)
from s3queue import _keys as keys
from s3queue._records import LockRecord, LockState
from s3queue.stores import OVERWRITE
from s3queue.testing import Fault
from tests.machines import OPTIONS, Machine, machine
from tests.virtual import virtual


@virtual
async def test_results_are_kept_with_the_completion() -> None:
    """Per group the handler's value is the result; per path, the values in the order of the group's paths."""
    by_group, by_path = await machine(6, 3), await machine(6, 3)

    async def whole(item: WorkItem) -> int:
        return len(item.work_paths)

    async def each(path: str) -> str:
        return path.upper()

    await by_group.run(whole)
    await by_path.run(each, per="path")

    assert [flag.result for flag in by_group.flags().values()] == [3, 3]
    assert await by_path.results() == {f"p{i:03}": f"P{i:03}" for i in range(6)}
    assert await by_group.results() == {f"p{i:03}": 3 for i in range(6)}


@virtual
async def test_a_second_run_looks_for_what_was_added_since_the_first() -> None:
    """However short ago the first one looked at the index."""
    one = await machine(2)
    other = Machine(one.bucket, seed=2)

    async def handler(item: WorkItem) -> int:
        return len(item.work_paths)

    await one.run(handler)
    await other.queue.populate_queue(["added"])

    summary = await one.run(handler)

    assert (summary.done, len(one.flags())) == (1, 3)


@virtual
async def test_workers_bound_the_calls() -> None:
    """No more than `workers` calls run at once, and as many do while there is work, per group and per path."""
    for per, per_group in (("group", 1), ("path", 20)):
        made = await machine(200, per_group)
        running, peak = 0, 0

        async def handler(argument: object) -> None:
            nonlocal running, peak
            running += 1
            peak = max(peak, running)
            await anyio.sleep(1)
            running -= 1

        await made.run(handler, workers=8, per=per)

        assert peak == 8


@virtual
async def test_large_groups_are_not_hoarded() -> None:
    """With groups larger than the pool, only as many are claimed as keep it busy: others find the rest free."""
    made = await machine(400, 20, claim_ahead=0)
    held = []

    async def handler(path: str) -> None:
        await anyio.sleep(1)
        held.append(len(made.locks()))

    await made.run(handler, workers=8, per="path")

    assert max(held) <= 2


@virtual
async def test_only_unfinished_paths_run_again() -> None:
    """A path that fails fails its group's attempt; the next one runs only what is not done, and keeps all results."""
    made = await machine(5, 5)
    calls = Counter[str]()

    async def handler(path: str) -> str:
        calls[path] += 1
        if path == "p002" and calls[path] < 3:
            raise RuntimeError("not yet")
        return path

    summary = await made.run(handler, per="path")

    assert calls == {"p000": 1, "p001": 1, "p002": 3, "p003": 1, "p004": 1}
    assert (summary.done, summary.failed) == (1, 2)
    assert await made.results() == {f"p{i:03}": f"p{i:03}" for i in range(5)}
    assert {failure.error for failure in made.failures()} == {"not yet · path: p002"}


@virtual
async def test_current_item() -> None:
    """A handler of a path, and of a path in a thread, can read the epoch to fence what it writes."""
    made = await machine(4, 2)
    seen = []

    async def in_loop(path: str) -> None:
        assert path in current_item().work_paths
        seen.append(current_item().epoch)

    await made.run(in_loop, per="path")

    assert seen == [1] * 4
    with pytest.raises(LookupError):
        current_item()


def test_plain_functions_run_in_threads() -> None:
    """A function that is no coroutine function runs in a thread, with its item; one that returns one is awaited."""

    async def main() -> None:
        made = await machine(4, 2)
        threads, epochs = set(), []

        def plain(path: str) -> str:
            threads.add(threading.get_ident())
            epochs.append(current_item().epoch)
            return path

        await made.run(plain, per="path")
        assert threading.get_ident() not in threads
        assert epochs == [1] * 4

        other = await machine(4)

        async def later(item: WorkItem) -> str:
            return item.work_paths[0]

        await other.run(lambda item: later(item))
        assert sorted(flag.result for flag in other.flags().values()) == ["p000", "p001", "p002", "p003"]

    trio.run(main)


@pytest.mark.parametrize(
    "bad", [{1, 2}, float("nan"), object(), b"bytes", "x" * (4 * 1024 * 1024 + 1)], ids=lambda bad: type(bad).__name__
)
@virtual
async def test_a_result_that_cannot_be_kept(bad: object) -> None:
    """What is no JSON, or too much, fails the attempt with an error that says what to do; nothing is written."""
    made = await machine(1, max_attempts=1)

    async def handler(item: WorkItem) -> object:
        return bad

    summary = await made.run(handler)

    assert (summary.done, summary.dead) == (0, 1)
    assert made.failures()[0].kind == "HandlerError"
    assert not made.flags()


@pytest.mark.parametrize(
    "raising",
    [SystemExit(3), StopIteration("x"), ExceptionGroup("two", [ValueError("a"), KeyError("b")])],
    ids=lambda error: type(error).__name__,
)
@virtual
async def test_odd_exceptions_are_failures(raising: BaseException) -> None:
    """Whatever a handler raises, short of an interrupt, is a failure of its group alone."""
    made = await machine(3, max_attempts=1)

    async def handler(item: WorkItem) -> None:
        if item.work_paths == ("p001",):
            raise raising

    summary = await made.run(handler)

    assert (summary.done, summary.dead) == (2, 1)


@virtual
async def test_a_handler_that_cancels_itself() -> None:
    """A cancellation that is not ours is the handler's failure, not the end of the worker."""
    made = await machine(3, max_attempts=1)

    async def handler(item: WorkItem) -> None:
        if item.work_paths == ("p001",):
            with trio.CancelScope() as scope:
                scope.cancel()
                try:
                    await anyio.sleep(1)
                except trio.Cancelled as error:
                    kept = error
            raise kept

    summary = await made.run(handler)

    assert (summary.done, summary.dead) == (2, 1)


@virtual
async def test_a_call_that_takes_too_long() -> None:
    """`timeout` ends a call that hangs; it counts as an attempt (B19)."""
    made = await machine(2, max_attempts=2)

    async def handler(item: WorkItem) -> None:
        if item.work_paths == ("p001",):
            await anyio.sleep_forever()

    summary = await made.run(handler, timeout=100)

    assert (summary.done, summary.failed, summary.dead) == (1, 2, 1)
    assert "timeout of 100 s" in made.failures()[0].error


@virtual
async def test_long_work_is_renewed() -> None:
    """An item of many lease times runs once, though others look for work all the while (B26)."""
    made = await machine(1)
    other = Machine(made.bucket, 2)
    calls = []

    async def handler(item: WorkItem) -> None:
        calls.append(item.epoch)
        await anyio.sleep(1000)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run, handler)
        await anyio.sleep(5)
        summary = await other.run(handler)

    assert calls == [1]
    assert summary.complete
    assert len(made.saw("lease.renewed")) == pytest.approx(100, abs=3)


@virtual
async def test_a_lost_lease_stops_its_handler() -> None:
    """Once another's lock is there the handler is cancelled at the next renewal, and others go on (B30)."""
    made = await machine(2)
    cancelled = []

    async def handler(item: WorkItem) -> None:
        try:
            await anyio.sleep(60)
        except trio.Cancelled:
            cancelled.append((item.work_paths, anyio.current_time()))
            raise

    async def steal() -> None:
        await anyio.sleep(15)
        (lock, *_), _ = made.bucket.slice(keys.LOCKS, None, 1)
        thief = LockRecord(state=LockState.HELD, token="thief", epoch=2, ttl=20.0, owner="thief")
        await made.memory.put(lock.key, thief.encode(), OVERWRITE)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(steal)
        summary = await made.run(handler)

    assert len(cancelled) == 1
    assert cancelled[0][1] < 15 + OPTIONS.lease_ttl / 3 + 1
    assert (summary.done, summary.lost, len(made.flags())) == (2, 1, 2)


@virtual
async def test_nothing_begins_once_the_lease_ran_out() -> None:
    """A process that was stopped goes on where it was: calls were about to begin, on a lease that is over."""
    one = await machine(3, 3)
    began: list[tuple[int, str]] = []

    async def handler(path: str) -> None:
        began.append((current_item().epoch, path))
        if len(began) == 1:
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, trio.testing.MockClock)
            clock.jump(OPTIONS.lease_ttl)
        await anyio.sleep(1)

    summary = await one.run(handler, per="path", workers=3)

    assert [path for epoch, path in began if epoch == 1] == [began[0][1]]
    assert sorted(path for epoch, path in began if epoch == 2) == ["p000", "p001", "p002"]
    assert (summary.lost, summary.done) == (1, 1)


@virtual
async def test_an_unreachable_store_stops_the_handler_in_time() -> None:
    """Without a renewal the handler is cancelled `margin` before the lease ends, never after (B21, B30)."""
    made = await machine(1)
    stopped = []

    async def handler(item: WorkItem) -> None:
        made.store.script("put", "worker_locks", Fault.FAILS_BEFORE, times=10**6)
        try:
            await anyio.sleep_forever()
        finally:
            stopped.append(anyio.current_time())
            made.store.calm()
            handled.set()

    handled = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run, handler)
        await handled.wait()
        tasks.cancel_scope.cancel()

    assert stopped[0] <= OPTIONS.lease_ttl - OPTIONS.margin + 0.2


@virtual
async def test_drain() -> None:
    """Told to stop, a pool claims nothing more, lets calls end within the grace, and hands the rest back (B28)."""
    made = await machine(30)
    other = Machine(made.bucket, 2)
    began: list[float] = []
    ended = []

    async def handler(item: WorkItem) -> None:
        began.append(anyio.current_time())
        await anyio.sleep(5 if len(began) == 1 else 1000)
        ended.append(item.hash)

    async def stop() -> None:
        await anyio.sleep(2)
        made.queue.stop()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stop)
        summary = await made.run(handler, workers=3, grace=10)

    assert anyio.current_time() == pytest.approx(12, abs=1)
    assert len(began) == 3
    assert (summary.done, summary.stopped, summary.unfinished) == (1, True, 29)
    assert {lock.state for lock in made.locks()} == {LockState.FREE}
    assert {lock.failures for lock in made.locks()} == {0}

    async def quick(item: WorkItem) -> None:
        ended.append(item.hash)

    since = anyio.current_time()
    await other.run(quick)
    assert len(set(ended)) == len(ended) == 30
    assert anyio.current_time() - since < 5


@virtual
async def test_a_stop_reaches_workers_that_wait() -> None:
    """Also when there are fewer groups than workers: those that have nothing to do do not hold up the end."""
    made = await machine(2)

    async def handler(item: WorkItem) -> None:
        made.queue.stop()
        await anyio.sleep(1000)

    summary = await made.run(handler, workers=8, grace=10)

    assert (summary.done, summary.stopped, summary.unfinished) == (0, True, 2)
    assert anyio.current_time() == pytest.approx(10, abs=1)


@virtual
async def test_after_a_run_the_queue_works_on() -> None:
    """A run that was stopped, even before it began, leaves a queue that runs again and that can be used by hand."""
    made = await machine(3)

    async def stop_itself(item: WorkItem) -> None:
        made.queue.stop()

    summary = await made.run(stop_itself, workers=1)
    assert (summary.done, summary.stopped) == (1, True)
    item = await made.queue.get_work()
    assert item is not None
    await made.queue.mark_done(item)

    assert (await made.run(stop_itself, workers=1)).done == 1


@virtual
async def test_a_cancelled_run_hands_everything_back() -> None:
    """Cancelling `run` from outside releases what it held, in spite of the cancellation."""
    made = await machine(30)

    async def handler(item: WorkItem) -> None:
        await anyio.sleep_forever()

    with anyio.move_on_after(3):
        await made.run(handler, workers=4)

    assert {lock.state for lock in made.locks()} == {LockState.FREE}


@virtual
async def test_cancellation_at_any_moment() -> None:
    """Whenever `run` is cancelled it ends soon, and no lease of it outlives it by more than the hand-back (B21)."""
    for tick in range(60):
        made = await machine(10)

        async def handler(item: WorkItem) -> None:
            await anyio.sleep(0.03)

        began = anyio.current_time()
        with anyio.move_on_after(tick * 0.004):
            await made.run(handler, workers=4)

        assert anyio.current_time() - began < tick * 0.004 + 1
        # A lock whose group is done guards nothing: it may be left to be swept.
        status = await made.queue.status()
        assert (status.leased, status.expired) == (0, 0), tick


@virtual
async def test_an_error_that_ends_the_search() -> None:
    """An index that gets damaged stops claiming; what runs is finished first, and nothing is written over it."""
    made = await machine(3, index_refresh=1)
    ended = []

    async def handler(item: WorkItem) -> None:
        await made.memory.put(keys.INDEX, b"garbage", OVERWRITE)
        await anyio.sleep(5)
        ended.append(item.hash)

    with pytest.raises(DamagedWorkspace):
        await made.run(handler, workers=1)

    assert ended
    assert made.bucket.find(keys.INDEX).data == b"garbage"


@virtual
async def test_an_outage_is_outlasted() -> None:
    """A store that answers nothing for minutes loses no group and ends no run."""
    made = await machine(10)

    async def handler(item: WorkItem) -> None:
        await anyio.sleep(1)

    async def outage() -> None:
        await anyio.sleep(2)
        for verb in ("get", "put", "head", "list", "delete"):
            made.store.script(verb, "", Fault.FAILS_BEFORE, times=10**6)
        await anyio.sleep(300)
        made.store.calm()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outage)
        summary = await made.run(handler, workers=2)

    assert summary.complete
    assert len(made.flags()) == 10


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"workers": 0}, "workers"),
        ({"workers": 1.5}, "workers"),
        ({"per": "paths"}, "per"),
        ({"timeout": 0}, "timeout"),
        ({"grace": -1}, "grace"),
    ],
)
@virtual
async def test_nonsense_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    """A wrong argument is named before anything is claimed."""
    made = await machine(1)

    with pytest.raises(ConfigurationError, match=complaint):
        await made.run(print, **arguments)

    assert not made.locks()


def test_a_blocked_loop_is_reported_and_the_lapsed_lease_handled() -> None:
    """A coroutine that computes is named; its lapsed lease is renewed by compare-and-swap before it completes (B27)."""

    async def main() -> None:
        made = await machine(1, lease_ttl=1.5, margin=0.25, block_warning=0.2)

        async def computes(item: WorkItem) -> str:
            time.sleep(1.7)  # noqa: ASYNC251 - the fault under test: it holds the event loop up
            return "done"

        summary = await made.run(computes)

        (report,) = made.saw("loop.blocked")
        assert "computes" in report.fields["handler"]
        assert "test_pool.py" in report.fields["where"]
        assert summary.done + summary.lost >= 1

    trio.run(main)
