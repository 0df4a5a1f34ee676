"""The start-up check on a store that does not answer."""

from __future__ import annotations

import anyio
import pytest

from s3queue import StoreUnsuitable, Unanswered
from s3queue._events import Events
from s3queue._runtime import SeededRuntime
from s3queue._store_check import Scratch, check_store
from s3queue.stores import MemoryStore, PutMode, Written
from s3queue.stores._port import CREATE, OVERWRITE
from tests.virtual import virtual


class Hanging(MemoryStore):
    """Answers no PUT."""

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        await anyio.sleep_forever()
        raise AssertionError


@virtual
async def test_a_store_that_hangs_is_not_one_that_refuses() -> None:
    """Time is up before the first answer: that says nothing of conditional writes."""
    runtime = SeededRuntime(0)

    with pytest.raises(Unanswered, match="no answer to a PUT"):
        await Scratch(Hanging(runtime), runtime).put("key", b"", CREATE)


class HangingInTheRace(MemoryStore):
    """Leaves the first so many racers without an answer; what they wrote stands, if `applied`."""

    def __init__(self, runtime: SeededRuntime, racers: int, *, applied: bool = False) -> None:
        super().__init__(runtime)
        self._left = racers
        self._applied = applied

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        if key.endswith("race") and self._left:
            self._left -= 1
            await anyio.sleep(1)
            if self._applied:
                await super().put(key, data, OVERWRITE)
            await anyio.sleep_forever()
        return await super().put(key, data, mode)


@virtual
async def test_a_racer_without_an_answer_does_not_matter() -> None:
    """SeaweedFS under load answers one of sixteen late, or never: the others show who won."""
    runtime = SeededRuntime(0)

    await check_store(HangingInTheRace(runtime, 3), runtime, Events())


@virtual
async def test_a_race_without_answers_says_nothing() -> None:
    """Without a winner nobody can tell."""
    runtime = SeededRuntime(0)

    with pytest.raises(Unanswered, match="no answer to a PUT"):
        await check_store(HangingInTheRace(runtime, 1000), runtime, Events())


@virtual
async def test_a_racer_without_an_answer_must_not_win_later() -> None:
    """Its write over the winner's is what a conditional create must not be."""
    runtime = SeededRuntime(0)

    with pytest.raises(StoreUnsuitable, match="was written over the first"):
        await check_store(HangingInTheRace(runtime, 1, applied=True), runtime, Events())
