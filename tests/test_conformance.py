"""Every store keeps the contract of the port; and the contract's checks can fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio
import pytest
import trio

from s3queue._runtime import Runtime
from s3queue.stores import CREATE, OVERWRITE, LocalStore, MemoryStore, Page, PutMode, Replace, Written
from s3queue.testing import STORE_CHECKS, StoreCheck
from tests.conftest import store_on
from tests.servers._process import S3Server

each_check = pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)


@each_check
@pytest.mark.parametrize("run", [trio.run, anyio.run], ids=["trio", "asyncio"])
def test_memory(check: StoreCheck, run: Callable[..., object]) -> None:
    """The memory store keeps the contract, on both kinds of event loop."""

    async def main() -> None:
        await check(MemoryStore(Runtime()))

    run(main)


@each_check
def test_local(check: StoreCheck, tmp_path: Path) -> None:
    """A folder keeps the contract."""

    async def main() -> None:
        await check(LocalStore(tmp_path / "workspace", Runtime()))

    anyio.run(main)


@each_check
def test_seaweedfs(check: StoreCheck, seaweed: S3Server, prefix: str) -> None:
    """S3 on a real server keeps the contract."""

    async def main() -> None:
        async with store_on(seaweed, prefix) as store:
            await check(store)

    anyio.run(main)


#: moto has no lock round the check of a condition, so several racers may win, and its router knows no key with a line
#: end. Neither says anything about our adapter.
BEYOND_MOTO = {"check_racing_creates", "check_racing_replaces", "check_counter", "check_line_end_in_key"}


@pytest.mark.parametrize(
    "check",
    [check for check in STORE_CHECKS if check.__name__ not in BEYOND_MOTO],
    ids=lambda check: check.__name__,
)
def test_moto(check: StoreCheck, moto: S3Server, prefix: str) -> None:
    """S3 on a simulated server keeps the contract, as far as the server can."""

    async def main() -> None:
        async with store_on(moto, prefix) as store:
            await check(store)

    anyio.run(main)


class _IgnoresConditions(MemoryStore):
    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        return await super().put(key, data, OVERWRITE)


class _ChecksThenActs(MemoryStore):
    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        if isinstance(mode, (type(CREATE), Replace)):
            scratch = MemoryStore(self._runtime)
            scratch.bucket._objects.update(self.bucket._objects)
            await scratch.put(key, data, mode)
            await anyio.lowlevel.checkpoint()
        return await super().put(key, data, OVERWRITE)


class _ListsBackwards(MemoryStore):
    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        page = await super().list(prefix, start_after=start_after, resume=resume, limit=limit)
        return Page(objects=page.objects[::-1], next=page.next, date=page.date)


class _ForgetsTheRest(MemoryStore):
    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        page = await super().list(prefix, start_after=start_after, resume=resume, limit=limit)
        return Page(objects=page.objects, next=None, date=page.date)


@pytest.mark.parametrize(
    ("broken", "caught_by"),
    [
        (_IgnoresConditions, {"check_create", "check_replace", "check_racing_creates", "check_counter"}),
        (_ChecksThenActs, {"check_racing_creates", "check_racing_replaces", "check_counter"}),
        (_ListsBackwards, {"check_many_objects", "check_awkward_keys"}),
        (_ForgetsTheRest, {"check_many_objects", "check_pages"}),
    ],
)
def test_the_checks_catch(broken: type[MemoryStore], caught_by: set[str]) -> None:
    """A store that breaks the contract is found out by the checks that are about that part of it."""
    failed = set()
    for check in STORE_CHECKS:
        try:
            trio.run(_checked, check, broken)
        except AssertionError:
            failed.add(check.__name__)

    assert caught_by <= failed


async def _checked(check: Callable[[MemoryStore], Awaitable[None]], kind: type[MemoryStore]) -> None:
    await check(kind(Runtime()))
