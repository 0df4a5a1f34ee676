"""The two examples of the public API, as users write them, on a real server."""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio
from aiobotocore.session import get_session

from s3queue import QueueOptions, S3Backend, WorkQueue, open_queue
from tests.conftest import client_of
from tests.servers._process import S3Server

pytestmark = pytest.mark.asyncio


@pytest_asyncio.fixture
async def bucket(seaweed: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bucket that ordinary AWS configuration leads to."""
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    async with client_of(seaweed):
        return seaweed.bucket


async def test_by_hand(bucket: str, prefix: str) -> None:
    """A client of the caller's, olmOCR's names, no background tasks."""
    paths = [f"s3://scans/{i}.pdf" for i in range(23)]
    seen: list[str] = []

    async with get_session().create_client("s3") as client:
        queue = WorkQueue(S3Backend(client, f"s3://{bucket}/{prefix}"))
        await queue.populate_queue(paths, items_per_group=5)
        assert await queue.initialize_queue() == 5
        while (item := await queue.get_work()) is not None:
            seen += item.work_paths
            assert (len(item.hash), item.epoch) == (40, 1)
            await queue.mark_done(item)

        assert sorted(seen) == sorted(paths)
        assert await queue.initialize_queue() == 0
        assert (await queue.status()).complete


async def test_open_queue(bucket: str, prefix: str, tmp_path: Path) -> None:
    """The same two lines work on S3 and on a folder."""
    paths = [f"file {i}" for i in range(50)]
    for workspace in (f"s3://{bucket}/{prefix}", str(tmp_path / "workspace")):
        seen: list[str] = []

        async def handler(path: str, seen: list[str] = seen) -> int:
            seen.append(path)
            return len(path)

        async with open_queue(workspace, options=QueueOptions(lease_ttl=300)) as queue:
            await queue.populate_queue(paths, items_per_group=5)
            summary = await queue.run(handler, workers=64, per="path")

        assert sorted(seen) == sorted(paths)
        assert (summary.done, summary.complete) == (10, True)
