"""The memory store is as coarse in its stamps as S3, follows virtual time, and counts what it is asked."""

from __future__ import annotations

import anyio
import pytest
import trio
import trio.testing

from s3queue._errors import NotFound, PreconditionFailed
from s3queue._runtime import Runtime
from s3queue.stores import CREATE, OVERWRITE, MemoryBucket, MemoryStore, Replace


def test_processes_share_a_bucket() -> None:
    """Stores on one bucket see each other's writes, and each counts its own requests."""

    async def main() -> None:
        bucket = MemoryBucket()
        one, two = MemoryStore(Runtime(), bucket), MemoryStore(Runtime(), bucket, name="two")
        version = (await one.put("a", b"1", CREATE)).version
        await two.put("a", b"2", Replace(version))
        with pytest.raises(PreconditionFailed):
            await one.put("a", b"3", Replace(version))
        assert (await one.get("a")).data == b"2"
        await two.delete_many(["a"])
        with pytest.raises(NotFound):
            await one.head("a")
        assert one.requests == {"put": 2, "get": 1, "head": 1}
        assert two.requests == {"put": 1, "delete_many": 1}
        assert len(bucket) == 0

    trio.run(main)


def test_stamps_are_whole_seconds_of_virtual_time() -> None:
    """As on S3, two writes within a second bear one stamp; time passes only as the loop's clock does."""

    async def main() -> None:
        runtime = Runtime()
        store = MemoryStore(runtime)
        dates = []
        for _ in range(5):
            dates.append((await store.put("a", b"", OVERWRITE)).date)
            await runtime.sleep(0.5)
        assert [date - dates[0] for date in dates] == [0, 0, 1, 1, 2]
        head = await store.head("a")
        assert (head.modified, head.date) == (dates[-1], dates[0] + 2)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_equal_bytes_are_equal_versions() -> None:
    """As with ETags: whoever must tell two writes apart writes different bytes."""

    async def main() -> None:
        store = MemoryStore(Runtime())
        first = (await store.put("a", b"same", CREATE)).version
        assert (await store.put("b", b"same", CREATE)).version == first
        await store.put("a", b"other", OVERWRITE)
        await store.put("a", b"same", OVERWRITE)
        await store.put("a", b"replaced", Replace(first))

    trio.run(main)


@pytest.mark.parametrize(("given_up_after", "left"), [(0.9, b"old"), (1.1, b"new")])
def test_a_cancelled_request_has_no_effect_before_its_time(given_up_after: float, left: bytes) -> None:
    """A request acts at one moment, when its latency has passed: cancelled before, it has done nothing."""

    async def main() -> None:
        bucket = MemoryBucket()
        await MemoryStore(Runtime(), bucket).put("a", b"old", CREATE)
        with anyio.move_on_after(given_up_after):
            await MemoryStore(Runtime(), bucket, latency=1.0).put("a", b"new", OVERWRITE)
        assert (await MemoryStore(Runtime(), bucket).get("a")).data == left

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_store_made_outside_an_event_loop() -> None:
    """A store can be made before there is a loop, and used on one after another."""
    store = MemoryStore(Runtime())

    trio.run(store.put, "a", b"1", CREATE)
    assert anyio.run(store.get, "a").data == b"1"
