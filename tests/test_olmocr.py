"""A workspace that olmOCR left in mid-run: read, honoured, finished, and still readable by olmOCR's rules."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from s3queue import Backend, LeaseLost, LocalBackend, QueueOptions, RunSummary, WorkItem, WorkQueue
from s3queue.stores import OVERWRITE, Store
from tests import olmocr
from tests.conftest import store_on
from tests.servers._process import S3Server

DATA = Path(__file__).with_name("data") / "olmocr-workspace"
EXPECTED: dict[str, Any] = json.loads((DATA / "expected.json").read_text())
OPEN = set(EXPECTED["groups"]) - set(EXPECTED["done"])
LOCKED = set(EXPECTED["locked"])


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A copy, with locks as if they were just made."""
    copy = tmp_path / "workspace"
    shutil.copytree(DATA / "workspace", copy)
    age_locks(copy, 0)
    return copy


def age_locks(workspace: Path, seconds: float) -> None:
    for lock in (workspace / "worker_locks").iterdir():
        os.utime(lock, (time.time() - seconds, time.time() - seconds))


async def run(store: Store, ran: dict[str, tuple[str, ...]], *, wait: bool, **options: Any) -> RunSummary:
    async def handle(item: WorkItem) -> None:
        assert item.hash not in ran
        ran[item.hash] = item.work_paths

    queue = WorkQueue(Backend(store), options=QueueOptions(poll_min=0.2, **options))
    return await queue.run(handle, wait=wait, handle_signals=False)


@pytest.mark.asyncio
async def test_it_loads(workspace: Path) -> None:
    """Groups, finished ones and locked ones are what olmOCR left."""
    queue = WorkQueue(LocalBackend(workspace))

    assert await queue.initialize_queue() == len(OPEN)
    status = await queue.status()
    assert (status.groups, status.done, status.leased) == (33, 9, 4)
    backend = LocalBackend(workspace)
    assert await backend.get_completed_hashes() == set(EXPECTED["done"])
    assert {group for group in OPEN if await backend.is_worker_lock_taken(group)} == LOCKED
    lines = await backend.load_index_lines()
    assert {line.split(",")[0] for line in lines} == set(EXPECTED["groups"])


@pytest.mark.asyncio
async def test_its_locks_are_honoured_until_its_timeout(workspace: Path) -> None:
    """Fresh empty locks are left alone; at olmOCR's timeout their groups are taken over, and counted as crashes."""
    backend, ran = LocalBackend(workspace), dict[str, tuple[str, ...]]()

    summary = await run(backend.store, ran, wait=False)

    assert set(ran) == OPEN - LOCKED
    assert (summary.unfinished, summary.leased_elsewhere) == (4, 4)
    age_locks(workspace, 1790)
    await run(backend.store, ran, wait=False)
    assert set(ran) == OPEN - LOCKED
    age_locks(workspace, 1810)
    summary = await run(backend.store, ran, wait=True)
    assert {group: list(paths) for group, paths in ran.items()} == {g: EXPECTED["groups"][g] for g in OPEN}
    assert summary.complete


@pytest.mark.asyncio
async def test_what_we_write_is_readable_by_its_rules(workspace: Path) -> None:
    """After a populate and a half-finished run, olmOCR sees its groups and ours, our flags, and our lock."""
    queue = WorkQueue(LocalBackend(workspace))
    await queue.populate_queue(["s3://b/new 1.pdf", "s3://b/new, 2.pdf"], items_per_group=2)
    ours = olmocr.group_hash(["s3://b/new 1.pdf", "s3://b/new, 2.pdf"])
    held = set()
    while (item := await queue.get_work()) is not None:
        if len(held) < 3:
            held.add(item.hash)
        else:
            await queue.mark_done(item)

    index = olmocr.read_index(workspace)

    assert index == {**EXPECTED["groups"], ours: ["s3://b/new 1.pdf", "s3://b/new, 2.pdf"]}
    assert {group for group in index if not olmocr.is_completed(workspace, group)} == held | LOCKED
    unfinished = [group for group in index if not olmocr.is_completed(workspace, group)]
    assert {group for group in unfinished if olmocr.is_taken(workspace, group)} == held | LOCKED


def test_its_run_is_finished_on_s3(seaweed: S3Server, prefix: str) -> None:
    """Uploaded, its locks are honoured there too, and its run is finished."""

    async def main() -> None:
        async with store_on(seaweed, prefix) as store:
            for path in sorted((DATA / "workspace").rglob("*.*")):
                await store.put(str(path.relative_to(DATA / "workspace")), path.read_bytes(), OVERWRITE)
            ran: dict[str, tuple[str, ...]] = {}
            await run(store, ran, wait=False)
            assert set(ran) == OPEN - LOCKED
            summary = await run(store, ran, wait=True, olmocr_lock_timeout=1, margin=1)
            assert {group: list(paths) for group, paths in ran.items()} == {g: EXPECTED["groups"][g] for g in OPEN}
            assert summary.complete
            assert await Backend(store).get_completed_hashes() == set(EXPECTED["groups"])

    anyio.run(main)


@pytest.mark.asyncio
async def test_an_empty_flag_of_its_while_we_work(workspace: Path) -> None:
    """A group that an olmOCR worker completes under us is done, and our result for it is dropped."""
    queue = WorkQueue(LocalBackend(workspace))
    item = await queue.get_work()
    assert item is not None
    (workspace / "done_flags" / f"done_{item.hash}.flag").write_bytes(b"")

    with pytest.raises(LeaseLost, match="completed by another"):
        await queue.mark_done(item, {"pages": 1})

    assert (workspace / "done_flags" / f"done_{item.hash}.flag").read_bytes() == b""
