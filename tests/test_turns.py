"""Turns: how many handlers run at a time."""

from __future__ import annotations

import anyio
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from s3queue._turns import Turns
from tests.virtual import virtual


class Crowd:
    """Tasks that each take a turn for some time, and what they saw."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns
        self.running: set[str] = set()
        self.most = 0
        self.began: list[str] = []
        self.ended: list[str] = []
        self.refused: list[str] = []

    async def shared(self, name: str, seconds: float = 1) -> None:
        async with self.turns.shared() as taken:
            await self._run(name, seconds, taken)

    async def alone(self, name: str, seconds: float = 1) -> None:
        async with self.turns.alone() as taken:
            await self._run(name, seconds, taken)
            assert not taken or not self.running

    async def _run(self, name: str, seconds: float, taken: bool) -> None:
        if not taken:
            self.refused.append(name)
            return
        self.running.add(name)
        self.began.append(name)
        self.most = max(self.most, len(self.running))
        await anyio.sleep(seconds)
        self.running.discard(name)
        self.ended.append(name)


@virtual
async def test_so_many_at_a_time_in_their_order() -> None:
    """No more than `count` run, and who came first goes first."""
    crowd = Crowd(Turns(3))

    async with trio.open_nursery() as tasks:
        for i in range(12):
            tasks.start_soon(crowd.shared, f"{i:02}")
            await wait_all_tasks_blocked()

    assert (crowd.most, crowd.turns.busy) == (3, 0)
    assert [set(crowd.began[i : i + 3]) for i in range(0, 12, 3)] == [
        {f"{i + j:02}" for j in range(3)} for i in range(0, 12, 3)
    ]
    assert anyio.current_time() == pytest.approx(4)


@virtual
async def test_alone() -> None:
    """Who is alone starts after those that run, before those that wait, and nobody runs beside it."""
    crowd = Crowd(Turns(3))

    async with trio.open_nursery() as tasks:
        for name in ("a", "b"):
            tasks.start_soon(crowd.shared, name)
        await wait_all_tasks_blocked()
        tasks.start_soon(crowd.alone, "alone", 5)
        tasks.start_soon(crowd.alone, "alone too", 5)
        await wait_all_tasks_blocked()
        tasks.start_soon(crowd.shared, "c")
        await anyio.sleep(2)
        assert crowd.running in ({"alone"}, {"alone too"})

    assert set(crowd.ended) == {"a", "b", "c", "alone", "alone too"}
    assert crowd.turns.busy == 0


@virtual
async def test_resize() -> None:
    """More start at once; of fewer, those that run end first."""
    crowd = Crowd(Turns(2))

    async with trio.open_nursery() as tasks:
        for i in range(20):
            tasks.start_soon(crowd.shared, str(i))
        await wait_all_tasks_blocked()
        assert len(crowd.running) == 2
        crowd.turns.resize(5)
        await wait_all_tasks_blocked()
        assert len(crowd.running) == 5
        crowd.turns.resize(1)
        await anyio.sleep(1.5)
        assert len(crowd.running) == 1

    assert len(crowd.ended) == 20


@virtual
async def test_resize_while_somebody_is_alone() -> None:
    """Neither is stuck, whichever way the number goes."""
    for count in (1, 9):
        crowd = Crowd(Turns(4))

        async with trio.open_nursery() as tasks:
            for i in range(4):
                tasks.start_soon(crowd.shared, str(i), 1 + i)
            await wait_all_tasks_blocked()
            tasks.start_soon(crowd.alone, "alone")
            for i in range(4, 12):
                tasks.start_soon(crowd.shared, str(i))
            await anyio.sleep(2.5)
            crowd.turns.resize(count)

        assert len(crowd.ended) == 13
        assert crowd.turns.busy == 0


@virtual
async def test_pause() -> None:
    """Nobody starts while paused, not even alone; then all go on."""
    crowd = Crowd(Turns(2))

    async with trio.open_nursery() as tasks:
        tasks.start_soon(crowd.shared, "a")
        await wait_all_tasks_blocked()
        crowd.turns.pause()
        tasks.start_soon(crowd.shared, "b")
        tasks.start_soon(crowd.alone, "alone")
        await anyio.sleep(10)
        assert crowd.ended == ["a"]
        crowd.turns.resume()

    assert set(crowd.ended) == {"a", "b", "alone"}


@virtual
async def test_close() -> None:
    """Who runs goes on; who waits, or comes later, gets no turn."""
    crowd = Crowd(Turns(1))

    async with trio.open_nursery() as tasks:
        tasks.start_soon(crowd.shared, "a")
        await wait_all_tasks_blocked()
        tasks.start_soon(crowd.shared, "b")
        tasks.start_soon(crowd.alone, "alone")
        await wait_all_tasks_blocked()
        crowd.turns.close()
        tasks.start_soon(crowd.shared, "late")
        await wait_all_tasks_blocked()
        assert set(crowd.refused) == {"b", "alone", "late"}

    assert crowd.ended == ["a"]


@virtual
async def test_cancelled_while_waiting() -> None:
    """A turn that nobody takes any more goes to the next one, whenever the cancellation comes."""
    for tick in range(6):
        crowd = Crowd(Turns(1))

        async with trio.open_nursery() as tasks:
            tasks.start_soon(crowd.shared, "a", 1)
            await wait_all_tasks_blocked()
            for kind in (crowd.shared, crowd.alone):
                with trio.move_on_after(0.5 + tick * 0.25):
                    await kind("cancelled", 10)
            tasks.start_soon(crowd.shared, "b", 1)

        assert crowd.ended == ["a", "b"]
        assert crowd.turns.busy == 0
