"""The pace: one window for all requests of a store, which narrows when it throttles and widens again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import anyio
import pytest

from s3queue._errors import Throttled
from s3queue._events import Events
from s3queue._runtime import SeededRuntime
from s3queue.stores import CREATE, MemoryStore, PutMode, Version
from s3queue.stores._pace import Pace
from s3queue.stores._port import Replace, Written
from s3queue.stores._retry import RetryingStore
from tests.virtual import virtual

RATE, LATENCY = 100, 0.05


@dataclass
class Limited(MemoryStore):
    """A store that takes `RATE` writes a second, with bursts of a tenth of that, and refuses the others as S3 does."""

    runtime: SeededRuntime
    refused: int = 0
    taken: list[str] = field(default_factory=list)
    tokens: float = RATE / 10
    filled: float = 0.0

    def __post_init__(self) -> None:
        super().__init__(self.runtime, latency=LATENCY)

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        now = self.runtime.monotonic()
        self.tokens = min(RATE / 10, self.tokens + (now - self.filled) * RATE)
        self.filled = now
        if self.tokens < 1:
            self.refused += 1
            await self.runtime.sleep(LATENCY)
            raise Throttled("SlowDown")
        self.tokens -= 1
        self.taken.append(key)
        return await super().put(key, data, mode)


async def crowd(count: int, pace: Pace) -> tuple[Limited, float]:
    """`count` writes at once; the store, and how long they took."""
    runtime = SeededRuntime(1)
    store = Limited(runtime)
    retrying = RetryingStore(store, runtime, timeout=10, retry_for=600, events=Events(), pace=pace)
    began = runtime.monotonic()
    async with anyio.create_task_group() as tasks:
        for i in range(count):
            tasks.start_soon(retrying.put, f"key-{i}", b"", CREATE)
    return store, runtime.monotonic() - began


class Unbounded(Pace):
    """A pace that never narrows."""

    def leave(self, era: int, *, throttled: bool) -> bool:
        return super().leave(era, throttled=False)


@virtual
async def test_a_throttled_store_is_asked_as_much_as_it_takes() -> None:
    """After the first burst few requests are refused, and the store is kept busy; without the pace most are refused."""
    paced, seconds = await crowd(600, Pace())
    rushed, _ = await crowd(600, Unbounded())

    assert len(paced.taken) == len(rushed.taken) == 600
    assert paced.refused < 2 * 600 < 4 * 600 < rushed.refused
    assert seconds < 1.4 * 600 / RATE


@virtual
async def test_a_store_that_does_not_throttle_is_not_held_up() -> None:
    """There is no window before the first refusal."""
    pace = Pace()

    eras = [await pace.enter() for _ in range(10_000)]

    assert pace.window == math.inf
    assert not any(pace.leave(era, throttled=False) for era in eras)
    assert pace.under_way == 0


@virtual
async def test_requests_that_were_refused_together_narrow_it_once() -> None:
    """One bad moment is one halving, and half a place for each request more that met it; the next one is another."""
    pace = Pace()
    eras = [await pace.enter() for _ in range(64)]

    assert [pace.leave(era, throttled=True) for era in eras[:11]] == [True] + [False] * 10
    assert pace.window == 32 - 5
    assert not any(pace.leave(era, throttled=False) for era in eras[11:])
    assert pace.window == 32 - 5

    eras = [await pace.enter() for _ in range(20)]
    assert pace.leave(eras[0], throttled=True)
    assert pace.window == 10


@virtual
async def test_it_widens_while_it_holds_requests_back() -> None:
    """By one for each windowful of answers; not while nobody waits."""
    pace = Pace()
    pace.leave(await pace.enter(), throttled=True)
    assert pace.window == 1

    for _ in range(5):
        pace.leave(await pace.enter(), throttled=False)
    assert pace.window == 1

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(_pass_through, pace)
    assert 8 < pace.window < 12
    assert pace.under_way == 0


@virtual
async def test_who_holds_something_goes_first() -> None:
    """A renewal overtakes the claims that wait."""
    runtime = SeededRuntime(1)
    store = Limited(runtime)
    retrying = RetryingStore(store, runtime, timeout=10, retry_for=600, events=Events())
    version: Version = (await retrying.put("lock", b"", CREATE)).version
    retrying.pace.leave(await retrying.pace.enter(), throttled=True)
    async with anyio.create_task_group() as tasks:
        for i in range(20):
            tasks.start_soon(retrying.put, f"claim-{i}", b"", CREATE)
        await runtime.sleep(LATENCY / 2)
        tasks.start_soon(retrying.put, "lock", b"x", Replace(version))

    assert store.taken.index("lock", 1) <= 3


@virtual
@pytest.mark.parametrize("granted", [False, True])
async def test_a_cancelled_request_leaves_its_place(granted: bool) -> None:
    """Whether it waits still, or was admitted in the same moment."""
    pace = Pace()
    pace.leave(await pace.enter(), throttled=True)
    era = await pace.enter()
    async with anyio.create_task_group() as tasks:
        with anyio.CancelScope() as scope:
            tasks.start_soon(_cancel, scope, pace, era if granted else None)
            await pace.enter()
    assert scope.cancelled_caught

    if not granted:
        pace.leave(era, throttled=False)
    assert pace.under_way == 0
    with anyio.fail_after(1):
        await pace.enter()


async def _cancel(scope: anyio.CancelScope, pace: Pace, era: int | None) -> None:
    await anyio.sleep(1)
    scope.cancel()
    if era is not None:
        pace.leave(era, throttled=False)


async def _pass_through(pace: Pace) -> None:
    era = await pace.enter()
    await anyio.sleep(1)
    pace.leave(era, throttled=False)
