"""Progress inside a group, through whole queues in virtual time: crashes, failures, drains, retries, results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from s3queue import PermanentError, RetryLater, RunSummary, current_item
from s3queue import _keys as keys
from s3queue._index import group_hash
from s3queue._pool import Per
from s3queue._records import LockState
from s3queue.stores import OVERWRITE
from s3queue.testing import Fault
from tests.machines import OPTIONS, Machine, machine
from tests.virtual import virtual

Handler = Callable[[str], Awaitable[Any]]


def puts(made: Machine, prefix: str) -> int:
    """Writes that a machine sent below a prefix."""
    return len([entry for entry in made.store.log if entry[0] == "put" and entry[1].startswith(prefix)])


async def killed(made: Machine, handler: Handler, after: float, per: Per = "path", workers: int = 4) -> None:
    """Run until `after` seconds; then the process is gone, without a word."""
    with anyio.move_on_after(after):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: made.run(handler, per=per, workers=workers))
            await anyio.sleep(after - 0.001)
            made.unplug()
            await anyio.sleep_forever()


class Processes:
    """Processes on one bucket, each in the place of one that was killed: of one that ran for too long."""

    def __init__(self, first: Machine) -> None:
        self.now = first

    async def run(self, handler: Handler, *, workers: int) -> RunSummary:
        """Path by path, until a process comes to its end."""
        for seed in range(2, 20):
            with anyio.move_on_after(200):
                return await self.now.run(handler, per="path", workers=workers)
            self.now = Machine(self.now.bucket, seed)
        raise AssertionError("no end in sight")


class Calls:
    """A handler that takes a second, counts, and returns the path; some paths do something else first."""

    def __init__(self, seconds: float = 1.0, **faults: Callable[[], None]) -> None:
        self.counts = Counter[str]()
        self._seconds = seconds
        self._faults = faults

    async def __call__(self, path: str) -> str:
        self.counts[path] += 1
        if path in self._faults:
            self._faults[path]()
        await anyio.sleep(self._seconds)
        return path.upper()


@virtual
async def test_a_short_group_costs_two_writes() -> None:
    """What ends within `checkpoint_every` is told by its completion alone."""
    made = await machine(20, 20)
    puts_before = puts(made, "")

    await made.run(Calls(0.1), per="path")

    assert puts(made, "") - puts_before == 2
    (flag,) = made.flags().values()
    assert (flag.size, len(flag.results), flag.pieces) == (20, 20, {})


@virtual
async def test_a_long_group_is_checkpointed() -> None:
    """At most one write of the lock each `checkpoint_every` seconds, besides the renewals, with its piece before it."""
    made = await machine(100, 100, lease_ttl=60)

    await made.run(Calls(10.0), per="path", workers=5)

    assert 200 / 10 <= puts(made, keys.LOCKS) <= 200 / 5
    assert puts(made, keys.RESULTS) <= puts(made, keys.LOCKS)
    order = [entry[1] for entry in made.store.log if entry[0] == "put" and entry[1].startswith(("worker", "results"))]
    assert order[1].startswith(keys.RESULTS)
    assert len(await made.results()) == 100


@virtual
async def test_nothing_new_costs_nothing() -> None:
    """A group that takes long over one path is renewed at a third of its ttl, and no more."""
    made = await machine(1, 1, lease_ttl=30)

    await made.run(Calls(100.0), per="path")

    assert puts(made, keys.LOCKS) == 1 + 10
    assert puts(made, keys.RESULTS) == 0


@virtual
async def test_a_crash_loses_seconds_not_the_group() -> None:
    """Whoever takes over runs only what was finished less than `checkpoint_every` ago, and keeps all results."""
    made = await machine(40, 40)
    first, second = Calls(2.0), Calls(0.1)
    await killed(made, first, after=13.0)
    finished = set(sorted(first.counts)[: 4 * 6])

    other = Machine(made.bucket, 2)
    summary = await other.run(second, per="path")

    assert summary.done == 1
    again = finished & set(second.counts)
    assert len(again) <= 4 * (OPTIONS.checkpoint_every / 2.0 + 1)
    assert len(finished - again) >= 8
    assert await other.results() == {f"p{i:03}": f"P{i:03}" for i in range(40)}


@virtual
async def test_siblings_of_a_failure_run_once() -> None:
    """A failing path neither stops nor repeats the others, and is tried as often as it may be."""
    made = await machine(20, 20)

    def fails() -> None:
        raise ValueError("no")

    calls = Calls(p003=fails)
    summary = await made.run(calls, per="path")

    assert calls.counts == {**{f"p{i:03}": 1 for i in range(20)}, "p003": 3}
    assert (summary.done, summary.dead) == (0, 1)
    (group,) = await made.queue.failures()
    assert (group.dead, group.done, len(group.paths)) == (True, 19, 1)
    assert (group.paths[0].path, group.paths[0].attempts, group.paths[0].error) == ("p003", 3, "ValueError: no")
    assert len(await made.results()) == 19


@virtual
async def test_attempts_are_counted_by_path() -> None:
    """A path that starts to fail late has all its attempts, whatever its siblings used up; each has its last error."""
    made = await machine(3, 3)
    later = Counter[str]()

    def permanent() -> None:
        raise PermanentError("never")

    def not_yet() -> None:
        later["p001"] += 1
        if later["p001"] <= 2:
            raise RetryLater(30)
        raise ValueError(f"attempt {later['p001']}")

    calls = Calls(p000=permanent, p001=not_yet)
    await made.run(calls, per="path")

    assert calls.counts == {"p000": 1, "p001": 5, "p002": 1}
    (group,) = await made.queue.failures()
    assert {path.path: (path.attempts, path.error) for path in group.paths} == {
        "p000": (1, "PermanentError: never"),
        "p001": (3, "ValueError: attempt 5"),
    }


@virtual
async def test_a_retry_runs_only_what_is_not_done() -> None:
    """A dead group that is retried keeps its done part, its results, and the history of its failures."""
    made = await machine(10, 10)
    broken = True

    def fails() -> None:
        if broken:
            raise PermanentError("not today")

    calls = Calls(p004=fails)
    await made.run(calls, per="path")
    broken = False
    assert await made.queue.retry() == 1

    summary = await made.run(calls, per="path")

    assert summary.done == 1
    assert calls.counts["p004"] == 2
    assert sum(calls.counts.values()) == 11
    assert len(await made.results()) == 10
    (group,) = [keys.parse_flag(key) for key in made.flags()]
    assert [attempt.error for attempt in await made.queue.history(group or "")] == ["not today · path: p004"]


@virtual
async def test_a_drain_keeps_what_is_finished() -> None:
    """What a drained run finished stays done, with its results, before and after the group is complete."""
    made = await machine(40, 40)
    first, second = Calls(2.0), Calls(0.1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(lambda: made.run(first, per="path", workers=4, grace=0))
        await anyio.sleep(5)
        made.queue.stop()
    (lock,) = made.locks()
    assert (lock.state, lock.saved) == (LockState.FREE, True)
    assert await made.results() == {path: path.upper() for path in sorted(first.counts)[:8]}

    await made.run(second, per="path")

    assert set(first.counts) & set(second.counts) == set(sorted(first.counts)[8:])
    assert len(await made.results()) == 40


@virtual
async def test_results_are_written_before_they_count() -> None:
    """While pieces cannot be written, no lock says that their paths are done, and the lease lives on."""
    made = await machine(400, 400)
    made.store.script("put", keys.RESULTS, Fault.FAILS_BEFORE, times=1000)
    await killed(made, Calls(1.0), after=40.0)
    (lock,) = made.locks()

    assert lock.beat >= 2
    assert lock.progress is None or not any(lock.progress.done)
    assert made.saw("progress.unsaved")


@virtual
async def test_a_killer_is_found_and_dies_alone() -> None:
    """Three crashes in a row of one path: dead, by name; everything else is done, and ran once after its last crash."""
    processes = Processes(await machine(12, 4))
    calls = Counter[str]()
    running: set[str] = set()
    alone: list[set[str]] = []

    async def handler(path: str) -> str:
        calls[path] += 1
        running.add(path)
        try:
            if path == "p005":
                alone.append(set(running))
                processes.now.unplug()
                await anyio.sleep_forever()
            await anyio.sleep(1)
        finally:
            running.discard(path)
        return path.upper()

    summary = await processes.run(handler, workers=8)

    assert calls["p005"] == 3
    assert alone[-1] == {"p005"}
    status = await processes.now.queue.status()
    assert (status.done, status.dead, summary.unfinished) == (2, 1, 0)
    (group,) = await processes.now.queue.failures()
    assert [(path.path, path.crashes) for path in group.paths] == [("p005", 3)]
    assert group.last is not None
    assert group.last.kind == "lease expired"
    assert group.last.paths == ("p005",)
    assert set(await processes.now.results()) == {f"p{i:03}" for i in range(12)} - {"p005"}


@virtual
async def test_a_failure_of_another_path_revives_no_killer() -> None:
    """What killed its process three times stays dead while its siblings have attempts left."""
    processes = Processes(await machine(4, 4))
    calls = Counter[str]()

    async def handler(path: str) -> None:
        calls[path] += 1
        if path == "p001":
            raise ValueError("fails always")
        if path == "p002":
            processes.now.unplug()
            await anyio.sleep_forever()

    summary = await processes.run(handler, workers=4)

    assert calls["p002"] == 3
    assert summary.dead == 1
    (group,) = await processes.now.queue.failures()
    assert {path.path: path.crashes for path in group.paths} == {"p001": 0, "p002": 3}
    fixed = Calls()
    await processes.now.queue.retry()
    assert (await processes.now.run(fixed, per="path")).done == 1
    assert fixed.counts == Counter(["p001", "p002"])


@pytest.mark.parametrize("per", ["path", "group"])
@virtual
async def test_who_survives_alone_is_named_no_more(per: Per) -> None:
    """When others run again, no lock names a path that had its last chance: their deaths would bury it."""
    made = await machine(8, 4)
    for seed in (2, 3):  # the first death blames whole groups, the second what their locks name
        await killed(made, Calls(200.0), after=60.0, per=per, workers=8)
        made = Machine(made.bucket, seed)
    await made.queue.populate_queue([f"q{i:03}" for i in range(400)], 4)
    chances, named_later = set[str](), set[str]()

    async def handler(work: Any) -> None:
        ours = current_item()
        for group, lock in made.locks_by_group().items():
            progress = lock.progress
            if progress is not None and progress.running is not None and progress.blamed.get(progress.running):
                (chances if group == ours.hash else named_later).add(group)
        await anyio.sleep(3)

    summary = await made.run(handler, per=per, workers=8)

    assert (summary.done, summary.failed) == (102, 0)
    assert chances
    assert not named_later


@virtual
async def test_a_whole_group_that_kills_dies_alone() -> None:
    """The same for handlers of whole groups."""
    made = await machine(3, 1)
    process = made
    calls = Counter[str]()

    async def handler(item: Any) -> None:
        calls[item.work_paths[0]] += 1
        if item.work_paths == ("p001",):
            process.unplug()
            await anyio.sleep_forever()

    for seed in range(2, 20):
        with anyio.move_on_after(200) as scope:
            summary = await process.run(handler, workers=1)
        if not scope.cancelled_caught:
            break
        process = Machine(made.bucket, seed)

    assert calls["p001"] == 3
    assert (summary.dead, summary.unfinished) == (1, 0)


@virtual
async def test_a_lock_about_another_group() -> None:
    """Progress over another number of paths is not believed: everything runs, and that is said."""
    made = await machine(5, 5)
    lies = {"n": 3, "done": "Bw=="}
    record = {"v": 1, "state": "held", "token": "x", "epoch": 1, "ttl": 1.0, "progress": lies}
    lock = keys.lock(group_hash([f"p{i:03}" for i in range(5)]))
    made.bucket.write(lock, json.dumps(record).encode(), OVERWRITE, anyio.current_time())
    await anyio.sleep(60)
    calls = Calls(0.1)

    await made.run(calls, per="path")

    assert len(calls.counts) == 5
    assert made.saw("progress.lost")


@virtual
async def test_a_lost_piece() -> None:
    """A piece that somebody deleted takes its results along, and no more; `check` says which."""
    made = await machine(30, 30)
    await made.run(Calls(3.0), per="path", workers=3)
    pieces = [item.key for item in made.bucket.slice(keys.RESULTS, None, 100)[0]]
    assert pieces
    made.bucket.remove(pieces[0])

    results = await made.results()

    assert len(results) == 30
    assert 0 < list(results.values()).count(None) < 30
    findings = [finding async for finding in made.queue.check()]
    assert [finding.kind for finding in findings] == ["missing results"]
    assert pieces[0] in findings[0].detail


@pytest.mark.parametrize("workers", [1, 4])
@virtual
async def test_a_long_lease_survives_failures_and_renewals(workers: int) -> None:
    """Checkpoints, renewals and failures of one lock never meet: each write finds the version of the one before."""
    made = await machine(60, 60, lease_ttl=10, checkpoint_every=1.0, max_attempts=2)

    def fails() -> None:
        raise ValueError("no")

    calls = Calls(1.5, **{f"p{i:03}": fails for i in range(0, 60, 7)})
    summary = await made.run(calls, per="path", workers=workers)

    assert not made.saw("lease.lost")
    assert summary.lost == 0
    assert all(calls.counts[f"p{i:03}"] == (2 if i % 7 == 0 else 1) for i in range(60))
    refused = [entry for entry in made.store.log if entry[0] == "get" and entry[1].startswith(keys.LOCKS)]
    assert len(refused) <= 2, "a lock was read back, so a write of it was refused"


@virtual
async def test_the_completion_names_its_pieces() -> None:
    """And holds only what no piece has."""
    made = await machine(30, 30)
    await made.run(Calls(3.0), per="path", workers=3)

    (flag,) = made.flags().values()
    pieces = made.bucket.slice(keys.RESULTS, None, 100)[0]
    assert flag.pieces == {1: (1, len(pieces))}
    assert 0 < len(flag.results) < 30
