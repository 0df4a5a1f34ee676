"""An auditor between all processes and their bucket: it holds the design's promises against every write and every run.

It judges states, not requests: what a lock said before and after a write, how old it was by the true clock, who wrote
it. So it stands while the protocol's requests change. What breaks a promise raises `Violation` where it happens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from s3queue import _keys as keys
from s3queue._errors import DamagedWorkspace, NotFound
from s3queue._index import Index
from s3queue._records import Flag, LockRecord, LockState, looks_released
from s3queue.stores import MemoryBucket, PutMode, Version
from s3queue.stores._port import Listed

#: Seconds by which a released lock may be taken before its back-off is over: stamps are whole, and nodes may differ.
_COARSE = 3.0


class Violation(AssertionError):
    """A promise is broken."""


@dataclass(frozen=True)
class _Writing:
    author: str
    at: float


class Audit:
    """One bucket, seen by one who sees everything. `clock` is the true time; `olmocr` their locks' time to live."""

    def __init__(self, clock: Callable[[], float], *, olmocr: float = 1800.0) -> None:
        self.bucket = MemoryBucket()
        #: The first promise that was broken. Code under test may swallow what is raised inside its handlers.
        self.violation: str | None = None
        self._clock = clock
        self._olmocr = olmocr
        self._writings: dict[str, _Writing] = {}
        #: Processes that are no more; that follow olmOCR's rules; that are a person.
        self.dead: set[str] = set()
        self.strangers: set[str] = set()
        self.operators: set[str] = set()
        self._running: dict[str, dict[str, Callable[[], bool]]] = {}
        self._epochs_run: set[tuple[str, int]] = set()
        #: Leases won on groups that were done already: whoever won one must find out, and not run it.
        self._stillborn: set[tuple[str, int]] = set()
        #: Groups whose locks were touched by those who keep no lease, or break them: there, owners may overlap.
        self._disturbed: set[str] = set()
        #: (author, group) of completions that were sent.
        self._flags_sent: set[tuple[str, str]] = set()
        self._promised: set[str] = set()
        self.told_done = Counter[str]()
        self.runs = Counter[str]()
        #: (time, author, what, key) of every change, for comparing histories.
        self.history: list[tuple[float, str, str, str]] = []

    def view(self, author: str) -> MemoryBucket:
        """The bucket as this process writes to it."""
        return _View(self, author)

    # What processes tell.

    def populated(self, paths: Iterable[str]) -> None:
        """A populate was acknowledged: these paths must be there from now on."""
        self._promised.update(paths)
        self._check_promised()

    def begins(self, author: str, group: str, epoch: int, valid: Callable[[], bool] = lambda: True) -> None:
        """A handler starts; `valid` says whether its owner still believes in its lease."""
        self.runs[group] += 1
        running = self._running.setdefault(group, {})
        running[author] = valid
        if group in self._disturbed:
            return
        others = [name for name, believes in running.items() if name not in {*self.dead, author} and believes()]
        self._demand(not others, f"{author} runs {_short(group)} while {others} runs it")
        self._demand((group, epoch) not in self._epochs_run, f"{_short(group)} runs twice at epoch {epoch}")
        self._demand(
            (group, epoch) not in self._stillborn,
            f"{author} runs {_short(group)}, which was done before its lease at epoch {epoch} began",
        )
        self._epochs_run.add((group, epoch))

    def ends(self, author: str, group: str) -> None:
        """That handler has ended."""
        self._running.get(group, {}).pop(author, None)

    def path_begins(self, author: str, path: str) -> None:
        """A handler of one path starts."""
        running = self._running.setdefault(path, {})
        others = [name for name in running if name not in {*self.dead, author}]
        self._demand(not others or bool(self._disturbed), f"{author} runs {path} while {others} runs it")
        running[author] = lambda: True

    def path_ends(self, author: str, path: str) -> None:
        """That handler has ended."""
        self._running.get(path, {}).pop(author, None)

    def completed(self, author: str, group: str, epoch: int) -> None:
        """A process was told that it completed the group."""
        self.told_done[group] += 1
        if group in self._disturbed:
            return
        self._demand(self.told_done[group] == 1, f"{_short(group)} was completed twice")
        self._demand(
            self._completer(group) == (author, epoch), f"{author} was told it completed {_short(group)}; it did not"
        )

    def refused(self, author: str, group: str, epoch: int) -> None:
        """A process was told that somebody else completed, or took over, its group."""
        self._demand(
            self._completer(group) != (author, epoch),
            f"{author} completed {_short(group)} and was told that it did not",
        )

    def lost(self, author: str, group: str, epoch: int) -> None:
        """A process was told that its lease is somebody else's."""
        lock = self._data(keys.lock(group))
        own = lock is not None and self._writings[keys.lock(group)].author == author
        self._demand(
            not own or LockRecord.decode(lock or b"").epoch != epoch or self._is_past(group),
            f"{author} holds {_short(group)} and was told that it is lost",
        )

    def sends_flag(self, author: str, group: str) -> None:
        """A process sends a completion: the first time the lock must be its own, however late it arrives."""
        if (author, group) in self._flags_sent:
            return
        self._flags_sent.add((author, group))
        if self._data(keys.flag(group)) is not None:
            return  # its lock may have been cleared away
        writing = self._writings.get(keys.lock(group))
        own = writing is not None and writing.author == author
        self._demand(own or group in self._disturbed, f"{author} completes {_short(group)} without holding it")

    def _is_past(self, group: str) -> bool:
        lock = LockRecord.decode(self._data(keys.lock(group)) or b"")
        return lock.state is not LockState.HELD or self._clock() > self._writings[keys.lock(group)].at + (
            lock.ttl or self._olmocr
        )

    def _completer(self, group: str) -> tuple[str, int] | None:
        writing = self._writings.get(keys.flag(group))
        return None if writing is None else (writing.author, Flag.decode(self._data(keys.flag(group)) or b"").epoch)

    # What must hold at the end.

    def check_end(self, *, settled: bool = True) -> None:
        """Every promised path is in a group, and every group is done or dead (if `settled`: somebody worked)."""
        self._check_promised()
        lost = [group for group, _ in self.index() if settled and not self.settled(group)]
        self._demand(not lost, f"{len(lost)} groups are neither done nor dead: {[_short(group) for group in lost[:3]]}")

    def is_done(self, group: str) -> bool:
        """Whether the group has a done flag."""
        return self._data(keys.flag(group)) is not None

    def settled(self, group: str) -> bool:
        """Whether the group is done or dead."""
        if self.is_done(group):
            return True
        lock = self._data(keys.lock(group))
        return lock is not None and LockRecord.decode(lock).state is LockState.DEAD

    def index(self) -> Index:
        """The index as it is."""
        data = self._data(keys.INDEX)
        return Index(b"") if data is None else Index.decode(data)

    def _check_promised(self) -> None:
        missing = self._promised - {path for _, paths in self.index() for path in paths}
        self._demand(not missing, f"paths are lost: {sorted(missing)[:3]}")

    # What is seen of the bucket.

    def write(self, author: str, key: str, data: bytes, mode: PutMode, now: float) -> Version:
        before = self._data(key)
        version = self.bucket.write(key, data, mode, now)
        group = keys.parse_lock(key)
        if author in self.operators | self.strangers:
            self._disturbed.add(group or keys.parse_flag(key) or "")
        if group is not None:
            self._audit_lock(author, group, before, data)
        elif key == keys.INDEX:
            self._audit_index(before)
        elif author not in self.strangers:
            self._demand(before is None, f"{author} wrote {key} over what was there")
        self._writings[key] = _Writing(author, self._clock())
        self.history.append((self._clock(), author, "put", f"{key} {version}"))
        return version

    def remove(self, author: str, key: str) -> None:
        if self._data(key) is None:
            return
        group = keys.parse_lock(key)
        if author not in self.strangers:
            self._demand(group is not None, f"{author} deleted {key}")
            self._demand(
                group is not None and self._data(keys.flag(group)) is not None,
                f"{author} deleted the lock of {_short(group or '')}, which is not done",
            )
        self.bucket.remove(key)
        self._writings.pop(key, None)
        self.history.append((self._clock(), author, "delete", key))

    def _audit_index(self, before: bytes | None) -> None:
        old = Index(b"") if before is None else Index.decode(before)
        new = [path for _, paths in self.index() for path in paths]
        self._demand(len(new) == len(set(new)), "a path is in two groups")
        lost = {path for _, paths in old for path in paths} - set(new)
        self._demand(not lost, f"paths disappeared from the index: {sorted(lost)[:3]}")

    def _audit_lock(self, author: str, group: str, before: bytes | None, after: bytes) -> None:
        if author in self.strangers:
            return
        try:
            new = LockRecord.decode(after)
        except DamagedWorkspace as error:
            self._demand(False, f"{author} wrote a lock that cannot be read: {error}")
            return
        self._demand(looks_released(len(after)) == (new.state is not LockState.HELD), f"{new} has a misleading size")
        old = None if before is None else LockRecord.decode(before)
        if old is not None:
            self._audit_change(author, group, old, new)
        begins = new.state is LockState.HELD and (old is None or new.epoch > old.epoch)
        if begins and self._data(keys.flag(group)) is not None:
            self._stillborn.add((group, new.epoch))

    def _audit_change(self, author: str, group: str, old: LockRecord, new: LockRecord) -> None:
        what = f"{author} changed the lock of {_short(group)} from {_told(old)} to {_told(new)}"
        self._demand(old.token != new.token, f"{what}: two intents with one token")
        if author in self.operators:
            self._demand(new.state is LockState.FREE and new.epoch == old.epoch, what)
            return
        self._demand(new.failures - old.failures in (0, 1), f"{what}: failures do not add up")
        if new.state is LockState.HELD and new.epoch == old.epoch:
            self._demand(
                self._is_own(author, group, old) and new.beat == old.beat + 1, f"{what}: no renewal of its own"
            )
        elif new.state is LockState.HELD:
            self._demand(new.epoch == old.epoch + 1, f"{what}: epochs do not add up")
            self._audit_taking(what, group, old)
        else:
            self._demand(self._is_own(author, group, old) and new.epoch == old.epoch, f"{what}: not its own to leave")

    def _is_own(self, author: str, group: str, old: LockRecord) -> bool:
        return old.state is LockState.HELD and self._writings[keys.lock(group)].author == author

    def _audit_taking(self, what: str, group: str, old: LockRecord) -> None:
        age = self._clock() - self._writings[keys.lock(group)].at
        match old.state:
            case LockState.HELD:
                allowed = self._olmocr if old.ttl is None else old.ttl
                self._demand(age > allowed, f"{what} after {age:.1f} s, and it was valid for {allowed:g}")
            case LockState.FREE:
                self._demand(age >= old.backoff - _COARSE, f"{what} after {age:.1f} s, in its back-off")
            case LockState.DEAD:
                self._demand(False, f"{what}, and it was dead")

    def _demand(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.violation = self.violation or otherwise
            raise Violation(otherwise)

    def _data(self, key: str) -> bytes | None:
        try:
            return self.bucket.find(key).data
        except NotFound:
            return None


class _View(MemoryBucket):
    """What one process has in hand of the audited bucket."""

    def __init__(self, audit: Audit, author: str) -> None:
        super().__init__()
        self._audit = audit
        self._author = author
        # Reads need no audit, and are most of the work.
        self.find = audit.bucket.find  # type: ignore[method-assign]

    def __len__(self) -> int:
        return len(self._audit.bucket)

    def write(self, key: str, data: bytes, mode: PutMode, now: float) -> Version:
        return self._audit.write(self._author, key, data, mode, now)

    def remove(self, key: str) -> None:
        self._audit.remove(self._author, key)

    def slice(self, prefix: str, after: str | None, limit: int) -> tuple[list[Listed], bool]:
        return self._audit.bucket.slice(prefix, after, limit)


def _short(group: str) -> str:
    return group[:6]


def _told(lock: LockRecord) -> str:
    return f"{lock.state.value}/epoch {lock.epoch}/beat {lock.beat}/{lock.owner or lock.token or 'empty'}"
