"""Following a workspace: each look says what a full count says, at a small part of its requests."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from s3queue import AccessDenied, QueueOptions, WorkItem, WorkQueue, _watch
from s3queue import _keys as keys
from s3queue._backend import Backend
from s3queue._model import ActiveOwner, FailedAttempt, Look, QueueStatus
from s3queue._picture import BUCKET
from s3queue._records import LockRecord, LockState
from s3queue._runtime import SeededRuntime
from s3queue.cli._app import run
from s3queue.cli._watch import _picture
from s3queue.stores import CREATE, MemoryBucket, MemoryStore
from s3queue.testing import Fault, FaultyStore
from tests.virtual import virtual

OPTIONS = QueueOptions(check_store=False, lease_ttl=60, backoff=1)


def machine(bucket: MemoryBucket, seed: int) -> tuple[WorkQueue, MemoryStore, SeededRuntime]:
    runtime = SeededRuntime(seed)
    store = MemoryStore(runtime, bucket, name=f"memory {seed}")
    return WorkQueue(Backend(store, runtime=runtime), options=OPTIONS, runtime=runtime), store, runtime


async def some_work(queue: WorkQueue) -> list[WorkItem]:
    """Complete some groups, fail some, kill some, hand some back; what is held at the end."""
    held = []
    for i in range(40):
        item = await queue.get_work()
        if item is None:
            break
        match i % 8:
            case 0:
                held.append(item)
            case 1:
                await queue.mark_failed(item, "no such luck")
            case 2:
                await queue.release(item)
            case _:
                await queue.mark_done(item)
    return held


@pytest.mark.parametrize("seed", range(5))
def test_each_look_is_a_full_count(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it lists only where something may have changed; also when the index grows meanwhile."""
    monkeypatch.setattr(_watch, "_PAGE", 7)

    @virtual
    async def test() -> None:
        bucket = MemoryBucket()
        (watcher, _, _), (worker, _, clock) = machine(bucket, 100 + seed), machine(bucket, seed)
        watch = watcher.watch()
        await worker.populate_queue([f"p{i}" for i in range(300)])
        for step in range(9):
            if step == 4:
                await worker.populate_queue([f"q{i}" for i in range(30)])

            assert (await watch.look()).status == await watcher.status()

            await some_work(worker)
            await clock.sleep(20)

    test()


@virtual
async def test_a_look_is_cheap() -> None:
    """With 30,000 groups done a later look takes a page of locks and the pages of flags round those under way."""
    bucket = MemoryBucket()
    (watcher, store, _), (worker, _, _) = machine(bucket, 1), machine(bucket, 2)
    await worker.populate_queue([f"p{i}" for i in range(31_000)])
    names = (await watcher._workspace.catalogue.load()).index
    for i in range(30_000):
        bucket.write(f"done_flags/done_{names.name(i)}.flag", b"", CREATE, 1_790_000_000.0)
    watch = watcher.watch()
    await watch.look()
    await some_work(worker)
    store.requests.clear()

    look = await watch.look()

    assert look.status.done == 30_025
    assert store.requests["list"] <= 1 + 3
    assert store.requests["head"] == 1
    assert store.requests["get"] <= 15 + 5


@pytest.mark.parametrize(("apart", "most"), [(1, 2), (50, 6), (1000, 10)])
@virtual
async def test_groups_that_lie_close_share_pages(apart: int, most: int) -> None:
    """Ten groups under way cost at most a page of flags each, and those a page apart at most cost it together."""
    bucket = MemoryBucket()
    (watcher, store, clock), (worker, _, _) = machine(bucket, 1), machine(bucket, 2)
    await worker.populate_queue([f"p{i}" for i in range(10_000)])
    index = (await watcher._workspace.catalogue.load()).index
    leased = set(range(0, 10 * apart, apart))
    lock = LockRecord(state=LockState.HELD, token="t" * 16, epoch=1, ttl=60, owner="host:1:abc").encode()
    for i in range(10_000):
        key, body = (keys.lock(index.name(i)), lock) if i in leased else (keys.flag(index.name(i)), b"{}")
        bucket.write(key, body, CREATE, clock.wall())
    watch = watcher.watch()
    await watch.look()
    for i in leased:
        bucket.write(keys.flag(index.name(i)), b"{}", CREATE, clock.wall())
    store.requests.clear()

    assert (await watch.look()).status.done == 10_000
    assert 2 <= store.requests["list"] <= 1 + most


