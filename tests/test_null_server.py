"""The benchmarks' server keeps the contract too, or its numbers would say nothing."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from benchmarks.null_server import Bucket, counts, null_server
from s3queue.stores import CREATE
from s3queue.testing import STORE_CHECKS, StoreCheck
from tests.conftest import store_on
from tests.servers._process import S3Server

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def null() -> Iterator[S3Server]:
    with null_server() as server:
        yield server


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_contract(check: StoreCheck, null: S3Server, prefix: str) -> None:
    """Every check of the port."""

    async def main() -> None:
        async with store_on(null, prefix) as store:
            await check(store)

    anyio.run(main)


def test_it_counts(null: S3Server, prefix: str) -> None:
    """By verb, since it was asked last."""

    async def main() -> None:
        async with store_on(null, prefix) as store:
            counts(null)
            await store.put("a", b"x", CREATE)
            await store.list("")
            await store.delete_many(["a", "b"])

    anyio.run(main)

    assert counts(null) == {"PUT": 1, "LIST": 1, "DELETE MANY": 1}
    assert counts(null) == {}


def test_it_slows_down() -> None:
    """With S3's limits it refuses what is too much for one second, and nothing in the next."""
    seconds = iter([7.0] * (3500 + 10) + [8.0] * 2)
    bucket = Bucket(limited=True, clock=lambda: next(seconds))

    assert sum(bucket.admits("PUT") for _ in range(3500 + 10)) == 3500
    assert bucket.admits("PUT")
    assert bucket.admits("GET")
