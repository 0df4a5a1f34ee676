"""The lease protocol, step by step, against a store with faults, in virtual time."""

from __future__ import annotations

import anyio
import pytest

from s3queue import LeaseLost
from s3queue._outcomes import Busy, Completed, Lease, Unsettled
from s3queue._records import Flag, LockState
from s3queue.testing import Fault
from tests.protocol import FLAG, GROUP, LOCK, OPTIONS, World, claimed
from tests.virtual import virtual


@virtual
async def test_claim_and_complete() -> None:
    """One owner claims, completes, and leaves a flag with its result, and its lock, which outlives it for a while."""
    w = World()
    a, b = w.owner(), w.owner()
    lease = await claimed(a)
    assert isinstance(await b.leases.claim(GROUP), Busy)

    await a.leases.complete(lease, {"pages": 3})

    assert w.keys() == [FLAG, LOCK]
    flag = Flag.decode(w.bucket.find(FLAG).data)
    assert (flag.result, flag.epoch) == ({"pages": 3}, 1)
    assert isinstance(await b.leases.claim(GROUP), Busy)
    w.bucket.remove(LOCK)
    assert isinstance(await b.leases.claim(GROUP), Completed)


@virtual
async def test_a_fresh_listing_is_a_confirmation() -> None:
    """A claim costs one request while the listing is younger than `completion_grace`, and asks for the flag after."""
    for age, heads in ((OPTIONS.completion_grace - 0.1, 0), (OPTIONS.completion_grace, 1)):
        w = World()
        a = w.owner()
        await anyio.sleep(100)
        lease = await a.leases.claim(GROUP, listed=anyio.current_time() - age)
        assert isinstance(lease, Lease)
        assert [entry[0] for entry in a.store.log] == ["put"] + ["head"] * heads


@virtual
async def test_a_left_over_lock_goes_when_it_is_old() -> None:
    """Whoever finds a group done deletes its lock only once its flag is `completion_grace` and the margin old."""
    w = World()
    a, b = w.owner(), w.owner()
    await a.leases.complete(await claimed(a))
    await anyio.sleep(OPTIONS.completion_grace + OPTIONS.margin - 1)
    assert isinstance(await b.leases.take_over(GROUP), Completed)
    assert w.has(LOCK)
    await anyio.sleep(2)
    assert isinstance(await b.leases.take_over(GROUP), Completed)
    assert w.keys() == [FLAG]


@virtual
async def test_a_create_whose_answer_was_lost() -> None:
    """Our own lock refuses our second send; reading it shows our token, so we hold it, without any wait (B01)."""
    w = World()
    a = w.owner()
    a.store.script("put", LOCK, Fault.APPLIED_THEN_ERROR)

    lease = await claimed(a)

    assert anyio.current_time() < 1
    assert w.lock().token == lease.record.token
    assert lease.version == w.bucket.find(LOCK).version
    assert await a.leases.renew(lease)


@virtual
async def test_a_create_that_somebody_else_won() -> None:
    """The same refusal with another's token: not ours, and nothing is deleted (B01)."""
    w = World()
    a, b = w.owner(), w.owner()
    await claimed(b)

    assert isinstance(await a.leases.claim(GROUP), Busy)

    assert not [entry for entry in a.store.log if entry[0] == "delete"]
    assert w.lock().owner == b.leases.owner


@virtual
async def test_a_create_that_is_applied_after_we_gave_up() -> None:
    """An unknown claim is no claim: it runs nothing, and its late lock runs out like any other."""
    w = World()
    a, b = w.owner(), w.owner()
    async with a.store:
        a.store.script("put", LOCK, Fault.APPLIED_LATER, seconds=20)
        a.store.script("put", LOCK, Fault.FAILS_BEFORE, times=1000)

        assert isinstance(await a.leases.claim(GROUP), Unsettled)

    assert w.lock().owner == a.leases.owner
    await anyio.sleep(OPTIONS.lease_ttl + OPTIONS.margin + 1)
    lease = await b.leases.take_over(GROUP)
    assert isinstance(lease, Lease)
    assert lease.epoch == 2


@virtual
async def test_a_conflict_is_no_verdict() -> None:
    """A 409 to a create with nothing there is tried again; one that lasts lets the group go (B02)."""
    w = World()
    a = w.owner()
    a.store.script("put", LOCK, Fault.CONFLICT)
    await claimed(a)
    w.bucket.remove(LOCK)
    a.store.script("put", LOCK, Fault.CONFLICT, times=1000)

    assert isinstance(await a.leases.claim(GROUP), Unsettled)


@virtual
async def test_a_conflict_in_a_renewal() -> None:
    """A 409, then 200: the lease is kept (B02)."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    a.store.script("put", LOCK, Fault.CONFLICT)

    assert await a.leases.renew(lease)

    assert w.lock().beat == 1


@virtual
async def test_throttled_renewals_lose_nothing() -> None:
    """Being asked to slow down is no loss while the lease lasts (B13)."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    a.store.script("put", LOCK, Fault.THROTTLED, times=4)

    assert await a.leases.renew(lease)


