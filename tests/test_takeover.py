"""Taking over, being taken over, failing and crashing, in virtual time."""

from __future__ import annotations

import anyio
import pytest

from s3queue import AccessDenied, LeaseLost, OutcomeUnknown
from s3queue import _keys as keys
from s3queue._journal import WHOLE
from s3queue._outcomes import Busy, Completed, GroupDead, Lease
from s3queue._records import Failure, Flag, LockState
from s3queue.stores import CREATE, OVERWRITE
from s3queue.testing import Fault
from tests.protocol import FLAG, GROUP, LOCK, OPTIONS, Owner, World, claimed
from tests.virtual import virtual


@virtual
async def test_a_flag_that_may_not_be_read() -> None:
    """A 403 to the confirmation is neither "done" nor "not done": the group is handed back, pending (B36)."""
    w = World()
    a = w.owner()
    a.store.script("head", FLAG, Fault.FAILS_BEFORE, error=AccessDenied)

    with pytest.raises(AccessDenied):
        await a.leases.claim(GROUP)

    assert (w.lock().state, w.lock().failures, w.has(FLAG)) == (LockState.FREE, 0, False)


@virtual
async def test_a_live_lease_is_not_taken() -> None:
    """Until its ttl and the margin are over by the store's clock nobody takes a lease, with whatever clock (B31)."""
    w = World()
    a, fast, slow = w.owner(), w.owner(skew=3600), w.owner(skew=-3600)
    await claimed(a)
    await anyio.sleep(OPTIONS.lease_ttl + OPTIONS.margin - 0.5)
    for thief in (fast, slow):
        assert isinstance(await thief.leases.take_over(GROUP), Busy)

    await anyio.sleep(2)
    lease = await slow.leases.take_over(GROUP)

    assert isinstance(lease, Lease)
    assert (lease.epoch, lease.record.failures, lease.journal.suspect) == (2, 0, True)


@virtual
async def test_two_take_over_at_once() -> None:
    """A taker that was held up after its read loses to the other, and deletes nothing (B12)."""
    w = World()
    a, b, c = w.owner(), w.owner(), w.owner()
    await claimed(a)
    await anyio.sleep(60)
    b.store.script("put", LOCK, Fault.DELAYED, seconds=1)
    outcomes: dict[str, object] = {}

    async def take(name: str, owner: Owner) -> None:
        outcomes[name] = await owner.leases.take_over(GROUP)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take, "b", b)
        tasks.start_soon(take, "c", c)

    assert isinstance(outcomes["c"], Lease)
    assert isinstance(outcomes["b"], Busy)
    assert (w.lock().owner, w.lock().epoch) == (c.leases.owner, 2)
    assert not [entry for entry in [*b.store.log, *c.store.log] if entry[0] == "delete"]


@pytest.mark.parametrize("ending", ["release", "fail"])
@virtual
async def test_a_late_owner_leaves_the_new_one_alone(ending: str) -> None:
    """Whoever lost a lease cannot release or fail it: the new owner's lock stands (B06)."""
    w = World()
    a, b = w.owner(), w.owner()
    old = await claimed(a)
    await anyio.sleep(60)
    new = await b.leases.take_over(GROUP)
    assert isinstance(new, Lease)

    with pytest.raises(LeaseLost):
        await (a.leases.release(old) if ending == "release" else a.leases.fail(old, "too late"))

    assert w.lock().token == new.record.token
    assert not [entry for entry in a.store.log if entry[0] == "delete"]
    assert await b.leases.renew(new)


@virtual
async def test_a_late_owner_cannot_complete() -> None:
    """After a take-over the old owner's result is dropped, and the flag is the new owner's (B30)."""
    w = World()
    a, b = w.owner(), w.owner()
    old = await claimed(a)
    await anyio.sleep(60)
    new = await b.leases.take_over(GROUP)
    assert isinstance(new, Lease)

    with pytest.raises(LeaseLost):
        await a.leases.complete(old, "a")
    await b.leases.complete(new, "b")

    assert Flag.decode(w.bucket.find(FLAG).data).result == "b"