@virtual
async def test_a_look_that_fails_on_its_way_loses_nothing() -> None:
    """A group whose lock went between two looks is found by the one after, though that one failed after it saw so."""
    bucket = MemoryBucket()
    (_, _, runtime), (worker, _, _) = machine(bucket, 1), machine(bucket, 2)
    store = FaultyStore(MemoryStore(runtime, bucket), runtime)  # which writes nothing late here
    watch = WorkQueue(Backend(store, runtime=runtime), options=OPTIONS, runtime=runtime).watch()
    await worker.populate_queue(["a", "b"])
    item = await worker.get_work()
    assert item is not None
    await watch.look()
    bucket.write(keys.flag(item.hash), b"", CREATE, runtime.wall())
    bucket.remove(keys.lock(item.hash))  # as olmOCR does, at once
    store.script("list", keys.FLAGS, Fault.FAILS_BEFORE, error=AccessDenied)
    with pytest.raises(AccessDenied):
        await watch.look()

    assert (await watch.look()).status.done == 1


@virtual
async def test_who_works_and_what_failed() -> None:
    """Owners by name with their leases, the rate by the completions' dates, the time left, and the last failures."""
    bucket = MemoryBucket()
    (watcher, _, _), (worker, _, clock) = machine(bucket, 1), machine(bucket, 2)
    await worker.populate_queue([f"p{i}" for i in range(100)])
    watch = watcher.watch()
    first = await watch.look()
    began = clock.wall() // BUCKET * BUCKET
    held = await some_work(worker)
    await clock.sleep(10)

    second = await watch.look()

    assert (first.rate, first.eta, first.owners, first.failures) == (None, None, (), ())
    assert second.rate == pytest.approx(second.status.done / (clock.wall() // 1 - began))
    assert second.eta == pytest.approx((100 - second.status.done) / (second.rate or 1))
    (owner,) = second.owners
    assert owner.owner.startswith("sim:2:")
    assert (owner.host, owner.groups, round(owner.age)) == ("sim", len(held), 10)
    assert second.unread == 0
    assert [attempt.error for _, attempt in second.failures] == ["no such luck"] * 5
    await clock.sleep(100)
    assert (await watch.look()).owners == ()


def test_the_table_trusts_nothing() -> None:
    """Control characters of a name or an error reach no terminal, and markup is text."""
    status = QueueStatus(groups=3, paths=3, done=1, dead=1, leased=1, expired=0, released=0)
    attempt = FailedAttempt(epoch=1, attempt=1, owner="o", at="then", kind="ValueError", error="\x1b[2Jgone [red]x")
    owner = ActiveOwner(owner="[b]h\x07:1:x", host="h", groups=1, age=3.0)
    look = Look(status=status, rate=2.0, eta=61.0, owners=(owner,), unread=4, failures=(("ab" * 20, attempt),))
    file = io.StringIO()

    Console(file=file, force_terminal=True, width=100, color_system=None).print(_picture(look))

    text = file.getvalue()
    assert "\x1b[2J" not in text
    assert "\x07" not in text
    for expected in ("[b]h", "3 s ago", "[2Jgone [red]x", "1 min", "not read yet", "2.0"):
        assert expected in text


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal there is a line a look, for people or for scripts, until everything is done."""
    workspace = str(tmp_path / "ws")
    (tmp_path / "list").write_text("a\nb\n")
    assert run(["run", workspace, "--from-file", str(tmp_path / "list"), "--", "echo", "{}"]) == 0
    capsys.readouterr()

    assert run(["status", workspace, "--watch"]) == 0
    assert capsys.readouterr().out == "2 of 2 groups done, 0 running, 0 expired, 0 waiting, 0 dead, 0 free\n"
    assert run(["status", workspace, "--watch", "--json"]) == 0
    look = json.loads(capsys.readouterr().out)
    assert (look["done"], look["eta"], look["owners"], look["failures"]) == (2, 0, [], [])
    assert look["rate"] > 0
    assert run(["status", workspace, "--watch", "--interval", "0"]) == 2
