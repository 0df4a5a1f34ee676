"""The faulty store does what it is told, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
import trio.testing

from s3queue._errors import AccessDenied, ConfigurationError, NotFound, StoreError, Throttled, Unanswered, WriteConflict
from s3queue._runtime import Runtime
from s3queue.stores import CREATE, OVERWRITE, MemoryStore
from s3queue.testing import STORE_CHECKS, Fault, FaultyStore, StoreCheck

Test = Callable[[FaultyStore, MemoryStore], Awaitable[None]]


def run(test: Test) -> None:
    """Run in virtual time, with a faulty store around a real one."""

    async def main() -> None:
        real = MemoryStore(Runtime())
        async with FaultyStore(real, Runtime()) as faulty:
            await test(faulty, real)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
def test_without_faults(check: StoreCheck) -> None:
    """It adds nothing of its own: without faults it keeps the contract."""

    async def test(faulty: FaultyStore, real: MemoryStore) -> None:
        await check(faulty)

    run(test)


@pytest.mark.parametrize(
    ("fault", "error", "applied"),
    [
        (Fault.FAILS_BEFORE, Unanswered, False),
        (Fault.THROTTLED, Throttled, False),
        (Fault.CONFLICT, WriteConflict, False),
        (Fault.APPLIED_THEN_ERROR, Unanswered, True),
    ],
)
def test_errors(fault: Fault, error: type[StoreError], applied: bool) -> None:
    """Each kind of failed write raises its error, and is applied or not, as its name says."""

    async def test(faulty: FaultyStore, real: MemoryStore) -> None:
        faulty.script("put", "^locks/", fault)
        await faulty.put("flags/a", b"", CREATE)
        with pytest.raises(error):
            await faulty.put("locks/a", b"1", CREATE)
        assert [item.key for item in (await real.list("locks/")).objects] == (["locks/a"] if applied else [])
        await faulty.put("locks/a", b"2", OVERWRITE)
        assert faulty.log == [("put", "flags/a", None), ("put", "locks/a", fault), ("put", "locks/a", None)]

    run(test)


def test_an_error_of_ones_choice() -> None:
    """A request that fails before it reaches the store may fail with any of the port's errors."""

    async def test(faulty: FaultyStore, real: MemoryStore) -> None:
        faulty.script("put", "a", Fault.FAILS_BEFORE, error=AccessDenied)
        with pytest.raises(AccessDenied, match="put of 'a'"):
            await faulty.put("a", b"", CREATE)
        assert real.requests == {}

    run(test)


def test_a_delay() -> None:
    """A delayed request takes that long, and then succeeds."""

    async def test(faulty: FaultyStore, real: MemoryStore) -> None:
        faulty.script("put", "a", Fault.DELAYED, seconds=5)
        began = trio.current_time()
        await faulty.put("a", b"", CREATE)
        assert trio.current_time() - began == 5

    run(test)


def test_a_write_that_lands_after_it_was_given_up() -> None:
    """The caller hears nothing at once; the write lands later, over whatever is there by then."""

    async def test(faulty: FaultyStore, real: MemoryStore) -> None:
        faulty.script("put", "a", Fault.APPLIED_LATER, seconds=5)
        with pytest.raises(Unanswered):
            await faulty.put("a", b"late", OVERWRITE)
        with pytest.raises(NotFound):
            await faulty.get("a")
        await faulty.put("a", b"meanwhile", CREATE)
        await trio.sleep(6)
        assert (await faulty.get("a")).data == b"late"

    run(test)


def test_leaving_waits_for_late_writes() -> None:
    """A late conditional write keeps its condition, and none outlives the block."""

    async def main() -> None:
        real = MemoryStore(Runtime())
        async with FaultyStore(real, Runtime()) as faulty:
            for key in ("a", "b"):
                faulty.script("put", key, Fault.APPLIED_LATER)
                with pytest.raises(Unanswered):
                    await faulty.put(key, b"late", CREATE)
            await faulty.put("a", b"first", CREATE)
        assert [(await real.get(key)).data for key in ("a", "b")] == [b"first", b"late"]

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_scripts_in_order() -> None:
    """Scripts for one key are used up one after the other; `calm` drops what is left."""

    async def test(faulty: FaultyStore, real: MemoryStore) -> None:
        faulty.script("get", "", Fault.THROTTLED, times=2)
        faulty.script("get", "", Fault.FAILS_BEFORE, times=2)
        for error in (Throttled, Throttled, Unanswered):
            with pytest.raises(error):
                await faulty.get("a")
        faulty.calm()
        with pytest.raises(NotFound):
            await faulty.get("a")

    run(test)


@pytest.mark.parametrize(
    ("verb", "fault"),
    [("write", Fault.DELAYED), ("get", Fault.CONFLICT), ("list", Fault.APPLIED_LATER), ("delete", Fault.CONFLICT)],
)
def test_scripts_that_make_no_sense(verb: str, fault: Fault) -> None:
    """A fault that no store has is a mistake in the test that asks for it."""

    async def test(faulty: FaultyStore, real: MemoryStore) -> None:
        with pytest.raises(ConfigurationError, match=re.escape(verb)):
            faulty.script(verb, "", fault)

    run(test)


def test_chaos_follows_from_its_seed() -> None:
    """One seed, one sequence of faults, at about the rate that was asked for and only for those verbs."""

    async def logged(seed: int) -> list[tuple[str, str, Fault | None]]:
        async with FaultyStore(MemoryStore(Runtime()), Runtime()) as faulty:
            faulty.chaos(Random(seed), 0.3, verbs=("put", "list"))
            for i in range(200):
                for request in (faulty.put(f"{i}", b"", CREATE), faulty.list(""), faulty.delete("a")):
                    try:
                        await request
                    except StoreError:
                        continue
            return faulty.log

    async def main() -> None:
        log = await logged(1)
        assert log == await logged(1) != await logged(2)
        assert 80 < sum(fault is not None for _, _, fault in log) < 160
        assert {fault for verb, _, fault in log if verb == "put"} == {*Fault, None}
        assert Fault.CONFLICT not in {fault for verb, _, fault in log if verb == "list"}
        assert {fault for verb, _, fault in log if verb == "delete"} == {None}

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
