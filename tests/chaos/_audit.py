"""Reads the ledgers, and says which promise is broken."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from s3queue._records import Flag

#: (process id, from, to): when a process stood still, by the machine's monotonic clock.
Pause = tuple[int, float, float]


@dataclass
class Run:
    """One run of a handler, as its ledger tells it."""

    group: str
    epoch: int
    pid: int
    began: float
    steps: list[float] = field(default_factory=list)
    #: "returned" or "cancelled", and when; a process that was killed said neither.
    ending: str = ""
    ended: float = 0.0

    @property
    def last(self) -> float:
        """When it was last known to run."""
        return max([self.began, self.ended, *self.steps])

    def __str__(self) -> str:
        return f"{self.group[:6]} at epoch {self.epoch} in process {self.pid}"


@dataclass
class Facts:
    """Everything that was written down."""

    runs: list[Run]
    #: (group, epoch, process id) of each completion that a process was told of.
    told: list[tuple[str, int, int]]
    repeated: list[str]


def read(ledgers: Iterable[Path]) -> Facts:
    """All ledgers. A kill may leave half a line at the end of a life; that says nothing."""
    runs: dict[tuple[str, int], Run] = {}
    facts = Facts([], [], [])
    for fact in sorted(_lines(ledgers), key=lambda fact: fact["at"]):
        key = fact["group"], fact["epoch"]
        match fact["event"]:
            case "began":
                if key in runs:
                    facts.repeated.append(f"{runs[key]}, and again in process {fact['pid']}")
                runs[key] = Run(*key, fact["pid"], fact["at"])
            case "step":
                runs[key].steps.append(fact["at"])
            case "told":
                facts.told.append((*key, fact["pid"]))
            case ending:
                runs[key].ending, runs[key].ended = ending, fact["at"]
    facts.runs = list(runs.values())
    return facts


def _lines(ledgers: Iterable[Path]) -> Iterable[dict[str, Any]]:
    for ledger in ledgers:
        for line in ledger.read_bytes().split(b"\n"):
            if line.endswith(b"}"):
                yield json.loads(line)


def broken(
    facts: Facts, flags: Mapping[str, Flag], groups: Mapping[str, Sequence[str]], pauses: Sequence[Pause]
) -> list[str]:
    """What is wrong: nothing, one hopes."""
    return [
        *(f"one lease ran twice: {what}" for what in facts.repeated),
        *_unfinished(flags, groups),
        *_completions(facts, flags, groups),
        *_overlaps(facts, pauses),
    ]


def _unfinished(flags: Mapping[str, Flag], groups: Mapping[str, Sequence[str]]) -> Iterable[str]:
    yield from (f"{group[:6]} is not done" for group in groups if group not in flags)


def _completions(facts: Facts, flags: Mapping[str, Flag], groups: Mapping[str, Sequence[str]]) -> Iterable[str]:
    runs = {(run.group, run.epoch): run for run in facts.runs}
    for group, flag in flags.items():
        run = runs.get((group, flag.epoch))
        if run is None or run.ending != "returned":
            yield f"{group[:6]} was completed at epoch {flag.epoch} by no run that came to its end"
        elif flag.result != [run.pid, run.epoch, *groups[group]]:
            yield f"{run} was completed with another result: {flag.result}"
    for (group, epoch, pid), times in Counter(facts.told).items():
        if times > 1 or group not in flags or flags[group].epoch != epoch or runs[group, epoch].pid != pid:
            yield f"process {pid} was told {times} times that it completed {group[:6]} at epoch {epoch}; it did not"


def _overlaps(facts: Facts, pauses: Sequence[Pause]) -> Iterable[str]:
    """No run goes on when its successor has begun.

    One whose process stood still may wake up after that: it may end the step in which it was stopped, if only that,
    and must then be stopped, or be refused when it completes (which is judged elsewhere)."""
    by_group: dict[str, list[Run]] = defaultdict(list)
    for run in facts.runs:
        by_group[run.group].append(run)
    for runs in by_group.values():
        runs.sort(key=lambda run: run.began)
        for earlier, later in pairwise(runs):
            if later.epoch <= earlier.epoch:
                yield f"{later} began after {earlier}"
            if earlier.last <= later.began:
                continue
            late = [step for step in earlier.steps if step > later.began]
            stood_still = any(
                pid == earlier.pid and begin < earlier.last and end > earlier.began for pid, begin, end in pauses
            )
            if not stood_still:
                yield f"{earlier} ran on for {earlier.last - later.began:.2f} s beside {later}"
            elif len(late) > 1 or not earlier.ending:
                yield f"{earlier} woke up beside {later}, and took {len(late)} steps ({earlier.ending or 'no end'})"
