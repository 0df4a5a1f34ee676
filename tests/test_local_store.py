"""A folder is a store between processes, and between us and olmOCR, which knows nothing of our locks."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
import trio
import trio.testing

from s3queue._errors import ConfigurationError, InvalidPath, NotFound, PreconditionFailed, StoreError
from s3queue._runtime import Runtime, SeededRuntime
from s3queue.stores import CREATE, OVERWRITE, LocalStore, Replace, Version
from s3queue.stores._listing import list_pages
from s3queue.stores._local import _stripe

#: What each process of a race runs: it prints how many of its writes were not refused.
WORKER = """
import sys, anyio
from s3queue._errors import NotFound, PreconditionFailed
from s3queue._runtime import Runtime
from s3queue.stores import CREATE, OVERWRITE, LocalStore, Replace

async def create(store):
    won = 0
    for i in range(40):
        try:
            await store.put(f"locks/{i}", sys.argv[3].encode(), CREATE)
            won += 1
        except PreconditionFailed:
            pass
    print(won)

async def count(store):
    added = 0
    while added < 25:
        current = await store.get("counter")
        try:
            await store.put("counter", b"%d" % (int(current.data) + 1), Replace(current.version))
            added += 1
        except PreconditionFailed:
            pass
    print(added)

async def overwrite(store):
    while True:
        for letter in b"ab":
            await store.put("object", bytes([letter]) * 1_000_000, OVERWRITE)
            print("written", flush=True)

anyio.run({"create": create, "count": count, "overwrite": overwrite}[sys.argv[1]], LocalStore(sys.argv[2], Runtime()))
"""


def start(what: str, root: Path, name: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", WORKER, what, str(root), name], stdout=subprocess.PIPE, text=True)


def outputs(processes: Sequence[subprocess.Popen[str]]) -> list[int]:
    return [int(process.communicate(timeout=60)[0]) for process in processes]


Test = Callable[[LocalStore], Awaitable[None]]


def run(test: Test, root: Path) -> None:
    async def main() -> None:
        await test(LocalStore(root, Runtime()))

    anyio.run(main)


async def keys_of(store: LocalStore, prefix: str = "") -> list[str]:
    return [item.key async for page in list_pages(store, prefix) for item in page.objects]


def test_processes_that_race_to_create(tmp_path: Path) -> None:
    """Of several processes that create one object, one wins, and its bytes stand."""
    won = outputs([start("create", tmp_path, f"process {i}") for i in range(4)])

    assert sum(won) == 40
    owners = [path.read_text() for path in (tmp_path / "locks").iterdir()]
    assert [owners.count(f"process {i}") for i in range(4)] == won


def test_processes_that_count(tmp_path: Path) -> None:
    """No increment by compare-and-swap from several processes is lost."""
    (tmp_path / "counter").write_text("0")

    assert outputs([start("count", tmp_path) for _ in range(4)]) == [25] * 4
    assert (tmp_path / "counter").read_text() == "100"


@pytest.mark.parametrize("writes", [1, 2, 5])
def test_a_process_that_is_killed_while_it_writes(writes: int, tmp_path: Path) -> None:
    """It leaves the old object or the new one, whole, and holds nobody up."""
    process = start("overwrite", tmp_path)
    assert process.stdout is not None
    for _ in range(writes):
        assert process.stdout.readline() == "written\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()

    async def check(store: LocalStore) -> None:
        body = await store.get("object")
        assert body.data in (b"a" * 1_000_000, b"b" * 1_000_000)
        await store.put("object", b"next", Replace(body.version))

    run(check, tmp_path)


@contextmanager
def locked_by_another(root: Path, key: str) -> Iterator[None]:
    """Hold the lock on a key as a process would that was stopped in mid-write."""
    with (root / ".s3queue" / f"lock.{_stripe(key):02d}").open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def test_a_process_that_is_stopped_while_it_writes(tmp_path: Path) -> None:
    """Whoever waits for it can give up, has then written nothing, and meanwhile other keys are written."""

    async def check(store: LocalStore) -> None:
        await store.put("held", b"old", CREATE)
        with locked_by_another(tmp_path, "held"):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.put, "held", b"new", OVERWRITE)
                tasks.start_soon(store.delete, "held")
                await store.put("other", b"written", CREATE)
                tasks.cancel_scope.cancel()
        assert (await store.get("held")).data == b"old"
        await store.put("held", b"new", OVERWRITE)
        assert (await store.get("held")).data == b"new"

    assert _stripe("held") != _stripe("other")
    run(check, tmp_path)


def test_what_olmocr_writes(tmp_path: Path) -> None:
    """A plain write, by a process without our locks, is another version: our stale replace is refused."""

    async def check(store: LocalStore) -> None:
        first = (await store.put("worker_locks/a.lock", b"ours", CREATE)).version
        (tmp_path / "worker_locks" / "a.lock").write_bytes(b"")
        (tmp_path / "worker_locks" / "b.lock").write_bytes(b"")
        with pytest.raises(PreconditionFailed):
            await store.put("worker_locks/a.lock", b"more", Replace(first))
        with pytest.raises(PreconditionFailed):
            await store.put("worker_locks/b.lock", b"ours", CREATE)
        found = (await store.list("worker_locks/")).objects
        assert [(item.key, item.size) for item in found] == [("worker_locks/a.lock", 0), ("worker_locks/b.lock", 0)]
        await store.put("worker_locks/a.lock", b"more", Replace(found[0].version))
        assert (tmp_path / "worker_locks" / "a.lock").read_bytes() == b"more"

    run(check, tmp_path)


def test_stamps_go_forward_when_the_clock_goes_back(tmp_path: Path) -> None:
    """A replacement is dated later than what it replaces, even if that was written before the clock was set back."""

    async def check(store: LocalStore) -> None:
        await store.put("object", b"1", CREATE)
        ahead = (tmp_path / "object").stat().st_mtime_ns + 86_400_000_000_000
        os.utime(tmp_path / "object", ns=(ahead, ahead))
        for i in range(3):
            before = (tmp_path / "object").stat().st_mtime_ns
            version = (await store.put("object", b"2", OVERWRITE)).version
            assert (tmp_path / "object").stat().st_mtime_ns > before >= ahead + i
            assert (await store.head("object")).version == version

    run(check, tmp_path)


def test_no_two_states_share_a_version(tmp_path: Path) -> None:
    """Not even those of equal bytes, nor those of an object that is deleted and made anew within a clock's tick."""

    async def check(store: LocalStore) -> None:
        seen: set[Version] = set()
        for _ in range(100):
            seen.add((await store.put("object", b"same", CREATE)).version)
            seen.add((await store.put("object", b"same", OVERWRITE)).version)
            await store.delete("object")
        assert len(seen) == 200

    run(check, tmp_path)


