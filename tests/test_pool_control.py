"""A pool in the background of a program: pause, resume, resize, drain, its numbers, its end. In virtual time."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.from_thread
import pytest
import trio

from s3queue import ConfigurationError, DamagedWorkspace, LeaseLost, WorkItem
from s3queue import _keys as keys
from s3queue._records import LockState
from s3queue.stores import OVERWRITE
from tests.machines import Machine, machine
from tests.virtual import virtual


class Calls:
    """A handler of paths or groups that takes some time, and how many of its calls ran when."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.seconds = seconds
        self.running = 0
        self.most = 0
        self.began: list[str] = []
        self.ended: list[str] = []

    async def __call__(self, argument: WorkItem | str) -> None:
        name = argument if isinstance(argument, str) else argument.work_paths[0]
        self.began.append(name)
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            await anyio.sleep(self.seconds)
            self.ended.append(name)
        finally:
            self.running -= 1


def leased(made: Machine) -> int:
    """Groups that somebody holds."""
    return sum(lock.state is LockState.HELD for lock in made.locks())


@virtual
async def test_it_works_in_the_background() -> None:
    """The block goes on meanwhile; `wait` tells how it went, and leaving the block afterwards takes no time."""
    made, calls = await machine(20), Calls()

    async with made.queue.pool(calls, workers=4) as pool:
        assert calls.began == []
        await anyio.sleep(2.5)
        assert calls.running == 4
        summary = await pool.wait()
        ended = anyio.current_time()

    assert anyio.current_time() == ended
    assert (summary.done, summary.complete, summary.stopped, summary.done_paths) == (20, True, False, 20)
    assert sorted(calls.ended) == sorted(f"p{i:03}" for i in range(20))
    assert (pool.stats().state, pool.stats().done) == ("ended", 20)


@virtual
async def test_leaving_the_block_drains() -> None:
    """What runs gets the pool's grace; what is longer is handed back, and so is what was claimed ahead."""
    made = await machine(200)
    seconds = iter([3.0, 100.0])
    ended = []

    async def handler(item: WorkItem) -> None:
        await anyio.sleep(next(seconds))
        ended.append(item.hash)

    async with made.queue.pool(handler, workers=2, grace=10) as pool:
        await anyio.sleep(1)

    assert anyio.current_time() == pytest.approx(11, abs=1)
    assert (len(ended), leased(made)) == (1, 0)
    summary = await pool.wait()
    assert (summary.done, summary.stopped, summary.unfinished) == (1, True, 199)


@pytest.mark.parametrize("how", ["error", "cancellation"])
@virtual
async def test_leaving_in_a_hurry(how: str) -> None:
    """An exception of the block, or a cancellation from outside, hands everything back at once."""
    made, calls = await machine(200), Calls(100)

    with anyio.move_on_after(5), pytest.raises(KeyError) if how == "error" else anyio.CancelScope():
        async with made.queue.pool(calls, workers=8) as pool:
            await anyio.sleep(3 if how == "error" else 100)
            raise KeyError("mine")

    assert anyio.current_time() < 6
    assert (calls.running, leased(made)) == (0, 0)
    assert (await pool.wait()).stopped


@virtual
async def test_a_group_of_exceptions_comes_out_as_it_is() -> None:
    """What the program raises in the block is its own affair."""
    made = await machine(3)

    with pytest.raises(ExceptionGroup) as caught:
        async with made.queue, made.queue.pool(Calls()):
            raise ExceptionGroup("mine", [KeyError("a"), ValueError("b")])

    assert [type(error) for error in caught.value.exceptions] == [KeyError, ValueError]


@virtual
async def test_errors_surface_in_the_host() -> None:
    """What ends the search for work cancels the block and comes out of it plainly, after what ran has ended."""
    made, calls = await machine(3, index_refresh=1), Calls(5)
    went_on = False

    with pytest.raises(DamagedWorkspace):  # noqa: PT012 - what is told before it comes is the point
        async with made.queue.pool(calls, workers=4) as pool:
            await anyio.sleep(0.5)
            await made.memory.put(keys.INDEX, b"garbage", OVERWRITE)
            await anyio.sleep(3.5)
            assert pool.stats().state == "stopping"
            assert pool.stats().error.startswith("DamagedWorkspace: ")
            await anyio.sleep(1000)
            went_on = True

    assert not went_on
    assert len(calls.ended) == 3
    assert pool.stats().state == "failed"
    with pytest.raises(DamagedWorkspace):
        await pool.wait()


@virtual
async def test_pause_and_resume() -> None:
    """Paused, no call starts, and nothing is held ahead; the groups under way keep their leases, however long."""
    made, calls = await machine(400, 20), Calls()

    async with made.queue, made.queue.pool(calls, workers=8, per="path") as pool:
        await anyio.sleep(2.5)
        pool.pause()
        began = len(calls.began)
        await anyio.sleep(500)
        assert (len(calls.began), calls.running, pool.stats().state) == (began, 0, "paused")
        assert 1 <= leased(made) == pool.stats().groups <= 2
        assert pool.stats().ahead == 0
        pool.resume()
        await pool.wait()

    assert sorted(calls.ended) == sorted(calls.began) == sorted(f"p{i:03}" for i in range(400))
    assert not made.saw("lease.lost")


