"""The lease protocol's decisions: plain functions of records, ages and settings. No I/O, no clock.

Ages are the store's ``Date`` minus the store's ``LastModified``; times of an owner's own are its monotonic clock's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from s3queue._options import QueueOptions
from s3queue._progress import Progress
from s3queue._records import LockRecord, LockState, looks_released

__all__ = ["Dead", "Standing", "Takeable", "Taken"]


#: The longest wait that a released lock can tell.
WAIT_MOST = 86_400.0


@dataclass(frozen=True, slots=True)
class Taken:
    """Somebody's, for at least `seconds` more by the store's clock (or, after a failure, nobody's yet)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Takeable:
    """Anybody may take it over now; `crashed` if its last owner let the lease run out."""

    crashed: bool


@dataclass(frozen=True, slots=True)
class Dead:
    """Failed too often: nobody's until someone retries it."""


Standing = Taken | Takeable | Dead


def patience(ttl: float | None, options: QueueOptions) -> float:
    """Age, in seconds, past which a held lock may be taken over."""
    return (options.olmocr_lock_timeout if ttl is None else ttl) + options.margin


def standing(lock: LockRecord, age: float, options: QueueOptions) -> Standing:
    """What a lock that was last written `age` seconds ago lets others do."""
    match lock.state:
        case LockState.DEAD:
            return Dead()
        case LockState.FREE:
            wait, crashed = float(lock.backoff), False
        case LockState.HELD:
            wait, crashed = patience(lock.ttl, options), True
    # A store's stamps may be whole seconds: only an age beyond the bound proves it passed.
    return Takeable(crashed) if age > wait or wait == 0 else Taken(wait - age + 0.5)


def listed_wait(size: int, age: float, options: QueueOptions) -> float:
    """Seconds until a lock that a listing shows is worth reading; 0 for now.

    A listing shows no ttl, so other owners are assumed to use ours; the read tells.
    """
    if looks_released(size):
        return 0.0
    return max(0.0, patience(None if size == 0 else options.lease_ttl, options) - age)


def deadline(sent: float, ttl: float, options: QueueOptions) -> float:
    """When an owner gives its lease up unless a later write is acknowledged; `sent` is when it sent the last one."""
    return sent + ttl - options.margin


def renew_at(sent: float, ttl: float) -> float:
    """When the next renewal is due: a third of the ttl, so that two may fail, and few enough for stores that limit
    writes per key."""
    return sent + ttl / 3


def outlived(flag_age: float, options: QueueOptions) -> bool:
    """Whether a done flag is so old, by the store's clock, that nobody needs its group's lock any more."""
    return flag_age >= options.completion_grace + options.margin


def is_proof(listed: float | None, now: float, options: QueueOptions) -> bool:
    """Whether a listing of flags that began at `listed` and did not show a group's proves that the group, whose lock
    was created by `now` (both by our monotonic clock), is not done.

    Had it been completed before the listing began, its flag had been in there; had it been completed later, its lock
    would still be there (it outlives the flag by `completion_grace`), and ours could not have been created.
    """
    return listed is not None and now - listed < options.completion_grace


def taken_over(
    lock: LockRecord, *, token: str, owner: str, ttl: float, since: str, progress: Progress | None = None
) -> LockRecord:
    """The lock of whoever takes `lock` over: the next epoch. Crashes are counted in `progress`."""
    return LockRecord(
        state=LockState.HELD,
        token=token,
        epoch=lock.epoch + 1,
        failures=lock.failures,
        ttl=ttl,
        owner=owner,
        since=since,
        progress=progress,
    )


def renewed(lock: LockRecord, *, token: str, progress: Progress | None = None) -> LockRecord:
    """The same lease, one beat later, with what is known of the work inside by now."""
    return replace(lock, token=token, beat=lock.beat + 1, progress=progress)


def released(lock: LockRecord, *, token: str, wait: float = 0.0, saved: bool = False) -> LockRecord:
    """The lock as an owner leaves it that neither finished nor failed: free, after `wait` seconds. The epoch stays.

    `saved`: the epoch's piece 0 tells what was done and what failed until now."""
    seconds = math.ceil(min(max(0.0, wait), WAIT_MOST))
    return _left(lock, LockState.FREE, token, lock.failures, seconds, saved)


def failed(
    lock: LockRecord, *, token: str, dead: bool, options: QueueOptions, wait: float = 0.0, saved: bool = False
) -> LockRecord:
    """The lock after a failed attempt: dead, or free after a back-off (of `wait` seconds at least). The epoch stays."""
    failures = lock.failures + 1
    if dead:
        return _left(lock, LockState.DEAD, token, failures, 0, saved)
    seconds = math.ceil(min(max(float(backoff(failures, options)), wait), WAIT_MOST))
    return _left(lock, LockState.FREE, token, failures, seconds, saved)


def is_last_attempt(lock: LockRecord, options: QueueOptions) -> bool:
    """Whether one more failure makes the group, tried as a whole, dead."""
    return lock.failures + 1 >= options.max_attempts


def buried(lock: LockRecord, *, token: str, saved: bool = False) -> LockRecord:
    """A lock whose group nobody shall try again, without a failure of its last owner's."""
    return _left(lock, LockState.DEAD, token, lock.failures, 0, saved)


def revived(lock: LockRecord, *, token: str) -> LockRecord:
    """A released or dead lock with a clean slate: no failures, claimable now.

    The epoch stays, so the records of what failed before keep theirs; and what is done stays done."""
    return LockRecord(state=LockState.FREE, token=token, epoch=lock.epoch, saved=lock.saved, forgiven=lock.saved)


def _left(lock: LockRecord, state: LockState, token: str, failures: int, backoff: int, saved: bool) -> LockRecord:
    return LockRecord(state=state, token=token, epoch=lock.epoch, failures=failures, backoff=backoff, saved=saved)


def backoff(failures: int, options: QueueOptions) -> int:
    """Whole seconds to wait after the `failures`-th failure."""
    return math.ceil(min(options.backoff_max, options.backoff * 2.0 ** min(failures - 1, 60)))