NO_FILES = [
    "", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "nul\0", "a/" + "x" * 256, "é" * 128, "\ud800",
    ".s3queue/clock", ".s3queue",
]  # fmt: skip


@pytest.mark.parametrize("key", NO_FILES)
def test_keys_that_are_no_files(key: str, tmp_path: Path) -> None:
    """A key that would leave the folder, or that no file can have, is refused by every operation."""

    async def check(store: LocalStore) -> None:
        for request in (store.get, store.head, store.delete, lambda key: store.put(key, b"", OVERWRITE)):
            with pytest.raises(InvalidPath):
                await request(key)

    run(check, tmp_path / "workspace")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prefix", ["../", "/", "a//", ".s3queue/", "./", "\0/"])
def test_prefixes_that_are_no_folders(prefix: str, tmp_path: Path) -> None:
    """A listing does not leave the folder, nor show what is ours."""

    async def check(store: LocalStore) -> None:
        await store.put("a/b", b"", CREATE)
        (tmp_path / "outside").touch()
        assert await keys_of(store, prefix) == []

    run(check, tmp_path / "workspace")


def test_what_is_no_object(tmp_path: Path) -> None:
    """Links, named pipes and names that are not UTF-8 are ignored by reading and never written over."""
    (tmp_path / "target").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / os.fsdecode(b"latin\xe9")).touch()

    async def check(store: LocalStore) -> None:
        for key in ("link", "dangling", "pipe"):
            with pytest.raises(NotFound):
                await store.get(key)
            for mode in (CREATE, OVERWRITE):
                with pytest.raises(StoreError, match="cannot be written"):
                    await store.put(key, b"x", mode)
            await store.delete(key)
        assert await keys_of(store) == ["target"]

    run(check, tmp_path)
    assert (tmp_path / "link").is_symlink()


