"""The picture of a workspace, without a store: what follows from what was seen."""

from __future__ import annotations

import pytest

from s3queue import ActiveOwner, QueueOptions
from s3queue import _keys as keys
from s3queue._index import Index
from s3queue._picture import Picture
from s3queue._records import LockRecord, LockState
from s3queue.stores import Listed, Page, Version

NAMES = [f"{i:040x}" for i in range(6)]
NOW = 1_000_000.0


def picture() -> Picture:
    index = Index("\n".join(f"{name},path {name}" for name in NAMES).encode())
    return Picture(index, len(NAMES), QueueOptions(lease_ttl=60))


def lock(age: float, *, version: str = "1", size: int = 200) -> Listed:
    return Listed(key="", version=Version(version), size=size, modified=NOW - age)


def held(owner: str, ttl: float = 60, since: str = "") -> LockRecord:
    return LockRecord(state=LockState.HELD, token="t", epoch=1, owner=owner, ttl=ttl, since=since)


def flags(*ages: tuple[str, float], size: int = 99) -> Page:
    objects = [Listed(key=keys.flag(name), version=Version("1"), size=size, modified=NOW - age) for name, age in ages]
    return Page(objects=objects, next=None, date=NOW)


def test_an_owner_is_as_old_as_what_it_wrote_last() -> None:
    """Of its live leases the youngest counts, and the one that began first."""
    one = picture()
    one.saw_locks({NAMES[0]: lock(30), NAMES[1]: lock(5), NAMES[2]: lock(10), NAMES[3]: lock(0, size=0)}, NOW)
    one.saw_lock(NAMES[0], Version("1"), held("h:1:a", since="2026-01-02"))
    one.saw_lock(NAMES[1], Version("1"), held("h:1:a", since="2026-01-01"))
    one.digest()

    assert one.owners == (
        ActiveOwner(owner="h:1:a", host="h", groups=2, age=5, since="2026-01-01"),
        ActiveOwner(owner="olmOCR", host="olmOCR", groups=1, age=0),
    )
    assert (one.status.leased, one.unread) == (4, 1)


def test_a_lease_lives_by_its_own_ttl() -> None:
    """As soon as that is read; ours until then, and olmOCR's timeout for empty locks."""
    one = picture()
    one.saw_locks({NAMES[0]: lock(100), NAMES[1]: lock(100, size=0), NAMES[2]: lock(100)}, NOW)
    one.digest()
    assert (one.status.leased, one.status.expired) == (1, 2)

    one.saw_lock(NAMES[0], Version("1"), held("h:1:a", ttl=300))
    one.saw_lock(NAMES[2], Version("1"), None)  # unreadable
    one.digest()
    assert (one.status.leased, one.status.expired) == (2, 1)


def test_what_is_read_first() -> None:
    """Released locks, the last to change first; leases never read; then those read the longest ago. Nothing twice."""
    one = picture()
    found = {NAMES[0]: lock(1), NAMES[1]: lock(1), NAMES[2]: lock(3), NAMES[3]: lock(9, size=50)}
    one.saw_locks({**found, NAMES[4]: lock(4, size=50), NAMES[5]: lock(1, size=0)}, NOW)
    assert one.wanted() == ([NAMES[4], NAMES[3]], [NAMES[0], NAMES[1], NAMES[2]])
    for name in (NAMES[1], NAMES[0], NAMES[3]):
        one.saw_lock(name, Version("1"), None)
    one.digest()
    one.saw_locks({name: lock(0, version="2", size=one.locks[name].size) for name in (*NAMES[:3], NAMES[4])}, NOW)

    assert one.wanted() == ([NAMES[4]], [NAMES[2], NAMES[1], NAMES[0]])


def test_where_to_list_again() -> None:
    """Near every lock that is there or was; not near a released one that nobody has touched."""
    one = picture()
    one.saw_locks({NAMES[0]: lock(1), NAMES[1]: lock(1, size=50), NAMES[2]: lock(1)}, NOW)
    one.digest()
    one.saw_locks({NAMES[1]: lock(1, size=50), NAMES[2]: lock(1), NAMES[3]: lock(0)}, NOW)
    assert one.near == {NAMES[0], NAMES[2], NAMES[3]}

    one.saw_locks({}, NOW)  # that look failed: nothing was listed near these
    assert one.near == set(NAMES[:4])
    one.saw_flags(flags((NAMES[0], 1)))
    one.digest()
    assert (one.near, one.status.done) == (set(), 1)


def test_the_rate_is_that_of_the_last_two_minutes() -> None:
    """None before the first completion, then by the store's dates: however late we saw them."""
    one = picture()
    assert (one.rate, one.eta) == (None, None)
    one.saw_locks({}, NOW)
    one.saw_flags(flags((NAMES[0], 20), (NAMES[1], 0)))
    one.digest()
    assert one.rate == pytest.approx(2 / 20)
    assert one.eta == pytest.approx(4 * 10)

    one.saw_locks({}, NOW + 110)
    one.digest()
    assert one.rate == pytest.approx(1 / 120)
    one.saw_locks({}, NOW + 300)
    one.digest()
    assert (one.rate, one.eta) == (0, None)


def test_nobody_can_say_how_long_a_back_off_lasts() -> None:
    """While all that is left waits for its next attempt, the rate says nothing of when it is done."""
    one = picture()
    one.saw_locks({name: lock(1, size=50) for name in NAMES[1:]}, NOW)
    one.saw_flags(flags((NAMES[0], 0)))
    one.digest()
    assert one.status.released == len(NAMES) - 1
    assert one.rate is not None
    assert one.eta is None


def test_empty_flags_are_olmocrs() -> None:
    """They, and empty locks, say that locks prove nothing here."""
    one = picture()
    one.saw_flags(flags((NAMES[0], 1)))
    assert not one.is_foreign
    one.saw_flags(flags((NAMES[1], 1), size=0))
    assert one.is_foreign