@virtual
async def test_a_renewal_moves_the_deadline_by_the_lease_s_own_ttl() -> None:
    """The deadline counts from when the last acknowledged write was sent (B26)."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    await anyio.sleep(10)

    assert await a.leases.renew(lease)

    assert lease.deadline == pytest.approx(10 + OPTIONS.lease_ttl - OPTIONS.margin)
    assert w.lock().ttl == OPTIONS.lease_ttl


@virtual
async def test_no_two_writes_of_a_lease_are_the_same_bytes() -> None:
    """Each intent has a token of its own, so equal ETags are the same write."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    versions = {lease.version}
    for _ in range(3):
        await a.leases.renew(lease)
        versions.add(lease.version)
    await a.leases.release(lease)
    versions.add(lease.version)

    assert len(versions) == 5


@virtual
async def test_the_lock_vanishes() -> None:
    """A renewal of a lock that somebody deleted is a lost lease, and does not bring it back (B07)."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    w.bucket.remove(LOCK)

    with pytest.raises(LeaseLost):
        await a.leases.renew(lease)

    assert not w.has(LOCK)


@virtual
async def test_the_holder_is_gone_before_we_read() -> None:
    """A refused create whose lock is gone by then: the group is done, or the claim is sent again (B10)."""
    w = World()
    a, b = w.owner(), w.owner()
    lease = await claimed(b)

    async def complete_first() -> None:
        await b.leases.complete(lease)
        w.bucket.remove(LOCK)

    a.store.script("get", LOCK, Fault.DELAYED, seconds=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(complete_first)
        outcome = await a.leases.claim(GROUP)

    assert isinstance(outcome, Completed)


@virtual
async def test_a_claim_of_a_group_that_was_just_completed() -> None:
    """Completion is looked for after the lock is ours, so finished work never starts again (B32)."""
    w = World()
    a, b = w.owner(), w.owner()
    lease = await claimed(a)
    b.store.script("put", LOCK, Fault.DELAYED, seconds=1)
    outcomes = []

    async def claim() -> None:
        outcomes.append(await b.leases.claim(GROUP))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(claim)
        await a.leases.complete(lease)
        w.bucket.remove(LOCK)

    assert isinstance(outcomes[0], Completed)


@virtual
async def test_the_confirmation_fails() -> None:
    """Not knowing whether the group is done is not enough to run it: the lock is handed back."""
    w = World()
    a, b = w.owner(), w.owner()
    a.store.script("head", FLAG, Fault.FAILS_BEFORE)

    with pytest.raises(Exception, match="fails before"):
        await a.leases.claim(GROUP)

    assert w.lock().state is LockState.FREE
    assert isinstance(await b.leases.take_over(GROUP), Lease)


@virtual
async def test_a_renewal_counts_from_when_it_was_first_sent() -> None:
    """Applied, cancelled before its answer, and recognised long afterwards: the store counts from the first sending.

    Found by an interleaving: an owner that counted from the last sending overlapped with its successor."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    a.store.script("put", LOCK, Fault.APPLIED_THEN_ERROR)
    a.store.script("get", LOCK, Fault.DELAYED, seconds=100)
    with anyio.move_on_after(1):
        await a.leases.renew(lease)
    await anyio.sleep(19)

    assert await a.leases.renew(lease)

    assert (lease.sent, lease.record.beat) == (0, 1)
    assert lease.deadline == OPTIONS.lease_ttl - OPTIONS.margin


@virtual
async def test_a_late_completion_takes_a_renewal_of_now() -> None:
    """A renewal of long ago, known only now, is no proof that the lease is still ours."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    a.store.script("put", LOCK, Fault.APPLIED_THEN_ERROR)
    a.store.script("get", LOCK, Fault.DELAYED, seconds=100)
    with anyio.move_on_after(1):
        await a.leases.renew(lease)
    await anyio.sleep(OPTIONS.lease_ttl + 1)

    await a.leases.complete(lease)

    assert (lease.record.beat, w.has(FLAG)) == (2, True)


@virtual
async def test_a_completion_that_waits_until_its_lease_has_run_out() -> None:
    """Be it for its turn in this process: it is sent under a renewed lease, or not at all.

    Found by a fleet: a completion that was held back while the store was overloaded went out beside a successor."""
    w = World()
    a = w.owner()
    lease = await claimed(a)
    a.store.script("put", FLAG, Fault.DELAYED, seconds=4)
    await anyio.sleep(lease.deadline - 1)

    await a.leases.complete(lease)

    assert [(verb, key) for verb, key, _ in a.store.log][-3:] == [("put", FLAG), ("put", LOCK), ("put", FLAG)]
    assert anyio.current_time() < OPTIONS.lease_ttl
    assert (lease.record.beat, w.has(FLAG)) == (1, True)
