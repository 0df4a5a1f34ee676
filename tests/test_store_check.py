"""The start-up check: refuses what cannot carry the protocol, in one line, and leaves nothing behind."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from s3queue import AccessDenied, ConfigurationError, Event, QueueOptions, StoreFull, StoreUnsuitable, WorkQueue
from s3queue._backend import Backend, LocalBackend
from s3queue._events import Events
from s3queue._runtime import Runtime
from s3queue._store_check import check_store
from s3queue.stores import LocalStore, MemoryStore, PutMode, Written
from s3queue.stores._port import OVERWRITE
from s3queue.stores._s3 import S3Store
from tests.conftest import client_of, store_on
from tests.servers._process import S3Server
from tests.servers.fault import FaultServer, Reply, Request, error

pytestmark = pytest.mark.asyncio


def conditional(reply: Reply, *, header: str) -> Callable[[Request], Reply | None]:
    """A server that answers `reply` to each PUT with this condition."""
    return lambda request: reply if request.method == "PUT" and header in request.headers else None


def only(reply: Reply, *, method: str, what: Callable[[Request], bool] = lambda request: True) -> object:
    return lambda request: reply if request.method == method and what(request) else None


@asynccontextmanager
async def scripted(server: FaultServer) -> AsyncIterator[S3Store]:
    buckets = (
        b"<ListAllMyBucketsResult><Buckets><Bucket><Name>bucket</Name></Bucket></Buckets></ListAllMyBucketsResult>"
    )
    server.rule("GET", "^$", Reply(200, buckets))
    async with client_of(server.target) as client:
        yield S3Store(client, "bucket", "ws")


async def test_a_sound_store_passes_and_nothing_is_left() -> None:
    """Scratch keys are removed after a check that passes."""
    store = MemoryStore(Runtime())

    await check_store(store, Runtime(), Events())

    assert len(store.bucket) == 0


async def test_a_real_server_passes(seaweed: S3Server, prefix: str) -> None:
    """SeaweedFS carries the protocol."""
    async with store_on(seaweed, prefix) as store:
        await check_store(store, Runtime(), Events())
        assert not (await store.list("")).objects


@pytest.mark.parametrize(
    ("intercept", "complaint"),
    [
        (conditional(error(501, "NotImplemented"), header="if-none-match"), "does not support"),
        (conditional(error(501, "NotImplemented"), header="if-match"), "does not support"),
        (conditional(error(400, "InvalidRequest", "bad x-amz-checksum-crc32"), header="if-none-match"), "checksum"),
        (conditional(error(412, "PreconditionFailed"), header="if-match"), "refused If-Match"),
        (only(error(403, "AccessDenied"), method="GET", what=lambda r: r.key == ""), "s3:ListBucket"),
        (only(error(403, "AccessDenied"), method="GET", what=lambda r: r.key != ""), "s3:GetObject"),
        (only(error(403, "AccessDenied"), method="PUT"), "put_args"),
    ],
)
async def test_it_refuses(intercept: Callable[[Request], Reply | None], complaint: str) -> None:
    """One line names the store, what failed and what to do; scratch keys are removed all the same (B03, B11, B36)."""
    async with FaultServer() as server, scripted(server) as store:
        server.intercept = intercept

        with pytest.raises(StoreUnsuitable, match=re.escape(complaint)) as caught:
            await check_store(store, Runtime(), Events())

        assert str(caught.value).startswith("s3://bucket/ws at http://")
        assert "\n" not in str(caught.value)
        assert not server.objects


@pytest.mark.parametrize(
    ("reply", "complaint"),
    [
        (error(404, "NoSuchBucket"), "no such bucket"),
        (error(403, "RequestTimeTooSkewed"), "clock"),
        (error(400, "AuthorizationHeaderMalformed", "expecting 'eu-west-1'"), "region"),
    ],
)
async def test_the_users_mistakes(reply: Reply, complaint: str) -> None:
    """A wrong bucket, clock or region is said as such (B31)."""
    async with FaultServer() as server, scripted(server) as store:
        server.intercept = lambda request: reply

        with pytest.raises(ConfigurationError, match=complaint):
            await check_store(store, Runtime(), Events())


async def test_conditions_that_are_ignored() -> None:
    """A store that answers 200 to everything would give one group to two machines (B04)."""
    async with FaultServer(ignore_conditions=True) as server, scripted(server) as store:
        with pytest.raises(StoreUnsuitable, match="ignores If-None-Match"):
            await check_store(store, Runtime(), Events())

        assert not server.objects


async def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It says nothing of what the store can do: the check raises what any other write on it raises."""

    def no_room(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("s3queue.stores._local.write", no_room)
    unchecked = QueueOptions(check_store=False)

    for options in (QueueOptions(), unchecked):
        with pytest.raises(StoreFull, match="No space left on device: make room there") as caught:
            await WorkQueue(LocalBackend(tmp_path), options=options).populate_queue(["a"])
        assert str(caught.value).startswith(f"{tmp_path}: ")


async def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    """The remedy is a folder's, not a bucket's."""

    class ReadOnly(LocalStore):
        async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
            raise AccessDenied(f"{self.name}: Read-only file system")

    with pytest.raises(StoreUnsuitable, match="Read-only file system.*permission to read and write in the folder"):
        await check_store(ReadOnly(tmp_path, Runtime()), Runtime(), Events())


class _TwoWinners(MemoryStore):
    """Honours every condition, unless two ask at the same time."""

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        racing = key.endswith("-race")
        return await super().put(key, data, OVERWRITE if racing else mode)


async def test_a_race_with_two_winners() -> None:
    """A store that checks and then acts passes every test in sequence, and is found out by a race (B09)."""
    store = _TwoWinners(Runtime())

    with pytest.raises(StoreUnsuitable, match="16 of 16 concurrent"):
        await check_store(store, Runtime(), Events())

    assert len(store.bucket) == 0


async def test_a_framed_body() -> None:
    """A store that keeps the checksum's framing in the object is told from one that works (B14)."""

    class Framing(MemoryStore):
        async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
            return await super().put(key, b"5\r\n" + data + b"\r\n0", mode)

    with pytest.raises(StoreUnsuitable, match="request_checksum_calculation"):
        await check_store(Framing(Runtime()), Runtime(), Events())


@pytest.mark.parametrize("bare", [True, False])
async def test_either_spelling_of_etags_passes(bare: bool) -> None:
    """Which spelling works is found out, and is no reason to refuse (B05)."""
    async with FaultServer(bare_etags=bare) as server, scripted(server) as store:
        await check_store(store, Runtime(), Events())


async def test_unsafe_store_warns() -> None:
    """Whoever insists is warned, and works on."""
    events: list[Event] = []
    store = _TwoWinners(Runtime(), name="unsafe")
    queue = WorkQueue(Backend(store), options=QueueOptions(unsafe_store=True), observer=events.append)

    await queue.populate_queue(["a"])

    (warning,) = [event for event in events if event.name == "store.unsafe"]
    assert "concurrent" in warning.fields["problem"]


async def test_once_and_skippable() -> None:
    """The check runs once for a workspace in a process, and not at all if told so."""
    store = MemoryStore(Runtime(), name="checked once")
    for _ in range(2):
        await WorkQueue(Backend(store)).initialize_queue()
    with_one_check = store.requests["put"]
    unchecked = MemoryStore(Runtime(), name="never checked")
    await WorkQueue(Backend(unchecked), options=QueueOptions(check_store=False)).initialize_queue()

    assert with_one_check > 20
    assert store.requests["put"] == with_one_check
    assert unchecked.requests["put"] == 0