@virtual
async def test_pausing_hastily() -> None:
    """In whatever order, and however quickly, it is paused and resumed: everything runs once."""
    for tick in range(40):
        made, calls = await machine(12), Calls(0.02)

        async with made.queue.pool(calls, workers=3) as pool:
            for i in range(5):
                await anyio.sleep(tick * 0.003)
                pool.pause()
                await anyio.sleep(0.01 * (i % 3))
                pool.resume()
                pool.pause()
                pool.resume()
            summary = await pool.wait()

        assert (summary.done, len(calls.began)) == (12, 12), tick
        assert leased(made) == 0


@virtual
async def test_stopping_while_paused() -> None:
    """Nothing starts in the grace; groups whose calls have ended are handed back at once, with what is done of them."""
    made, calls = await machine(40, 20), Calls(5)

    async with made.queue.pool(calls, workers=4, per="path", grace=1000) as pool:
        await anyio.sleep(7)
        pool.pause()

    assert anyio.current_time() == pytest.approx(10, abs=1)
    assert (len(calls.began), len(calls.ended), leased(made)) == (8, 8, 0)
    assert (await pool.wait()).done_paths == 8
    await made.run(calls, per="path", workers=40)
    assert len(calls.began) == 40


@virtual
async def test_resize() -> None:
    """More calls run at once, also of a group under way; fewer as soon as what runs has ended."""
    for per_group in (1, 400):
        made, calls = await machine(400, per_group), Calls()

        async with made.queue.pool(calls, workers=2, per="path") as pool:
            await anyio.sleep(2.5)
            assert calls.running == 2
            pool.resize(10)
            await anyio.sleep(1.7)
            assert calls.running == 10
            pool.resize(3)
            await anyio.sleep(1.8)
            assert (calls.running, pool.stats().workers, pool.stats().running) == (3, 3, 3)
            pool.resize(50)
            summary = await pool.wait()

        assert (calls.most, len(calls.began), summary.done_paths) == (50, 400, 400)
        with pytest.raises(ConfigurationError, match="workers"):
            pool.resize(0)


def test_resize_of_threads() -> None:
    """Plain functions get as many threads as there are calls."""

    async def main() -> None:
        made = await machine(12)
        gate = anyio.Event()

        def blocks(item: WorkItem) -> None:
            anyio.from_thread.run(gate.wait)

        async with made.queue.pool(blocks, workers=2) as pool:
            for workers in (2, 6):
                pool.resize(workers)
                while pool.stats().running < workers:  # noqa: ASYNC110 - its numbers are what is tested
                    await anyio.sleep(0.01)
            gate.set()
            assert (await pool.wait()).done == 12

    trio.run(main)


@virtual
async def test_drain() -> None:
    """It waits for the groups under way, claims nothing meanwhile, and leaves a paused pool that can go on."""
    made, calls = await machine(60, 5), Calls()

    async with made.queue, made.queue.pool(calls, workers=5, per="path") as pool:
        await anyio.sleep(2.5)
        await pool.drain()
        assert (calls.running, leased(made), pool.stats().groups, pool.stats().ahead) == (0, 0, 0, 0)
        assert pool.stats().state == "paused"
        assert len(calls.ended) == 5 * pool.stats().done
        await anyio.sleep(100)
        assert len(calls.began) == len(calls.ended) == 5 * pool.stats().done < 60
        pool.pause()
        await pool.drain()
        pool.resume()
        assert (await pool.wait()).done == 12


@virtual
async def test_a_drain_that_is_given_up() -> None:
    """By cancellation it goes on draining, by `resume` it is over."""
    made, calls = await machine(6), Calls(10)

    async with made.queue.pool(calls, workers=2) as pool:
        await anyio.sleep(5)
        with anyio.move_on_after(1) as given_up:
            await pool.drain()
        assert given_up.cancelled_caught
        assert pool.stats().state == "draining"
        await anyio.sleep(20)
        assert (pool.stats().groups, pool.stats().done) == (0, 2)
        pool.resume()
        async with anyio.create_task_group() as tasks:
            await anyio.sleep(5)
            tasks.start_soon(pool.drain)
            await anyio.sleep(1)
            pool.resume()
        assert pool.stats().state == "running"
        assert (await pool.wait()).done == 6


@virtual
async def test_its_numbers() -> None:
    """`stats` tells what runs, what is held, and what has become of the rest."""
    made = await machine(20, 2, max_attempts=1)

    async def handler(path: str) -> None:
        await anyio.sleep(1)
        if path == "p003":
            raise ValueError(path)

    async with made.queue.pool(handler, workers=4, per="path") as pool:
        assert (pool.stats().state, pool.stats().running, pool.stats().done) == ("running", 0, 0)
        await anyio.sleep(1.5)
        now = pool.stats()
        assert (now.running, now.workers, now.groups) == (4, 4, 2)
        assert now.seconds == pytest.approx(1.5)
        assert "4/4" in repr(pool)
        summary = await pool.wait()

    last = pool.stats()
    assert (last.state, last.running, last.groups, last.ahead) == ("ended", 0, 0, 0)
    assert (last.done, last.failed, last.done_paths, last.failed_paths) == (9, 1, 19, 1)
    assert (summary.done_paths, summary.failed_paths) == (19, 1)
    await anyio.sleep(5)
    assert pool.stats().seconds == summary.seconds


