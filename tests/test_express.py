"""S3 Express One Zone, as its documents describe it: lists in no order, and only what lies below a folder."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import anyio
import pytest

from s3queue import Backend, ConfigurationError, QueueOptions, WorkItem, WorkQueue
from s3queue import _keys as keys
from s3queue.stores import OVERWRITE
from s3queue.stores._s3 import S3Store
from s3queue.testing import STORE_CHECKS, StoreCheck
from tests.conftest import bare_client_of
from tests.servers.fault import FaultServer, Reply, Request, error

BUCKET = "bucket--use1-az4--x-s3"
SESSION = (
    b"<CreateSessionResult><Credentials><AccessKeyId>k</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
    b"<SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></CreateSessionResult>"
)


class DirectoryBucket(FaultServer):
    """The server. Its order is that of the names read backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.intercept = self._special

    def _special(self, request: Request) -> Reply | None:
        if request.method != "GET" or request.key:
            return None
        if "session" in request.query:
            return Reply(200, SESSION, {"Content-Type": "application/xml"})
        prefix = request.query.get("prefix", "")
        if "start-after" in request.query or (prefix and not prefix.endswith("/")):
            return error(400, "InvalidRequest", "not on directory buckets")
        return self._page(prefix, request.query)

    def _page(self, prefix: str, query: Mapping[str, str]) -> Reply:
        names = sorted((key for key in self.objects if key.startswith(prefix)), key=lambda key: key[::-1])
        start, most = int(query.get("continuation-token", "0")), int(query.get("max-keys", "1000"))
        token = str(start + most) if start + most < len(names) else None
        return self.listing_of(names[start : start + most], token)


@asynccontextmanager
async def express() -> AsyncIterator[tuple[S3Store, DirectoryBucket]]:
    async with (
        DirectoryBucket() as server,
        bare_client_of(server.target, s3={"addressing_style": "path"}) as client,
    ):
        yield S3Store(client, BUCKET, "ws"), server


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
def test_it_keeps_the_contract(check: StoreCheck) -> None:
    """All that a store of no order has to."""

    async def main() -> None:
        async with express() as (store, server):
            await check(store)
            assert store.lists_in_order is False
            assert server.requests

    anyio.run(main)


async def failed(queue: WorkQueue) -> list[str]:
    """Three groups, each failed twice; their names."""
    await queue.populate_queue(["a", "b", "c"])
    for _ in range(2):
        while (item := await queue.get_work()) is not None:
            await queue.mark_failed(item, f"no luck with {item.work_paths[0]}")
    return sorted(group.hash for group in await queue.failures())


def test_the_operator_s_side() -> None:
    """Histories are found, by whole hashes and by their beginnings; so is a crash's record under the epoch before."""

    async def main() -> None:
        async with express() as (store, _):
            queue = WorkQueue(Backend(store), options=QueueOptions(backoff=0, max_attempts=2))
            names = await failed(queue)
            assert len(names) == 3
            for name in names:
                history = await queue.history(name)
                assert [attempt.epoch for attempt in history] == [1, 2]
                assert await queue.history(name[:8]) == history
            with pytest.raises(ConfigurationError, match="no group of this workspace"):
                await queue.history("0123456789")
            # As after a crash that made the group dead: its lock is an epoch ahead of its last record.
            last = await store.get(keys.failure(names[0], 2))
            await store.put(keys.failure(names[0], 1), last.data, OVERWRITE)
            await store.delete(keys.failure(names[0], 2))
            (group,) = [group for group in await queue.failures() if group.hash == names[0]]
            assert group.last is not None
            assert "no luck" in group.last.error
            assert await queue.retry([names[0][:8]]) == 1

    anyio.run(main)


def test_groups_that_are_done() -> None:
    """They are counted, reset, swept and checked, and their results are read."""

    async def main() -> None:
        async with express() as (store, _):
            queue = WorkQueue(Backend(store), options=QueueOptions(completion_grace=0, margin=0))
            await queue.populate_queue(["a", "b", "c"])
            await queue.run(worked, workers=3, handle_signals=False)
            held = await queue.reset([result.hash async for result in queue.results() if result.path == "a"])
            assert (await queue.status()).done == 2
            item = await WorkQueue(Backend(store)).get_work()
            assert item is not None
            assert [item.hash] == list(held.values())
            assert await queue.break_lease(item.hash[:8]) is True
            assert (await queue.run(worked, workers=1, handle_signals=False)).complete
            assert sorted([(result.path, result.result) async for result in queue.results()]) == [
                ("a", ["a"]),
                ("b", ["b"]),
                ("c", ["c"]),
            ]
            assert [finding async for finding in queue.check()] == []

    anyio.run(main)


async def worked(item: WorkItem) -> list[str]:
    return list(item.work_paths)


def test_the_command_line() -> None:
    """What an operator types, with a hash cut short."""

    async def main() -> None:
        async with express() as (store, server):
            queue = WorkQueue(Backend(store), options=QueueOptions(backoff=0, max_attempts=2))
            names = await failed(queue)
            environment = {**os.environ, **server.target.environment()}

            async def said(*command: str, status: int = 0) -> str:
                arguments = [sys.executable, "-m", "s3queue", *command]
                done = await anyio.run_process(arguments, env=environment, check=False)
                assert done.returncode == status, done.stderr.decode()
                return done.stdout.decode()

            workspace = f"s3://{BUCKET}/ws"
            for name in names:
                lines = (await said("failures", workspace, name[:8], "--json")).splitlines()
                assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
            assert json.loads(await said("status", workspace, "--json", status=1))["dead"] == 3
            await said("retry", workspace, names[0][:8])
            await said("sweep", workspace)
            assert json.loads(await said("status", workspace, "--json", status=3))["dead"] == 2

    anyio.run(main)
