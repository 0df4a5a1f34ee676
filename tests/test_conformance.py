"""Every store keeps the contract of the port; and the contract's checks can fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote_plus

import anyio
import anyio.lowlevel
import pytest
import trio

from s3queue._errors import NotFound, StoreError
from s3queue._runtime import Runtime
from s3queue.stores import (
    CREATE,
    OVERWRITE,
    Deleted,
    Head,
    LocalStore,
    MemoryStore,
    Page,
    PutMode,
    Version,
    Written,
)
from s3queue.testing import STORE_CHECKS, StoreCheck
from tests.conftest import store_on
from tests.servers._process import S3Server

each_check = pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
each_path = pytest.mark.parametrize("lean", [True, False], ids=["lean", "sdk"])
each_loop = pytest.mark.parametrize("run", [trio.run, anyio.run], ids=["trio", "asyncio"])


@each_check
@each_loop
def test_memory(check: StoreCheck, run: Callable[..., object]) -> None:
    """The memory store keeps the contract, on both kinds of event loop."""

    async def main() -> None:
        await check(MemoryStore(Runtime()))

    run(main)


@each_check
@each_loop
def test_local(check: StoreCheck, run: Callable[..., object], tmp_path: Path) -> None:
    """A folder keeps the contract, on both kinds of event loop."""

    async def main() -> None:
        await check(LocalStore(tmp_path / "workspace", Runtime()))

    run(main)


@each_check
@each_path
def test_seaweedfs(check: StoreCheck, lean: bool, seaweed: S3Server, prefix: str) -> None:
    """S3 on a real server keeps the contract, on both request paths."""

    async def main() -> None:
        async with store_on(seaweed, prefix, lean=lean) as store:
            await check(store)

    anyio.run(main)


#: moto has no lock round the check of a condition, so several racers may win; it closes an object's buffer when the
#: object is replaced, so whoever reads it just then gets a 500; and its router knows no key with a line end. None of
#: this says anything about our adapter.
BEYOND_MOTO = {
    "check_racing_creates",
    "check_racing_replaces",
    "check_counter",
    "check_cancelled_put",
    "check_line_end_in_key",
}


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


class _CutsBodies(MemoryStore):
    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        return await super().put(key, data[:1000], mode)


class _TearsWhatIsCancelled(MemoryStore):
    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        await super().put(key, b"", mode)
        for _ in range(5):
            await anyio.lowlevel.checkpoint()
        return await super().put(key, data, OVERWRITE)


class _IgnoresConditions(MemoryStore):
    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        return await super().put(key, data, OVERWRITE)


class _ChecksThenActs(MemoryStore):
    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        if mode != OVERWRITE:
            scratch = MemoryStore(self._runtime)
            scratch.bucket._objects.update(self.bucket._objects)
            await scratch.put(key, data, mode)
            await anyio.lowlevel.checkpoint()
        return await super().put(key, data, OVERWRITE)


class _CreatesByReplacing(MemoryStore):
    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        there = key in self.bucket._objects
        return await super().put(key, data, mode if there or mode == CREATE else OVERWRITE)


class _DecodesKeys(MemoryStore):
    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        return await super().put(unquote_plus(key), data, mode)


class _DropsLineEnds(MemoryStore):
    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        return await super().put(key.replace("\n", ""), data, mode)


class _ReadsTheMissing(MemoryStore):
    async def head(self, key: str) -> Head:
        try:
            return await super().head(key)
        except NotFound:
            return Head(version=Version(""), size=0, modified=0, date=0)


class _DeletesNothing(MemoryStore):
    async def delete(self, key: str) -> Deleted:
        return await super().delete_many([])


class _DeletesOnlyTheFirst(MemoryStore):
    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        return await super().delete_many(keys[:1000])


class _HasNoClock(MemoryStore):
    async def _begin(self, verb: str) -> float:
        await super()._begin(verb)
        return 0.0


class _BadLister(MemoryStore):
    """Spoils each page of a listing."""

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        return self.spoil(await super().list(prefix, start_after=start_after, resume=resume, limit=limit))

    def spoil(self, page: Page) -> Page:
        raise NotImplementedError


class _ListsBackwards(_BadLister):
    def spoil(self, page: Page) -> Page:
        return replace(page, objects=page.objects[::-1])


class _ForgetsTheRest(_BadLister):
    def spoil(self, page: Page) -> Page:
        return replace(page, next=None)


class _QuotesVersions(_BadLister):
    def spoil(self, page: Page) -> Page:
        return replace(page, objects=[replace(item, version=Version(f'"{item.version}"')) for item in page.objects])


class _ListsLikeASearch(MemoryStore):
    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        return await super().list(prefix.rstrip("/"), start_after=start_after, resume=resume, limit=limit)


BROKEN: dict[type[MemoryStore], set[str]] = {
    _CutsBodies: {"check_put_and_get"},
    _TearsWhatIsCancelled: {"check_cancelled_put"},
    _IgnoresConditions: {"check_create", "check_replace", "check_racing_creates", "check_counter"},
    _ChecksThenActs: {"check_racing_creates", "check_racing_replaces", "check_counter"},
    _CreatesByReplacing: {"check_replace_missing"},
    _DecodesKeys: {"check_awkward_keys"},
    _DropsLineEnds: {"check_line_end_in_key"},
    _ReadsTheMissing: {"check_missing_object"},
    _DeletesNothing: {"check_delete", "check_create_after_delete"},
    _DeletesOnlyTheFirst: {"check_many_objects"},
    _HasNoClock: {"check_dates"},
    _ListsBackwards: {"check_many_objects", "check_awkward_keys"},
    _ForgetsTheRest: {"check_many_objects", "check_pages"},
    _QuotesVersions: {"check_versions_agree"},
    _ListsLikeASearch: {"check_prefixes"},
}


@pytest.mark.parametrize(("broken", "caught_by"), BROKEN.items(), ids=[kind.__name__ for kind in BROKEN])
def test_the_checks_catch(broken: type[MemoryStore], caught_by: set[str]) -> None:
    """A store that breaks the contract is found out by the checks that are about that part of it."""

    async def passes(check: StoreCheck) -> bool:
        try:
            await check(broken(Runtime()))
        except (AssertionError, StoreError):
            return False
        return True

    failed = {check.__name__ for check in STORE_CHECKS if not trio.run(passes, check)}

    assert caught_by <= failed
    assert failed < {check.__name__ for check in STORE_CHECKS}


def test_each_check_can_fail() -> None:
    """No check passes on every store."""
    assert set().union(*BROKEN.values()) == {check.__name__ for check in STORE_CHECKS}
