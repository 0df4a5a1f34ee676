"""Four workers on one workspace, and one who harms them, as a seed says, until it is time to stop."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from random import Random

from s3queue._pool import Per
from tests.chaos.worker import OPTIONS, SETTLED

_ROOT = Path(__file__).parents[2]
_WORKERS = 4


class Fleet:
    """Processes, their ledgers, and when they stood still."""

    def __init__(self, workspace: str, folder: Path, environment: Mapping[str, str], seed: int, per: Per) -> None:
        self.folder = folder
        self.pauses: list[tuple[int, float, float]] = []
        #: Paths that must be there in the end.
        self.promised: set[str] = set()
        #: What was done, how often.
        self.harm: Counter[str] = Counter()
        self._workspace = workspace
        self._environment = {**os.environ, **environment}
        self._rng = Random(seed)
        self._per = per
        #: Paths that there are at the begin for each second of harm: somewhat more than get done meanwhile.
        self.rate = 20.0 if per == "group" else 12.0
        self._lives = 0
        self._workers: dict[int, subprocess.Popen[bytes]] = {}
        self._populates: list[subprocess.Popen[bytes]] = []
        #: When those that are down come back, and those that stand still go on.
        self._dead: dict[int, float] = {}
        self._still: dict[int, tuple[float, float]] = {}

    def start(self) -> None:
        for place in range(_WORKERS):
            self._start_worker(place)

    def populate(self, prefix: str, count: int) -> None:
        """Have one more process add paths, and not wait for it."""
        self.promised.update(f"{prefix}-{i}" for i in range(count))
        self._populates.append(self._start("populate", prefix, str(count)))

    def _start_worker(self, place: int) -> None:
        self._lives += 1
        ledger = self.folder / f"ledger{self._lives}"
        self._workers[place] = self._start("work", str(ledger), str(self._rng.getrandbits(32)), self._per)

    def _start(self, what: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.chaos.worker", what, self._workspace, *arguments]
        with (self.folder / "errors").open("ab") as errors:
            return subprocess.Popen(command, env=self._environment, cwd=_ROOT, stderr=errors)

    def _any(self) -> int | None:
        """A worker that runs."""
        places = [place for place in self._workers if place not in self._dead and place not in self._still]
        return self._rng.choice(places) if places else None

    def kill(self) -> None:
        """``kill -9`` one; another takes its place in a while."""
        if (place := self._any()) is None:
            return
        self.harm["kills"] += 1
        self._workers[place].kill()
        self._workers[place].wait()
        self._dead[place] = time.monotonic() + self._rng.uniform(0, 4)

    def stop(self) -> None:
        """Have one stand still, mostly for longer than its leases live."""
        if (place := self._any()) is None:
            return
        self.harm["stops"] += 1
        self._workers[place].send_signal(signal.SIGSTOP)
        until = time.monotonic() + self._rng.uniform(0.5, 2.5) * OPTIONS.lease_ttl
        self._still[place] = (_clock(), until)

    def look(self) -> None:
        """Wake who has stood still for long enough, and replace the dead. Nobody may end by itself."""
        for place, (_, until) in list(self._still.items()):
            if time.monotonic() >= until:
                self._wake(place)
        for place, until in list(self._dead.items()):
            if time.monotonic() >= until:
                del self._dead[place]
                self._start_worker(place)
        for place, worker in self._workers.items():
            assert place in self._dead or worker.poll() is None, f"a worker left: {self.errors()}"

    def _wake(self, place: int) -> None:
        worker = self._workers[place]
        worker.send_signal(signal.SIGCONT)
        self.pauses.append((worker.pid, self._still.pop(place)[0], _clock()))

    def settle(self, within: float) -> None:
        """All go on, in peace; everything must be finished in time."""
        for place in list(self._still):
            self._wake(place)
        for place in list(self._dead):
            del self._dead[place]
            self._start_worker(place)
        deadline = time.monotonic() + within
        self._wait(self._populates, deadline)
        (self.folder / SETTLED).touch()
        self._wait(list(self._workers.values()), deadline)

    def _wait(self, processes: list[subprocess.Popen[bytes]], deadline: float) -> None:
        for process in processes:
            try:
                status = process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"not finished in time: {self.errors()}") from None
            assert status == 0, self.errors()

    def errors(self) -> str:
        """The end of what the processes wrote to standard error."""
        return (self.folder / "errors").read_text(errors="replace")[-3000:]

    def ledgers(self) -> list[Path]:
        return sorted(self.folder.glob("ledger*"))

    def end(self) -> None:
        """Leave nobody behind, not even those that stand still."""
        for process in [*self._workers.values(), *self._populates]:
            process.kill()
            process.wait()


@contextmanager
def fleet(workspace: str, folder: Path, environment: Mapping[str, str], seed: int, per: Per) -> Iterator[Fleet]:
    """Processes that are gone when the block ends."""
    made = Fleet(workspace, folder, environment, seed, per)
    try:
        yield made
    finally:
        made.end()


def harass(workers: Fleet, seconds: float, rng: Random, *more: Callable[[], None]) -> None:
    """Do some harm every second or two; `more` is what else can be done here. There is work for all that time."""
    workers.populate("path", int(workers.rate * seconds))
    workers.start()
    until = time.monotonic() + seconds
    next_harm = 0.0
    populates = 0
    while time.monotonic() < until:
        workers.look()
        if time.monotonic() >= next_harm:
            rng.choice([workers.kill, workers.stop, *more])()
            next_harm = time.monotonic() + rng.uniform(0.5, 2.5)
        if populates < 3 and time.monotonic() > until - seconds * (3 - populates) / 4:
            # Three at a time, two of which add the same paths.
            populates += 1
            for _ in range(2):
                workers.populate(f"more{populates}", int(workers.rate * seconds / 5))
            workers.populate(f"other{populates}", int(workers.rate * seconds / 5))
        time.sleep(0.05)


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)
