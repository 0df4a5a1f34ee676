"""Whole processes on one workspace of a real server: healthy, and killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from s3queue import Backend, QueueStatus, WorkQueue
from s3queue import _keys as keys
from s3queue._records import Flag
from s3queue._survey import list_flags
from tests.conftest import store_on
from tests.servers._process import S3Server

GROUPS = 2000
WORKER = Path(__file__).with_name("worker.py")


class Fleet:
    """Four worker processes, and what they wrote down.

    `most`: how many groups each begins before `open_gate`."""

    def __init__(
        self, server: S3Server, prefix: str, folder: Path, *, lease_ttl: float, most: Sequence[int] = (GROUPS,) * 4
    ) -> None:
        self.ledgers = [folder / f"ledger{i}" for i in range(4)]
        self._gate = folder / "gate"
        environment = {**os.environ, **server.environment()}
        workspace = f"s3://{server.bucket}/{prefix}"
        command = [sys.executable, str(WORKER), workspace]
        self.processes = [
            subprocess.Popen([*command, str(ledger), str(lease_ttl), str(self._gate), str(count)], env=environment)
            for ledger, count in zip(self.ledgers, most, strict=True)
        ]

    def open_gate(self) -> None:
        self._gate.touch()

    def facts(self, worker: int) -> list[dict[str, Any]]:
        path = self.ledgers[worker]
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def count(self, worker: int, event: str) -> Counter[str]:
        """How often `event` happened to each group in one process."""
        return Counter(fact["hash"] for fact in self.facts(worker) if fact["event"] == event)

    def all(self, event: str) -> Counter[str]:
        return sum((self.count(i, event) for i in range(len(self.ledgers))), Counter())

    def kill_after(self, worker: int, groups: int) -> None:
        """``kill -9`` a process once it has completed so many groups."""
        while self.count(worker, "group.done").total() < groups:
            assert self.processes[worker].poll() is None, "it ended before it could be killed"
            time.sleep(0.02)
        self.processes[worker].send_signal(signal.SIGKILL)
        self.processes[worker].wait()


@contextmanager
def fleet(server: S3Server, prefix: str, folder: Path, **options: Any) -> Iterator[Fleet]:
    """Whatever happens, no process is left."""
    workers = Fleet(server, prefix, folder, **options)
    try:
        yield workers
    finally:
        for process in workers.processes:
            process.kill()
            process.wait()


def populate(server: S3Server, prefix: str) -> None:
    async def main() -> None:
        async with store_on(server, prefix) as store:
            await WorkQueue(Backend(store)).populate_queue([f"path-{i}" for i in range(GROUPS)])

    anyio.run(main)


def audit(server: S3Server, prefix: str) -> tuple[QueueStatus, list[Flag]]:
    """How the workspace looks afterwards."""

    async def main() -> tuple[QueueStatus, list[Flag]]:
        async with store_on(server, prefix) as store:
            flags = [Flag.decode((await store.get(keys.flag(group))).data) for group in await list_flags(store)]
            return await WorkQueue(Backend(store)).status(), flags

    return anyio.run(main)


@pytest.mark.slow
def test_four_healthy_processes(seaweed: S3Server, prefix: str, tmp_path: Path) -> None:
    """Each of 2000 groups runs once and is completed once; nothing is left over."""
    populate(seaweed, prefix)
    with fleet(seaweed, prefix, tmp_path, lease_ttl=60) as workers:
        assert [process.wait(120) for process in workers.processes] == [0, 0, 0, 0]

        assert set(workers.all("began").values()) == {1}
        assert set(workers.all("group.done").values()) == {1}
        assert not workers.all("lease.lost")
    status, flags = audit(seaweed, prefix)
    assert (status.groups, status.done, status.leased, status.released) == (GROUPS, GROUPS, 0, 0)
    assert {flag.epoch for flag in flags} == {1}


@pytest.mark.slow
def test_two_of_four_are_killed(seaweed: S3Server, prefix: str, tmp_path: Path) -> None:
    """After ``kill -9`` of two processes the others finish everything, and take nothing from each other."""
    populate(seaweed, prefix)
    with fleet(seaweed, prefix, tmp_path, lease_ttl=9, most=[500, 500, 0, 0]) as workers:
        workers.kill_after(0, 40)
        workers.kill_after(1, 60)
        workers.open_gate()
        assert [process.wait(120) for process in workers.processes[2:]] == [0, 0]

        orphans = {group for i in (0, 1) for group in workers.count(i, "began") - workers.count(i, "group.done")}
        assert set(workers.all("group.done").values()) == {1}
        assert {group for group, times in workers.all("began").items() if times > 1} <= orphans
        assert not workers.all("lease.lost")
        assert set(workers.all("lease.taken_over")) - orphans <= claimed_but_not_begun(workers)
        summaries = [fact for i in (2, 3) for fact in workers.facts(i) if fact["event"] == "summary"]
        assert [(fact["lost"], fact["unfinished"]) for fact in summaries] == [(0, 0), (0, 0)]
    status, flags = audit(seaweed, prefix)
    assert (status.groups, status.done, status.leased, status.expired) == (GROUPS, GROUPS, 0, 0)
    assert sorted(path for flag in flags for path in flag.result) == sorted(f"path-{i}" for i in range(GROUPS))


def claimed_but_not_begun(workers: Fleet) -> set[str]:
    """Groups that the dead had claimed ahead: nobody but a taker ever began them."""
    return {group for group in workers.all("lease.taken_over") if workers.all("began")[group] == 1}