@virtual
async def test_a_late_owner_whom_nobody_replaced_completes() -> None:
    """A lease past its deadline completes after one more renewal, if that succeeds."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    await anyio.sleep(60)
    assert not lease.valid(anyio.current_time())

    await a.leases.complete(lease, "late")

    assert Flag.decode(w.bucket.find(FLAG).data).result == "late"


@virtual
async def test_a_completion_whose_answer_was_lost() -> None:
    """Our flag refuses our second send; reading it shows our token, so we completed it."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    a.store.script("put", FLAG, Fault.APPLIED_THEN_ERROR)

    await a.leases.complete(lease, "once")

    assert Flag.decode(w.bucket.find(FLAG).data).result == "once"


@virtual
async def test_a_completion_that_stays_unknown_is_tried_again_as_the_same() -> None:
    """An unknown completion can be tried again; whichever send lands, it is the same result, once."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    async with a.store:
        a.store.script("put", FLAG, Fault.APPLIED_LATER, seconds=12)
        a.store.script("put", FLAG, Fault.FAILS_BEFORE, times=1000)
        with pytest.raises(OutcomeUnknown):
            await a.leases.complete(lease, "mine")
        await anyio.sleep(12)
        a.store.calm()

        await a.leases.complete(lease, "mine")

    assert Flag.decode(w.bucket.find(FLAG).data).result == "mine"


@virtual
async def test_a_completion_found_by_others_before_its_owner_heard_of_it() -> None:
    """Whoever finds the flag may sweep the lock; its owner, trying again, still learns that it completed.

    Found by an interleaving of two queues used by hand."""
    w = World()
    a, b = w.owner(), w.owner()
    lease = await claimed(a)
    async with a.store:
        a.store.script("put", FLAG, Fault.APPLIED_LATER, seconds=6)
        a.store.script("put", FLAG, Fault.FAILS_BEFORE, times=1000)
        with pytest.raises(OutcomeUnknown):
            await a.leases.complete(lease, "mine")
        await anyio.sleep(OPTIONS.lease_ttl + 5)
        assert isinstance(await b.leases.take_over(GROUP), Completed)
        w.bucket.remove(LOCK)

        await a.leases.complete(lease, "mine")

    assert w.keys() == [FLAG]


@virtual
async def test_release_hands_over_at_once() -> None:
    """A released lock is small, keeps its epoch, counts as no failure, and anybody may take it at once."""
    w = World()
    a, b = w.owner(), w.owner()
    await a.leases.release(await claimed(a))
    assert w.bucket.slice(LOCK, None, 1)[0][0].size < 64

    lease = await b.leases.take_over(GROUP)

    assert isinstance(lease, Lease)
    assert (lease.epoch, lease.record.failures) == (2, 0)


@virtual
async def test_a_release_whose_answer_was_lost() -> None:
    """A release that was applied is a release, though nobody said so (B13)."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    a.store.script("put", LOCK, Fault.APPLIED_THEN_ERROR)

    await a.leases.release(lease)

    assert w.lock().state is LockState.FREE


@virtual
async def test_failures_wait_and_end() -> None:
    """Each failure is recorded under its epoch and waits longer; the last one makes the group dead (B25)."""
    w = World()
    a, b = w.owner(), w.owner()
    lease: object = await claimed(a)
    for attempt, wait in ((1, 10), (2, 20)):
        assert isinstance(lease, Lease)
        assert await a.leases.fail(lease, ValueError(f"attempt {attempt}")) is False
        assert isinstance(await b.leases.take_over(GROUP), Busy)
        await anyio.sleep(wait - 1)
        assert isinstance(await b.leases.take_over(GROUP), Busy)
        await anyio.sleep(3)
        lease = await a.leases.take_over(GROUP)
    assert isinstance(lease, Lease)

    assert await a.leases.fail(lease, ValueError("attempt 3")) is True

    assert isinstance(await b.leases.take_over(GROUP), GroupDead)
    await anyio.sleep(10_000)
    assert isinstance(await b.leases.take_over(GROUP), GroupDead)
    records = [Failure.decode(w.bucket.find(keys.failure(GROUP, epoch)).data) for epoch in (1, 2, 3)]
    assert [(r.attempt, r.kind, r.error) for r in records] == [(n, "ValueError", f"attempt {n}") for n in (1, 2, 3)]


