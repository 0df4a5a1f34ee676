"""The breakages: each a patch of the real code that makes it do what the design forbids."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import anyio
import pytest

from s3queue import _intent, _lease, _locks
from s3queue import _keys as keys
from s3queue import _lease_rules as rules
from s3queue._catalogue import Catalogue
from s3queue._intent import Intent, Lost, Outcome, Unknown, Won
from s3queue._keeper import Keeper
from s3queue._lease import Leases
from s3queue._locks import Locks
from s3queue._outcomes import Lease
from s3queue._plan import Finished, Plan
from s3queue._records import Flag, LockRecord, LockState
from s3queue._runtime import Runtime, SeededRuntime
from s3queue._scheduler import Scheduler
from s3queue._survey import Stretch
from s3queue.stores import CREATE, OVERWRITE, Body, Store, Version

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutant:
    """One breakage."""

    name: str
    #: What the mutated code does.
    what: str
    patch: Patch
    #: Which instrument is to notice: the name of a scope (with a ~: at random), or "simulation".
    where: str


MUTANTS: list[Mutant] = []


def _mutant(
    name: str, where: str
) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Callable[[pytest.MonkeyPatch], None]]:
    def register(patch: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
        MUTANTS.append(Mutant(name, patch.__doc__ or "", patch, where))
        return patch

    return register


def _plain(intent: Intent) -> Intent:
    """The same write without its condition."""
    changes: Any = {"mode": OVERWRITE}
    return replace(intent, **changes)


def _writes(patch: pytest.MonkeyPatch, plain: Callable[[LockRecord, Version | None], bool]) -> None:
    """Make `Locks.write` drop its condition where `plain` says."""
    original = Locks.write

    async def write(self: Locks, group: str, record: LockRecord, version: Version | None) -> Outcome:
        if not plain(record, version):
            return await original(self, group, record, version)
        intent = _plain(_locks.lock_intent(group, record, version))
        return await _intent.settle(self._store, self._runtime, intent, until=self.until())

    patch.setattr(Locks, "write", write)


# Conditions that are left out.


@_mutant("claim by plain PUT", "lease")
def _(patch: pytest.MonkeyPatch) -> None:
    """A lock is created whatever is there."""
    _writes(patch, lambda record, version: version is None)


@_mutant("take-over by plain PUT", "crowd")
def _(patch: pytest.MonkeyPatch) -> None:
    """A lock is taken over whatever became of it since it was read."""
    _writes(patch, lambda record, version: version is not None and record.state is LockState.HELD)


@_mutant("take-over by delete and create", "leave")
def _(patch: pytest.MonkeyPatch) -> None:
    """An expired or released lock is deleted and made anew."""
    original = Locks.write

    async def write(self: Locks, group: str, record: LockRecord, version: Version | None) -> Outcome:
        if version is not None and record.state is LockState.HELD:
            await self._store.delete(keys.lock(group))
            version = None
        return await original(self, group, record, version)

    patch.setattr(Locks, "write", write)


@_mutant("renewal by plain PUT", "late")
def _(patch: pytest.MonkeyPatch) -> None:
    """A lease is extended whoever has the lock now."""
    patch.setattr(_lease, "lock_intent", lambda *args: _plain(_locks.lock_intent(*args)))


@_mutant("unconditional release", "leave")
def _(patch: pytest.MonkeyPatch) -> None:
    """A lock is released, or its failure noted, whoever has it now."""
    _writes(patch, lambda record, version: record.state is not LockState.HELD)


@_mutant("release by deletion", "leave")
def _(patch: pytest.MonkeyPatch) -> None:
    """A lock is deleted when its group is handed back, so that epochs begin anew."""
    original = Locks.write

    async def write(self: Locks, group: str, record: LockRecord, version: Version | None) -> Outcome:
        if record.state is not LockState.FREE:
            return await original(self, group, record, version)
        await self._store.delete(keys.lock(group))
        return Won(version=Version(""), sent=0.0)

    patch.setattr(Locks, "write", write)


@_mutant("completion by plain PUT", "late")
def _(patch: pytest.MonkeyPatch) -> None:
    """A done flag is written whatever is there."""
    patch.setattr(_lease, "flag_intent", lambda *args: _plain(_locks.flag_intent(*args)))


@_mutant("populate without compare-and-swap", "populates")
def _(patch: pytest.MonkeyPatch) -> None:
    """The index is written over whatever became of it since it was read."""

    async def swap(self: Catalogue, data: bytes, version: Version | None, until: float) -> Outcome:
        intent = Intent(key=keys.INDEX, data=data, mode=CREATE, ours=lambda body: body == data)
        return await _intent.settle(self._store, self._runtime, _plain(intent), until=until)

    patch.setattr(Catalogue, "_swap", swap)


# Looking away.


@_mutant("no confirmation", "late")
def _(patch: pytest.MonkeyPatch) -> None:
    """A claim is not followed by a look at the done flag."""

    async def confirm(self: Leases, lease: Lease) -> Lease:
        return lease

    patch.setattr(Leases, "_confirm", confirm)


@_mutant("refused means lost", "lease")
def _(patch: pytest.MonkeyPatch) -> None:
    """A write without an answer, or with a 412, is taken for somebody else's victory."""

    async def read_back(store: Store, intent: Intent, first_sent: float) -> Lost:
        return Lost(current=await store.get(intent.key))

    patch.setattr(_intent, "_read_back", read_back)


