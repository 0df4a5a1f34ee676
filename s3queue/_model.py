"""The values that cross the public surface: frozen, slotted, keyword-only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "FailedAttempt",
    "FailedGroup",
    "FailedPath",
    "Finding",
    "PathResult",
    "PoolStats",
    "QueueStatus",
    "RunSummary",
    "WorkItem",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One work group under a lease of ours: what `get_work` returns and handlers of whole groups receive."""

    #: The group's name: 40 hexadecimal digits.
    hash: str
    #: The group's paths, as they were populated.
    work_paths: tuple[str, ...]
    #: The fencing token: grows with each take-over of the group. Pass it to whatever the handler writes.
    epoch: int
    #: Failed attempts before this one.
    failures: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """A count of a workspace's groups, as one pair of listings showed them."""

    #: Groups in the index, and the paths in them.
    groups: int
    paths: int
    #: Completed.
    done: int
    #: Failed too often; nobody claims them until someone retries them.
    dead: int
    #: Under a lease that is not past its time to live.
    leased: int
    #: Under a lease that is past it: will be taken over.
    expired: int
    #: Failed or handed back, and waiting for the next attempt.
    released: int

    @property
    def free(self) -> int:
        """Groups that nobody has claimed yet."""
        return self.groups - self.done - self.dead - self.leased - self.expired - self.released

    @property
    def complete(self) -> bool:
        """Whether every group is done or dead."""
        return self.done + self.dead == self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAttempt:
    """What is on record of one failed attempt at a group."""

    #: The attempt's epoch, and which failure in a row it was, from 1.
    epoch: int
    attempt: int
    #: Who tried, and when it failed (ISO 8601, by that machine's clock).
    owner: str
    at: str
    #: The exception's class, or ``lease expired`` for a crash; what went wrong, in a line.
    kind: str
    error: str
    #: A traceback, or the end of a command's standard error.
    detail: str = ""
    #: The machine, and how many seconds the attempt took (None: unknown, as for a crash).
    host: str = ""
    seconds: float | None = None
    #: The paths that failed, as far as that is known: at most 50, each cut to 200 characters.
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPath:
    """A path of a failed group that is not done."""

    path: str
    #: Failed attempts at it, and crashes that it may be to blame for, since it was populated or retried last.
    attempts: int
    crashes: int
    #: Its last error in a line; empty if there was none.
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedGroup:
    """A group that is dead, or waits after a failed attempt."""

    #: The group's name, and its paths.
    hash: str
    work_paths: tuple[str, ...]
    #: Whether it failed too often (or for good); otherwise it waits for its next attempt.
    dead: bool
    #: Failed attempts since it was populated, or retried last.
    failures: int
    #: The last one; None where its record could not be written, or read.
    last: FailedAttempt | None = None
    #: Worked on path by path: how many are done, and the others that failed.
    done: int = 0
    paths: tuple[FailedPath, ...] = ()
    #: Seconds since it failed last, by the store's clock.
    age: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PathResult:
    """What came out for one finished path."""

    path: str
    #: The path's group, and the owner that completed it (or has it now), at its epoch.
    hash: str
    epoch: int
    owner: str
    #: When the group was completed (ISO 8601, by the owner's clock); empty while it is not.
    at: str
    #: What the handler returned for this path; a handler of whole groups: for the group, here with each of its paths.
    result: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about a workspace that is not as it should be."""

    #: A word or two that do not change between versions, such as ``dead group``.
    kind: str
    #: The object that shows it, or the group's hash.
    where: str
    #: What it means, and what can be done, in a line.
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """A pool at one moment."""

    #: ``running``; ``paused``; ``draining``; ``stopping`` (what runs is given its grace); ``ended``; ``failed``.
    state: Literal["running", "paused", "draining", "stopping", "ended", "failed"]
    #: Calls of the handler that may run at a time, and that do.
    workers: int
    running: int
    #: Groups under way, and leased ahead of the workers.
    groups: int
    ahead: int
    #: Groups that this pool completed; attempts of it that failed; groups whose lease it lost.
    done: int
    failed: int
    lost: int
    #: Paths that it finished, and attempts of it at paths that failed.
    done_paths: int
    failed_paths: int
    #: Seconds since it started, until it ended.
    seconds: float
    #: Why it failed, or will have failed once the groups under way have ended; empty otherwise.
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What one `run` did, and how it left the workspace."""

    #: Groups that this run completed.
    done: int
    #: Attempts of this run that failed (a group may fail more than once).
    failed: int
    #: Groups of the workspace that are dead.
    dead: int
    #: Groups that someone else held when this run ended.
    leased_elsewhere: int
    #: Groups of the workspace that are neither done nor dead.
    unfinished: int
    #: Groups whose lease this run lost while it worked on them.
    lost: int
    #: Wall time of the run.
    seconds: float
    #: Whether the run was told to stop (a signal, or the caller) before the workspace was complete.
    stopped: bool = False
    #: Which limit of the run's ended it before that, if one did.
    limit: Literal["max_groups", "max_runtime"] | None = None
    #: Paths that this run finished, and attempts of it at paths that failed.
    done_paths: int = 0
    failed_paths: int = 0

    @property
    def complete(self) -> bool:
        """Whether every group of the workspace is done or dead."""
        return self.unfinished == 0
