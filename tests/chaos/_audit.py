"""Reads the ledgers, and says which promise is broken."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

#: (process id, from, to): when a process stood still, by the machine's monotonic clock.
Pause = tuple[int, float, float]


@dataclass
class Run:
    """One run of a handler, as its ledger tells it."""

    group: str
    epoch: int
    #: What it was about; all of the group's paths if this is empty.
    path: str
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
        return f"{self.path or self.group[:6]} at epoch {self.epoch} in process {self.pid}"


@dataclass
class Facts:
    """Everything that was written down."""

    runs: list[Run]
    #: (group, epoch, process id) of each completion that a process was told of.
    told: list[tuple[str, int, int]]
    repeated: list[str]


@dataclass
class Completion:
    """What the queue says of a group that is done."""

    epoch: int
    #: By path.
    results: dict[str, Any]


def read(ledgers: Iterable[Path]) -> Facts:
    """All ledgers. A kill may leave half a line at the end of a life; that says nothing."""
    runs: dict[tuple[str, int, str], Run] = {}
    facts = Facts([], [], [])
    for fact in sorted(_lines(ledgers), key=lambda fact: fact["at"]):
        key = fact["group"], fact["epoch"], fact.get("path", "")
        match fact["event"]:
            case "began":
                if key in runs:
                    facts.repeated.append(f"{runs[key]}, and again in process {fact['pid']}")
                runs[key] = Run(*key, fact["pid"], fact["at"])
            case "step":
                runs[key].steps.append(fact["at"])
            case "told":
                facts.told.append((fact["group"], fact["epoch"], fact["pid"]))
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
    facts: Facts, done: Mapping[str, Completion], groups: Mapping[str, Sequence[str]], pauses: Sequence[Pause]
) -> list[str]:
    """What is wrong: nothing, one hopes."""
    return [
        *(f"one lease ran twice: {what}" for what in facts.repeated),
        *(f"{group[:6]} is not done" for group in groups if group not in done),
        *_results(facts, done, groups),
        *_told(facts, done),
        *_overlaps(facts, pauses),
    ]


def _results(facts: Facts, done: Mapping[str, Completion], groups: Mapping[str, Sequence[str]]) -> Iterable[str]:
    """Each path has the result of a run that came to its end, and of no later lease than the completion's."""
    returned = {
        (path, json.dumps([run.pid, run.epoch, run.path])): run.epoch
        for run in facts.runs
        if run.ending == "returned"
        for path in ([run.path] if run.path else groups[run.group])
    }
    for group, completion in done.items():
        for path in groups[group]:
            result = completion.results.get(path)
            if returned.get((path, json.dumps(result)), completion.epoch + 1) > completion.epoch:
                yield f"{path} was completed at epoch {completion.epoch} with {result}, which no run returned"


def _told(facts: Facts, done: Mapping[str, Completion]) -> Iterable[str]:
    """Whoever is told that it completed a group did so, and is told once."""
    owners = {(run.group, run.epoch): run.pid for run in facts.runs}
    for (group, epoch, pid), times in Counter(facts.told).items():
        did = group in done and done[group].epoch == epoch and owners.get((group, epoch), pid) == pid
        if times > 1 or not did:
            yield f"process {pid} was told {times} times that it completed {group[:6]} at epoch {epoch}; it did not"


def _overlaps(facts: Facts, pauses: Sequence[Pause]) -> Iterable[str]:
    """No run goes on when the next lease's first has begun.

    One whose process stood still may wake up after that: it may end the step in which it was stopped, if only that,
    and must then be stopped, or be refused when it completes (which is judged elsewhere)."""
    leases: dict[str, dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in facts.runs:
        leases[run.group][run.epoch].append(run)
    for epochs in leases.values():
        for earlier, later in pairwise(runs for _, runs in sorted(epochs.items())):
            successor = min(later, key=lambda run: run.began)
            since = min(run.began for run in earlier)
            if successor.began < since:
                yield f"{successor} began before {earlier[0]}"
            for run in earlier:
                if run.last > successor.began:
                    yield from _beside(run, successor, since, pauses)


def _beside(run: Run, successor: Run, since: float, pauses: Sequence[Pause]) -> Iterable[str]:
    late = [step for step in run.steps if step > successor.began]
    stood_still = any(pid == run.pid and begin < run.last and end > since for pid, begin, end in pauses)
    if not stood_still:
        yield f"{run} ran on for {run.last - successor.began:.2f} s beside {successor}"
    elif len(late) > 1 or not run.ending:
        yield f"{run} woke up beside {successor}, and took {len(late)} steps ({run.ending or 'no end'})"
