"""The worker pool and the queue around it, in virtual time over the memory store."""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from itertools import pairwise
from typing import Any

import anyio
import pytest
import trio

from s3queue import (
    Backend,
    ConfigurationError,
    DamagedWorkspace,
    Event,
    InvalidPath,
    LeaseLost,
    PermanentError,
    QueueOptions,
    RetryLater,
    WorkItem,
    WorkQueue,
    current_item,
)
from s3queue import _keys as keys
from s3queue._records import Failure, Flag, LockRecord, LockState
from s3queue._runtime import SeededRuntime
from s3queue.stores import OVERWRITE, MemoryBucket, MemoryStore
from s3queue.testing import Fault, FaultyStore
from tests.virtual import virtual

OPTIONS = QueueOptions(lease_ttl=30, backoff=2, block_warning=0, check_store=False, request_timeout=5, retry_for=8)


class Machine:
    """One process's queue on a shared bucket."""

    def __init__(self, bucket: MemoryBucket, seed: int = 1, **options: Any) -> None:
        runtime = SeededRuntime(seed)
        values = {name: getattr(OPTIONS, name) for name in OPTIONS.__slots__}
        self.bucket = bucket
        self.memory = MemoryStore(runtime, bucket, latency=0.01)
        self.store = FaultyStore(self.memory, runtime)
        self.events: list[Event] = []
        self.queue = WorkQueue(
            Backend(self.store),
            options=QueueOptions(**{**values, **options}),
            runtime=runtime,
            observer=self.events.append,
        )
        self.run = functools.partial(self.queue.run, handle_signals=False)

    def saw(self, name: str) -> list[Event]:
        return [event for event in self.events if event.name == name]

    def flags(self) -> dict[str, Flag]:
        found, _ = self.bucket.slice(keys.FLAGS, None, 10**6)
        return {item.key: Flag.decode(self.bucket.find(item.key).data) for item in found}

    def locks(self) -> list[LockRecord]:
        found, _ = self.bucket.slice(keys.LOCKS, None, 10**6)
        return [LockRecord.decode(self.bucket.find(item.key).data) for item in found]

    def failures(self) -> list[Failure]:
        found, _ = self.bucket.slice(keys.FAILURES, None, 10**6)
        return [Failure.decode(self.bucket.find(item.key).data) for item in found]


async def machine(paths: int, per_group: int = 1, **options: Any) -> Machine:
    made = Machine(MemoryBucket(), **options)
    await made.queue.populate_queue([f"p{i:03}" for i in range(paths)], per_group)
    return made


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
    assert sorted(value for flag in by_path.flags().values() for value in flag.result) == [f"P{i:03}" for i in range(6)]


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
    (flag,) = made.flags().values()
    assert flag.result == [f"p{i:03}" for i in range(5)]
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