@virtual
async def test_crashes_count() -> None:
    """A group whose owners died three times in a row while they ran it is dead, each crash recorded once (B29)."""
    w = World()
    a = w.owner()
    lease: object = await claimed(a)
    for epoch in (2, 3):
        await anyio.sleep(60)
        a = w.owner()
        lease = await a.leases.take_over(GROUP)
        assert isinstance(lease, Lease)
        assert (lease.epoch, lease.record.failures, lease.journal.crashes(WHOLE)) == (epoch, 0, epoch - 1)
        await a.leases.name(lease, WHOLE)
    await anyio.sleep(60)

    assert isinstance(await w.owner().leases.take_over(GROUP), GroupDead)

    records = [Failure.decode(w.bucket.find(keys.failure(GROUP, epoch)).data) for epoch in (1, 2, 3)]
    assert {record.kind for record in records} == {"lease expired"}
    assert all(record.error.startswith("the owner sim:") for record in records)
    assert {record.host for record in records} == {"sim"}
    assert w.lock().state is LockState.DEAD


@virtual
async def test_preemptions_bury_nobody() -> None:
    """Owners that die before they say what they run prove nothing against the group, however many they are."""
    w = World()
    await claimed(w.owner())
    for epoch in range(2, 20):
        await anyio.sleep(60)
        lease = await w.owner().leases.take_over(GROUP)
        assert isinstance(lease, Lease)
        assert (lease.epoch, lease.record.failures, lease.journal.crashes(WHOLE)) == (epoch, 0, 1)


@virtual
async def test_a_failure_ends_a_row_of_crashes() -> None:
    """Whoever fails in good order has survived: the next crash is a first one."""
    w = World()
    await claimed(w.owner())
    for crashes in (1, 2):
        await anyio.sleep(60)
        a = w.owner()
        lease = await a.leases.take_over(GROUP)
        assert isinstance(lease, Lease)
        assert lease.journal.crashes(WHOLE) == crashes
        await a.leases.name(lease, WHOLE)
    await a.leases.fail(lease, "boom", dead=False)
    await anyio.sleep(60)
    again = await w.owner().leases.take_over(GROUP)
    assert isinstance(again, Lease)
    assert again.journal.crashes(WHOLE) == 0


@virtual
async def test_a_crash_after_completion() -> None:
    """An owner that died between flag and deletion of the lock completed the group: nothing counts."""
    w = World()
    a, b = w.owner(), w.owner()
    lease = await claimed(a)
    await a.leases.complete(lease, "done")
    await anyio.sleep(60)

    assert isinstance(await b.leases.take_over(GROUP), Completed)

    assert w.keys() == [FLAG, LOCK]


@virtual
async def test_a_failure_record_that_is_refused_stops_nothing() -> None:
    """The record is evidence: without it the group is released all the same."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    a.store.script("put", "failed_flags/", Fault.FAILS_BEFORE, times=1000)

    assert await a.leases.fail(lease, "boom") is False

    assert w.lock().state is LockState.FREE
    assert "failure.unrecorded" in [event.name for event in a.events]


@virtual
async def test_an_unreadable_lock_is_left_alone() -> None:
    """A lock of unknown content is neither ours nor expired, however old (B20)."""
    w = World()
    a = w.owner()
    await a.store.put(LOCK, b"\x00garbage", OVERWRITE)
    await anyio.sleep(80_000)

    assert isinstance(await a.leases.take_over(GROUP), Busy)
    assert isinstance(await a.leases.claim(GROUP), Busy)

    assert w.bucket.find(LOCK).data == b"\x00garbage"


@virtual
async def test_a_lock_of_olmocr() -> None:
    """An empty lock has olmOCR's timeout, and is taken over as epoch 1 after it."""
    w = World()
    a = w.owner()
    await a.store.put(LOCK, b"", CREATE)
    await anyio.sleep(1801)
    assert isinstance(await a.leases.take_over(GROUP), Busy)
    await anyio.sleep(3)

    lease = await a.leases.take_over(GROUP)

    assert isinstance(lease, Lease)
    assert (lease.epoch, lease.record.failures, lease.journal.suspect) == (1, 0, True)