@virtual
async def test_forever() -> None:
    """It waits for the index to grow, for hours, at a request or two a minute, and starts what is added soon."""
    made, calls = await machine(3), Calls()
    other = Machine(made.bucket, seed=2)

    async with made.queue.pool(calls, workers=4, forever=True) as pool:
        await anyio.sleep(3600)
        assert (len(calls.ended), pool.stats().state) == (3, "running")
        await other.queue.populate_queue(["added"])
        await anyio.sleep(40)
        assert len(calls.ended) == 4
        requests = made.queue._workspace.store.requests
        before = sum(requests.values())
        await anyio.sleep(3600)
        assert 0 < sum(requests.values()) - before <= 125

    summary = await pool.wait()
    assert (summary.done, summary.stopped, summary.unfinished) == (4, True, 0)


@virtual
async def test_forever_tries_again_what_somebody_revives() -> None:
    """Also a dead group, when all others are done: nothing in the index says so."""
    made = await machine(2, max_attempts=1)
    other = Machine(made.bucket, seed=2)
    broken = True

    async def handler(item: WorkItem) -> None:
        if broken and item.work_paths == ("p001",):
            raise ValueError("broken")

    async with made.queue.pool(handler, forever=True) as pool:
        await anyio.sleep(600)
        assert (pool.stats().done, pool.stats().failed) == (1, 1)
        broken = False
        assert await other.queue.retry() == 1
        await anyio.sleep(60)
        assert pool.stats().done == 2


@virtual
async def test_one_pool_at_a_time() -> None:
    """A second one is refused in one line, which says what to do; after the first one it is welcome."""
    made, calls = await machine(4), Calls()

    async with made.queue, made.queue.pool(calls) as pool:
        with pytest.raises(ConfigurationError, match="open the workspace a second time"):
            async with made.queue.pool(calls):
                pass
        with pytest.raises(ConfigurationError, match="has a pool"):
            await made.run(calls)
        await pool.wait()

    async with made.queue.pool(calls) as second:
        assert (await second.wait()).done == 0


@virtual
async def test_items_held_by_hand_are_left_alone() -> None:
    """A pool hands back what is its own: neither a run on a bare queue nor one on an open one ends others' items."""
    for is_open in (False, True):
        made, calls = await machine(10), Calls()

        async def main(made: Machine = made, calls: Calls = calls) -> None:
            mine = await made.queue.get_work()
            assert mine is not None
            async with made.queue.pool(calls, workers=2):
                await anyio.sleep(1.5)
                another = await made.queue.get_work(wait=True)
                assert another is not None
            await made.queue.mark_done(mine)
            await made.queue.mark_done(another)

        if is_open:
            async with made.queue:
                await main()
        else:
            await main()

        assert len(made.flags()) == len(calls.ended) + 2
        assert len(set(calls.ended)) == len(calls.ended)


@virtual
async def test_by_hand_while_paused() -> None:
    """Whoever asks for work by hand gets it, though the pool claims nothing; at the end all is handed back."""
    made, calls = await machine(4), Calls()

    async with made.queue:
        async with made.queue.pool(calls, workers=1) as pool:
            await anyio.sleep(0.5)
            pool.pause()
            held = [await made.queue.get_work() for _ in range(4)]
            assert sum(item is not None for item in held) == 3
        assert leased(made) == 3
    assert leased(made) == 0
    with pytest.raises(LeaseLost):
        await made.queue.mark_done(next(item for item in held if item is not None))


@virtual
async def test_whoever_waits_by_hand_is_served_to_the_end() -> None:
    """`get_work(wait=True)` beside a pool that is paused, resumed and stopped: it gets work, or the end of it."""
    made, calls = await machine(12), Calls()
    got: list[str] = []

    async def by_hand() -> None:
        while (item := await made.queue.get_work(wait=True)) is not None:
            got.append(item.hash)
            await anyio.sleep(1)
            await made.queue.mark_done(item)

    async with made.queue, anyio.create_task_group() as tasks:
        tasks.start_soon(by_hand)
        async with made.queue.pool(calls, workers=2) as pool:
            await anyio.sleep(1.5)
            pool.pause()
            await anyio.sleep(1.5)
            pool.resume()
            await anyio.sleep(1)

    assert len(made.flags()) == 12
    assert len(got) + len(calls.ended) == 12


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [({"forever": True, "wait": False}, "forever"), ({"workers": True}, "workers"), ({"grace": -1}, "grace")],
)
@virtual
async def test_nonsense_is_refused(arguments: dict[str, Any], complaint: str) -> None:
    """Before anything is claimed."""
    made = await machine(1)

    with pytest.raises(ConfigurationError, match=complaint):
        async with made.queue.pool(print, **arguments):
            pass

    assert not made.locks()