@_mutant("a token is not looked at", "lease")
def _(patch: pytest.MonkeyPatch) -> None:
    """Whatever lock is found after a refusal is taken for one's own."""

    def lock_intent(group: str, record: LockRecord, version: Version | None) -> Intent:
        return replace(original(group, record, version), ours=lambda body: True)

    original = _locks.lock_intent
    patch.setattr(_locks, "lock_intent", lock_intent)


@_mutant("identical lock bodies", "lease")
def _(patch: pytest.MonkeyPatch) -> None:
    """Locks do not say whose they are: two intents write the same bytes."""
    patch.setattr(SeededRuntime, "token", lambda self: "A" * 16)
    patch.setattr(SeededRuntime, "owner", lambda self: "somebody")
    patch.setattr(SeededRuntime, "wall", lambda self: 0.0)


@_mutant("unknown means won", "slow")
def _(patch: pytest.MonkeyPatch) -> None:
    """A lock write that nobody answered in time is taken for done."""
    original = Locks.write

    async def write(self: Locks, group: str, record: LockRecord, version: Version | None) -> Outcome:
        outcome = await original(self, group, record, version)
        won = Won(version=Version(""), sent=self._runtime.monotonic())
        return won if isinstance(outcome, Unknown) else outcome

    patch.setattr(Locks, "write", write)


@_mutant("index changes go unseen", "growth")
def _(patch: pytest.MonkeyPatch) -> None:
    """A worker never reads the index again."""

    async def changed(self: Catalogue, since: Version | None) -> bool:
        return False

    patch.setattr(Catalogue, "changed", changed)


@_mutant("leased elsewhere means finished", "queues")
def _(patch: pytest.MonkeyPatch) -> None:
    """A worker leaves when all that is left is somebody else's."""
    original = Plan._idle

    def idle(self: Plan, now: float, refresh: float) -> Any:
        return Finished() if self.count(1) and not self.count(3) else original(self, now, refresh)

    patch.setattr(Plan, "_idle", idle)


# Time.


@_mutant("own wall clock for age", "lease")
def _(patch: pytest.MonkeyPatch) -> None:
    """The age of a lock is by the reader's clock."""
    original = Locks.read

    async def read(self: Locks, group: str) -> tuple[LockRecord | None, Body]:
        lock, body = await original(self, group)
        return lock, replace(body, date=self._runtime.wall())

    patch.setattr(Locks, "read", read)


@_mutant("no margin", "late")
def _(patch: pytest.MonkeyPatch) -> None:
    """An owner keeps its lease to the last second, and others take it in the next, by stamps that are whole seconds."""
    patch.setattr(rules, "patience", lambda ttl, options: options.olmocr_lock_timeout if ttl is None else ttl)
    patch.setattr(rules, "deadline", lambda sent, ttl, options: sent + ttl)


@_mutant("no patience", "lease")
def _(patch: pytest.MonkeyPatch) -> None:
    """Any lock may be taken over at once."""
    patch.setattr(rules, "patience", lambda ttl, options: 0.0)


@_mutant("deadline ignored", "late")
def _(patch: pytest.MonkeyPatch) -> None:
    """An owner believes in its lease for ever."""
    patch.setattr(rules, "deadline", lambda sent, ttl, options: math.inf)


