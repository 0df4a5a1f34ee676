"""A batch as it is in life, on a real server: paths that fail once, or always, or kill their process; and kills."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pytest

from s3queue import Backend, WorkQueue
from tests.conftest import store_on
from tests.servers._process import S3Server

GROUPS, PER_GROUP, PROCESSES = 500, 20, 3
WORKER = Path(__file__).with_name("outcome_worker.py")

T = TypeVar("T")


def batch() -> list[str]:
    """5 % fail once, 1 % always, three kill."""
    count = GROUPS * PER_GROUP
    kinds = ["killer"] * 3 + ["always"] * (count // 100) + ["once"] * (count // 20)
    kinds += ["good"] * (count - len(kinds))
    random.Random(7).shuffle(kinds)
    return [f"{i:05}-{kind}" for i, kind in enumerate(kinds)]


class Fleet:
    """Worker processes; whoever dies is replaced, until all that is left ends by itself."""

    def __init__(self, server: S3Server, prefix: str, folder: Path) -> None:
        self._environment = {**os.environ, **server.environment()}
        self._workspace = f"s3://{server.bucket}/{prefix}"
        self._folder = folder
        (folder / "marks").mkdir()
        self.ledgers: list[Path] = []
        self.running: dict[subprocess.Popen[bytes], Path] = {}
        #: The ledgers of the processes that a path killed, and of those that we did.
        self.dead: list[Path] = []
        self.killed: list[Path] = []

    def start(self, *more: str) -> None:
        ledger = self._folder / f"ledger{len(self.ledgers)}"
        self.ledgers.append(ledger)
        command = [
            sys.executable,
            "-m",
            "tests.outcome_worker",
            self._workspace,
            str(ledger),
            str(self._folder / "marks"),
        ]
        with ledger.with_suffix(".err").open("wb") as errors:
            self.running[subprocess.Popen([*command, *more], env=self._environment, stderr=errors)] = ledger

    def finish(self, kills: list[int]) -> None:
        """Wait for the end; ``kill -9`` a process whenever so many paths have ended as `kills` says next."""
        while self.running:
            time.sleep(0.05)
            if kills and len(self.ended()) >= kills[0] and self._kill(next(iter(self.running))):
                kills.pop(0)
            for process in [process for process in self.running if process.poll() is not None]:
                ledger = self.running.pop(process)
                if process.returncode:
                    ends = {9: self.dead, -signal.SIGKILL: self.killed}
                    assert process.returncode in ends, ledger.with_suffix(".err").read_text()[-5000:]
                    ends[process.returncode].append(ledger)
                    self.start()

    @staticmethod
    def _kill(process: subprocess.Popen[bytes]) -> bool:
        """False if it had ended before."""
        process.kill()
        return process.wait() == -signal.SIGKILL

    def facts(self, ledger: Path) -> list[dict[str, Any]]:
        lines = ledger.read_bytes().split(b"\n")[:-1] if ledger.exists() else []
        return [json.loads(line) for line in lines]

    def ended(self) -> Counter[str]:
        """How often each path was done."""
        return Counter(
            fact["path"] for ledger in self.ledgers for fact in self.facts(ledger) if fact["event"] == "ended"
        )

    def unlucky(self) -> set[str]:
        """Paths that three deaths found running, of which we dealt one: nobody can tell them from killers."""
        running = {ledger: self._in_flight(ledger) for ledger in self.dead + self.killed}
        times = Counter(itertools.chain(*running.values()))
        return {path for ledger in self.killed for path in running[ledger] if times[path] >= 3}

    def _in_flight(self, ledger: Path) -> set[str]:
        found: set[str] = set()
        for fact in self.facts(ledger):
            if fact["event"] == "began":
                found.add(fact["path"])
            elif fact["event"] in ("ended", "raised"):
                found.discard(fact["path"])
        return found

    def requests(self) -> int:
        """What all processes sent, as far as they could still say."""
        counts = [[fact["requests"] for fact in self.facts(ledger) if "requests" in fact] for ledger in self.ledgers]
        return sum(max(count, default=0) for count in counts)


@contextmanager
def fleet(server: S3Server, prefix: str, folder: Path) -> Iterator[Fleet]:
    workers = Fleet(server, prefix, folder)
    try:
        yield workers
    finally:
        for process in workers.running:
            process.kill()
            process.wait()


def on_queue(server: S3Server, prefix: str, what: Callable[[WorkQueue], Awaitable[T]]) -> T:
    async def main() -> T:
        async with store_on(server, prefix) as store:
            return await what(WorkQueue(Backend(store)))

    return anyio.run(main)


async def results_of(queue: WorkQueue) -> list[tuple[str, Any]]:
    return [(result.path, result.result) async for result in queue.results()]


async def findings_of(queue: WorkQueue) -> list[str]:
    return [finding.kind async for finding in queue.check()]


@pytest.mark.slow
def test_outcomes(seaweed: S3Server, prefix: str, tmp_path: Path, proof: Callable[[str], None]) -> None:
    """500 groups of 20: exactly what always fails or kills is dead, all else done once; everything agrees."""
    paths = batch()
    hopeless = {path for path in paths if path.endswith(("always", "killer"))}
    assert on_queue(seaweed, prefix, lambda queue: queue.populate_queue(paths, PER_GROUP)) == GROUPS
    with fleet(seaweed, prefix, tmp_path) as workers:
        for _ in range(PROCESSES):
            workers.start()
        workers.finish(kills=[1500, 4500])
        status = on_queue(seaweed, prefix, WorkQueue.status)
        failed = on_queue(seaweed, prefix, WorkQueue.failures)
        results = on_queue(seaweed, prefix, results_of)
        ended = workers.ended()
        deaths = len(workers.dead) + len(workers.killed)
        proof(f"outcomes: {workers.requests() / len(paths):.3f} requests a path, {deaths} deaths of processes")
        hopeless |= workers.unlucky()

        # Each killer kills three times; a death that hit another killer's group counts for both.
        assert 3 * 2 <= len(workers.dead) <= 3 * 3
        assert len(workers.killed) == 2
        assert status.done + status.dead == GROUPS
        assert {path.path for group in failed for path in group.paths} == hopeless
        assert sorted(results) == sorted((path, {"of": path}) for path in set(paths) - hopeless)
        assert set(ended) == set(paths) - hopeless
        assert_nothing_on_record_ran_again(workers)
        assert set(on_queue(seaweed, prefix, findings_of)) == {"dead group"}

        assert on_queue(seaweed, prefix, WorkQueue.retry) == status.dead
        workers.start("fixed")
        workers.finish(kills=[])
        assert workers.ended() - ended == Counter(hopeless)
    results = on_queue(seaweed, prefix, results_of)
    assert sorted(results) == sorted((path, {"of": path}) for path in paths)
    assert on_queue(seaweed, prefix, findings_of) == []
    history = on_queue(seaweed, prefix, lambda queue: queue.history(failed[0].hash))
    assert len(history) >= 3


def assert_nothing_on_record_ran_again(workers: Fleet) -> None:
    """What a process had on record (as many paths as its last lock said, in the order they ended) began at no later
    epoch."""
    facts = {ledger: workers.facts(ledger) for ledger in workers.ledgers}
    last: dict[str, int] = {}
    for fact in itertools.chain(*facts.values()):
        if fact["event"] == "began":
            last[fact["path"]] = max(fact["epoch"], last.get(fact["path"], 0))
    for ledger in workers.ledgers:
        ended: dict[str, list[str]] = {}
        claimed: dict[str, dict[str, Any]] = {}
        recorded: dict[str, int] = {}
        for fact in facts[ledger]:
            group = fact.get("hash", "")
            if fact["event"] == "group.claimed":
                claimed[group], recorded[group], ended[group] = fact, fact["done"], []
            elif fact["event"] == "lease.renewed":
                recorded[group] = fact["done"]
            elif fact["event"] == "ended":
                ended[group].append(fact["path"])
        for group, paths in ended.items():
            on_record = paths[: recorded[group] - claimed[group]["done"]]
            assert all(last[path] <= claimed[group]["epoch"] for path in on_record)
