"""The values that cross the public surface: frozen, slotted, keyword-only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "ActiveOwner",
    "FailedAttempt",
    "FailedGroup",
    "FailedPath",
    "Finding",
    "Look",
    "PathResult",
    "PoolStats",
    "QueueStatus",
    "RunSummary",
    "WorkItem",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """One work group under a lease of ours: what `get_work` returns and handlers of whole groups receive."""

    hash: str
    """The group's name: 40 hexadecimal digits."""
    work_paths: tuple[str, ...]
    """The group's paths, as they were populated."""
    epoch: int
    """The fencing token: grows with each take-over of the group. Pass it to whatever the handler writes."""
    failures: int = 0
    """Failed attempts before this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """A count of a workspace's groups, as one pair of listings showed them."""

    groups: int
    """Groups in the index."""
    paths: int
    """Paths in all of them."""
    done: int
    """Completed."""
    dead: int
    """Failed too often; nobody claims them until someone retries them."""
    leased: int
    """Under a lease that is not past its time to live."""
    expired: int
    """Under a lease that is past it: will be taken over."""
    released: int
    """Failed or handed back, and waiting for the next attempt."""

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

    epoch: int
    """The attempt's epoch."""
    attempt: int
    """Which failure in a row it was, from 1."""
    owner: str
    """Who tried: host, process and a few random characters."""
    at: str
    """When it failed (ISO 8601, by that machine's clock)."""
    kind: str
    """The exception's class, or ``lease expired`` for a crash."""
    error: str
    """What went wrong, in a line."""
    detail: str = ""
    """A traceback, or the end of a command's standard error."""
    host: str = ""
    """The machine's name."""
    seconds: float | None = None
    """How many seconds the attempt took; None: unknown, as for a crash."""
    paths: tuple[str, ...] = ()
    """The paths that failed, as far as that is known: at most 50, each cut to 200 characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedPath:
    """A path of a failed group that is not done."""

    path: str
    """The path, as it was populated."""
    attempts: int
    """Failed attempts at it since it was populated, or retried last."""
    crashes: int
    """Crashes that it may be to blame for, since then."""
    error: str = ""
    """Its last error in a line; empty if there was none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedGroup:
    """A group that is dead, or waits after a failed attempt."""

    hash: str
    """The group's name: 40 hexadecimal digits."""
    work_paths: tuple[str, ...]
    """All of its paths, also those that are done."""
    dead: bool
    """Whether it failed too often (or for good); otherwise it waits for its next attempt."""
    failures: int
    """Failed attempts since it was populated, or retried last."""
    last: FailedAttempt | None = None
    """The last one; None where its record could not be written, or read."""
    done: int = 0
    """Worked on path by path: how many paths are done."""
    paths: tuple[FailedPath, ...] = ()
    """Worked on path by path: those that failed, or crashed."""
    age: float = 0.0
    """Seconds since it failed last, by the store's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveOwner:
    """A process that holds leases."""

    owner: str
    """Its name, ``host:pid:random``; "olmOCR" for locks without one."""
    host: str
    """The machine's name."""
    groups: int
    """Live leases known to be its own."""
    age: float
    """Seconds since it last wrote one of these leases (claimed or renewed it), by the store's clock."""
    since: str = ""
    """When the oldest of them began (ISO 8601, by its clock); empty if that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A workspace at one moment."""

    status: QueueStatus
    """Its groups, counted."""
    rate: float | None
    """Groups completed a second, over the last two minutes at most; None as long as nothing is done."""
    eta: float | None
    """Seconds until all that is left is done, at this rate; None if nobody can say."""
    owners: tuple[ActiveOwner, ...]
    """Owners of live leases, those with the most groups first, as far as their locks are read."""
    unread: int
    """Live leases whose owner is not known: a look reads only some locks, and one may be unreadable."""
    failures: tuple[tuple[str, FailedAttempt], ...]
    """The last failed attempts of groups that are dead or wait, by group, the latest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathResult:
    """What came out for one finished path."""

    path: str
    """The path, as it was populated."""
    hash: str
    """The name of its group."""
    epoch: int
    """The epoch at which the group was completed; while it is not: the current one."""
    owner: str
    """Who completed the group, or has it now."""
    at: str
    """When the group was completed (ISO 8601, by the owner's clock); empty while it is not."""
    result: Any
    """What the handler returned for this path; a handler of whole groups: for the group, here with each of its paths.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something about a workspace that is not as it should be."""

    kind: str
    """A word or two that do not change between versions, such as ``dead group``."""
    where: str
    """The object that shows it, or the group's hash."""
    detail: str
    """What it means, and what can be done, in a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """A pool at one moment."""

    state: Literal["running", "paused", "draining", "stopping", "ended", "failed"]
    """``stopping``: what runs is given its grace."""
    workers: int
    """Calls of the handler that may run at a time."""
    running: int
    """Calls of the handler that run."""
    groups: int
    """Groups under way."""
    ahead: int
    """Groups leased ahead of the workers."""
    done: int
    """Groups that this pool completed."""
    failed: int
    """Attempts of this pool that failed."""
    lost: int
    """Groups whose lease it lost."""
    done_paths: int
    """Paths that it finished."""
    failed_paths: int
    """Attempts of it at paths that failed."""
    seconds: float
    """Seconds since it started, until it ended."""
    error: str = ""
    """Why it failed, or will have failed once the groups under way have ended; empty otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What one `run` did, and how it left the workspace."""

    done: int
    """Groups that this run completed."""
    failed: int
    """Attempts of this run that failed (a group may fail more than once)."""
    dead: int
    """Groups of the workspace that are dead."""
    leased_elsewhere: int
    """Groups that someone else held when this run ended."""
    unfinished: int
    """Groups of the workspace that are neither done nor dead."""
    lost: int
    """Groups whose lease this run lost while it worked on them."""
    seconds: float
    """Wall time of the run."""
    stopped: bool = False
    """Whether the run was told to stop (a signal, or the caller) before the workspace was complete."""
    limit: Literal["max_groups", "max_runtime"] | None = None
    """Which limit of the run's ended it before that, if one did."""
    done_paths: int = 0
    """Paths that this run finished."""
    failed_paths: int = 0
    """Attempts of this run at paths that failed."""

    @property
    def complete(self) -> bool:
        """Whether every group of the workspace is done or dead."""
        return self.unfinished == 0