@_mutant("deadline counted from the answer", "late")
def _(patch: pytest.MonkeyPatch) -> None:
    """A lease is taken to begin when its owner hears of it."""
    original = _intent.settle

    async def settle(store: Store, runtime: Runtime, intent: Intent, **kwargs: Any) -> Outcome:
        outcome = await original(store, runtime, intent, **kwargs)
        return replace(outcome, sent=runtime.monotonic()) if isinstance(outcome, Won) else outcome

    patch.setattr(_locks, "settle", settle)
    patch.setattr(_lease, "settle", settle)


@_mutant("renewals count from the last send", "late~")
def _(patch: pytest.MonkeyPatch) -> None:
    """A renewal that is only recognised when it is sent again is taken to begin then."""
    original = _intent.settle

    async def settle(store: Store, runtime: Runtime, intent: Intent, **kwargs: Any) -> Outcome:
        return await original(store, runtime, intent, until=kwargs["until"])

    patch.setattr(_lease, "settle", settle)


@_mutant("late completion without a renewal", "late")
def _(patch: pytest.MonkeyPatch) -> None:
    """A handler that ends after its lease completes as if nothing had happened."""

    async def complete(self: Leases, lease: Lease, intent: Intent) -> Outcome:
        lease.completion = lease.completion or intent
        return await _lease.settle(self._store, self._runtime, lease.completion, until=self.locks.until())

    patch.setattr(Leases, "_settle_completion", complete)


@_mutant("the work is not stopped", "stalls")
def _(patch: pytest.MonkeyPatch) -> None:
    """A handler runs on when its lease is lost."""
    patch.setattr(Keeper, "watch", lambda self, lease: anyio.CancelScope())
    patch.setattr(Keeper, "extended", lambda self, lease: None)


# Counting, and what is left behind.


@_mutant("epochs stand still", "leave")
def _(patch: pytest.MonkeyPatch) -> None:
    """Whoever takes a group over has the same epoch as its last owner."""
    original = rules.taken_over

    def taken_over(lock: LockRecord, **kwargs: Any) -> LockRecord:
        return replace(original(lock, **kwargs), epoch=max(1, lock.epoch))

    patch.setattr(rules, "taken_over", taken_over)


@_mutant("failures are forgotten", "leave")
def _(patch: pytest.MonkeyPatch) -> None:
    """Whoever takes a group over counts its failures from none."""
    original = rules.taken_over
    patch.setattr(rules, "taken_over", lambda lock, **kwargs: replace(original(lock, **kwargs), failures=0))


@_mutant("the dead are claimed", "deaths")
def _(patch: pytest.MonkeyPatch) -> None:
    """A dead group is taken over like a released one."""
    original = rules.standing

    def standing(lock: LockRecord, age: float, options: Any) -> rules.Standing:
        found = original(lock, age, options)
        return rules.Takeable(False) if isinstance(found, rules.Dead) else found

    patch.setattr(rules, "standing", standing)


@_mutant("the lock goes before the flag", "lease")
def _(patch: pytest.MonkeyPatch) -> None:
    """A group's lock is deleted, and then its flag is written."""
    original = Leases.complete

    async def complete(self: Leases, lease: Lease, result: Any = None) -> None:
        await self._store.delete(keys.lock(lease.group))
        await original(self, lease, result)

    patch.setattr(Leases, "complete", complete)


@_mutant("every lock of a stretch is swept", "queues")
def _(patch: pytest.MonkeyPatch) -> None:
    """Locks are deleted without asking whether their groups are done."""

    async def sweep(self: Scheduler, seen: Stretch) -> None:
        if seen.locks:
            await self._store.delete_many([keys.lock(group) for group in seen.locks])

    patch.setattr(Scheduler, "_sweep", sweep)


@_mutant("no grace", "fresh")
def _(patch: pytest.MonkeyPatch) -> None:
    """A lock goes with its group's completion, though claims trust a listing."""
    original = Leases._complete

    async def complete(self: Leases, lease: Lease, flag: Flag) -> None:
        await original(self, lease, flag)
        await self._store.delete(keys.lock(lease.group))

    patch.setattr(Leases, "_complete", complete)


@_mutant("any listing is proof", "fresh")
def _(patch: pytest.MonkeyPatch) -> None:
    """A claim trusts a listing however old it is."""
    patch.setattr(rules, "is_proof", lambda listed, now, options: listed is not None)


@_mutant("nobody renews", "simulation")
def _(patch: pytest.MonkeyPatch) -> None:
    """Leases are left to run out while their groups are worked on."""

    async def run(self: Keeper) -> None:
        await anyio.sleep_forever()

    patch.setattr(Keeper, "run", run)
