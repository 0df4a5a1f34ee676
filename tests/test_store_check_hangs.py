"""The start-up check on a store that does not answer."""

from __future__ import annotations

import anyio
import pytest

from s3queue import Unanswered
from s3queue._runtime import SeededRuntime
from s3queue._store_check import Scratch
from s3queue.stores import MemoryStore, PutMode, Written
from s3queue.stores._port import CREATE
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