def test_an_object_below_an_object(tmp_path: Path) -> None:
    """A folder cannot hold both "a" and "a/b": whoever comes second is told so."""

    async def check(store: LocalStore) -> None:
        await store.put("a", b"", CREATE)
        with pytest.raises(StoreError, match="below another"):
            await store.put("a/b", b"", CREATE)
        await store.put("c/d", b"", CREATE)
        for mode in (CREATE, OVERWRITE):
            with pytest.raises(StoreError, match="it is a folder"):
                await store.put("c", b"", mode)
        for missing in ("a/b", "c"):
            with pytest.raises(NotFound):
                await store.get(missing)
        assert await keys_of(store) == ["a", "c/d"]

    run(check, tmp_path)


@pytest.mark.parametrize("workspace", ["file", "file/ws"])
def test_a_file_in_the_place_of_the_workspace(workspace: str, tmp_path: Path) -> None:
    """It is an error to every operation, not an empty workspace; so is one on the way there."""
    (tmp_path / "file").touch()

    async def check(store: LocalStore) -> None:
        for request in (store.get, store.head, store.list, store.delete, lambda key: store.put(key, b"", CREATE)):
            with pytest.raises(ConfigurationError, match="is a file: a workspace is s3://bucket/prefix or a folder"):
                await request("key")

    run(check, tmp_path / workspace)


def test_a_workspace_that_is_not_there(tmp_path: Path) -> None:
    """It is empty; only writing makes it."""

    async def check(store: LocalStore) -> None:
        with pytest.raises(NotFound):
            await store.get("a")
        await store.delete_many(["a", "b"])
        assert await keys_of(store) == []
        assert not store.root.exists()
        await store.put("a", b"", CREATE)
        assert await keys_of(store) == ["a"]

    run(check, tmp_path / "new" / "workspace")


def test_reading_a_folder_that_olmocr_made(tmp_path: Path) -> None:
    """Reading leaves nothing behind; the store's clock is then the host's, as there is no file to touch."""
    (tmp_path / "index").write_bytes(b"data")
    runtime = SeededRuntime(1)

    async def main() -> None:
        store = LocalStore(tmp_path, runtime)
        assert (await store.get("index")).date == (await store.list("")).date == runtime.wall()

    trio.run(main, clock=trio.testing.MockClock())
    assert [path.name for path in tmp_path.iterdir()] == ["index"]


def test_the_clock_is_the_one_that_stamps_files(tmp_path: Path) -> None:
    """An object's age comes out right whatever this process takes for the time."""

    async def main() -> None:
        store = LocalStore(tmp_path, SeededRuntime(1, skew=-1e6))
        written = await store.put("a", b"", CREATE)
        head = await store.head("a")
        # A thousandth of what the host's clock is wrong by, and more than any disk takes.
        assert max(abs(head.modified - written.date), abs(head.date - written.date)) < 1000

    anyio.run(main)


def test_leftovers_of_dead_processes(tmp_path: Path) -> None:
    """Old temporary files go when a store is first written to; young ones may be in use."""
    temporary = tmp_path / ".s3queue" / "tmp"
    temporary.mkdir(parents=True)
    (temporary / "young").touch()
    (temporary / "old").touch()
    os.utime(temporary / "old", (1, 1))

    async def check(store: LocalStore) -> None:
        await store.put("a", b"", CREATE)
        assert await keys_of(store) == ["a"]

    run(check, tmp_path)
    assert [path.name for path in temporary.iterdir()] == ["young"]


def test_deleting_goes_on_after_an_error(tmp_path: Path) -> None:
    """The first error is raised once all the others are gone."""

    async def check(store: LocalStore) -> None:
        long = "/".join(["d" * 250] * 17)  # a path that no system call takes
        await store.put("a", b"", CREATE)
        await store.put("b", b"", CREATE)
        with pytest.raises(StoreError, match="too long"):
            await store.delete_many(["a", long, "b"])
        assert await keys_of(store) == []

    run(check, tmp_path)


def test_listings_side_by_side(tmp_path: Path) -> None:
    """Any number of listings go on from page to page, also those whose scan has been dropped meanwhile."""

    async def check(store: LocalStore) -> None:
        names = [f"d/{i}/{j}" for i in range(4) for j in range(10)]
        for name in names:
            await store.put(name, b"", CREATE)
        firsts = [await store.list("d/", start_after=name, limit=3) for name in names]
        await store.delete("d/3/9")
        for name, first in zip(names, firsts, strict=True):
            seen = [item.key for item in first.objects]
            following = first.next
            while following is not None:
                page = await store.list("d/", resume=following, limit=3)
                seen += [item.key for item in page.objects]
                following = page.next
            expected = [key for key in names if key > name and key != "d/3/9"]
            assert [key for key in seen if key != "d/3/9"] == expected

    run(check, tmp_path)
