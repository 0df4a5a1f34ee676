"""The lease protocol's decisions, as tables and as rules for any lock."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3queue import QueueOptions
from s3queue import _lease_rules as rules
from s3queue._lease_rules import Dead, Standing, Takeable, Taken
from s3queue._records import LockRecord, LockState, looks_released

OPTIONS = QueueOptions()
TOKEN = "t" * 16
quick = settings(derandomize=True, deadline=None, max_examples=100)

locks = st.builds(
    LockRecord,
    state=st.sampled_from(LockState),
    token=st.just("x" * 16),
    epoch=st.integers(0, 9_999_998),
    failures=st.integers(0, 999),
    backoff=st.integers(0, 86_400),
    ttl=st.none() | st.floats(1, 1e6),
    owner=st.just("host:1:ab"),
    beat=st.integers(0, 1000),
)


def lock(state: LockState, *, ttl: float | None = 120.0, backoff: int = 0, failures: int = 0) -> LockRecord:
    return LockRecord(state=state, token="x" * 16, epoch=7, failures=failures, backoff=backoff, ttl=ttl)


@pytest.mark.parametrize(
    ("record", "age", "expected"),
    [
        # A held lock is its owner's up to and with its ttl and the margin, and a crash after that.
        (lock(LockState.HELD), 0.0, Taken(122.5)),
        (lock(LockState.HELD), 121.0, Taken(1.5)),
        (lock(LockState.HELD), 122.0, Taken(0.5)),
        (lock(LockState.HELD), 122.1, Takeable(crashed=True)),
        (lock(LockState.HELD), -3600.0, Taken(3722.5)),
        # Its own ttl counts, not the reader's.
        (lock(LockState.HELD, ttl=300.0), 122.1, Taken(180.4)),
        (lock(LockState.HELD, ttl=5.0), 7.1, Takeable(crashed=True)),
        # olmOCR's lock has olmOCR's timeout.
        (LockRecord.decode(b""), 1802.0, Taken(0.5)),
        (LockRecord.decode(b""), 1802.1, Takeable(crashed=True)),
        # A free lock is anybody's after its back-off, and nobody crashed.
        (lock(LockState.FREE), 0.0, Takeable(crashed=False)),
        (lock(LockState.FREE), -1.0, Takeable(crashed=False)),
        (lock(LockState.FREE, backoff=10), 10.0, Taken(0.5)),
        (lock(LockState.FREE, backoff=10), 10.1, Takeable(crashed=False)),
        # A dead one is nobody's, however old.
        (lock(LockState.DEAD), 0.0, Dead()),
        (lock(LockState.DEAD), 1e9, Dead()),
    ],
)
def test_what_a_lock_lets_others_do(record: LockRecord, age: float, expected: Standing) -> None:
    """Its state, its own ttl or back-off, and its age by the store's clock decide."""
    standing = rules.standing(record, age, OPTIONS)

    if isinstance(expected, Taken):
        assert isinstance(standing, Taken)
        assert standing.seconds == pytest.approx(expected.seconds)
    else:
        assert standing == expected


@quick
@given(locks, st.floats(-1e4, 1e7))
def test_whoever_waits_as_told_may_take_over(record: LockRecord, age: float) -> None:
    """`Taken.seconds` is enough, and once takeable, a lock that nobody writes stays so."""
    standing = rules.standing(record, age, OPTIONS)

    if isinstance(standing, Taken):
        assert standing.seconds > 0
        assert isinstance(rules.standing(record, age + standing.seconds, OPTIONS), Takeable)
    if isinstance(standing, Takeable):
        assert rules.standing(record, age + 1000, OPTIONS) == standing


@quick
@given(st.floats(5, 1e6), st.floats(0, 1e9), st.floats(0, 2))
def test_an_owner_gives_up_before_others_may_take_over(ttl: float, sent: float, late: float) -> None:
    """Its deadline is a margin before the ttl, theirs a margin after it: a skew of less than both harms nobody."""
    acknowledged = sent + late
    taken_from = acknowledged + rules.patience(ttl, OPTIONS)

    assert sent < rules.renew_at(sent, ttl) < rules.deadline(sent, ttl, OPTIONS)
    assert rules.deadline(sent, ttl, OPTIONS) + 2 * OPTIONS.margin <= taken_from + 1e-6 * taken_from


@pytest.mark.parametrize("ttl", [5.0, 120.0, 300.0, 86_400.0])
def test_a_renewal_extends_by_the_configured_ttl(ttl: float) -> None:
    """Never by a constant, and two renewals may fail before the deadline (B26)."""
    assert rules.deadline(1000.0, ttl, OPTIONS) == 1000.0 + ttl - OPTIONS.margin
    assert rules.renew_at(1000.0, ttl) == 1000.0 + ttl / 3
    renewed = rules.renewed(lock(LockState.HELD, ttl=ttl), token=TOKEN)
    assert (renewed.ttl, renewed.beat, renewed.epoch, renewed.token) == (ttl, 1, 7, TOKEN)


@pytest.mark.parametrize(
    ("size", "age", "expected"),
    [
        (0, 0.0, 1802.0),
        (0, 1802.0, 0.0),
        (0, 5000.0, 0.0),
        (47, 0.0, 0.0),
        (63, -5.0, 0.0),
        (64, 0.0, 122.0),
        (200, 100.0, 22.0),
        (200, 122.0, 0.0),
        (200, 1e6, 0.0),
        (200, -10.0, 132.0),
    ],
)
def test_when_a_listed_lock_is_worth_a_look(size: int, age: float, expected: float) -> None:
    """A small one at once; an empty one after olmOCR's timeout; any other after our own ttl."""
    assert rules.listed_wait(size, age, OPTIONS) == expected


@pytest.mark.parametrize("offset", [-3600.0, 0.0, 3600.0])
def test_ages_are_of_one_clock(offset: float) -> None:
    """Only the difference of two stamps of the store matters: no clock of ours has a say (B31)."""
    modified, date = 1_790_000_000.0 + offset, 1_790_000_100.0 + offset

    assert rules.standing(lock(LockState.HELD), date - modified, OPTIONS) == Taken(22.5)
    assert rules.listed_wait(200, date - modified, OPTIONS) == 22.0


@quick
@given(locks, st.booleans(), st.booleans(), st.floats(allow_nan=True, allow_infinity=True))
def test_the_epoch_never_goes_back(record: LockRecord, saved: bool, dead: bool, wait: float) -> None:
    """Each owner's is one more than the last one's; whatever it does with the lock keeps it."""
    taken = rules.taken_over(record, token=TOKEN, owner="me", ttl=60.0, since="")

    assert taken.epoch == record.epoch + 1
    for after in (
        rules.renewed(taken, token="u" * 16),
        rules.released(taken, token="u" * 16, wait=wait, saved=saved),
        rules.failed(taken, token="u" * 16, dead=dead, options=OPTIONS, saved=saved),
        rules.buried(taken, token="u" * 16, saved=saved),
        rules.revived(taken, token="u" * 16),
    ):
        assert after.epoch == taken.epoch
        assert after.token == "u" * 16
        assert LockRecord.decode(rules.renewed(taken, token=TOKEN).encode()).failures == taken.failures


@quick
@given(locks, st.booleans(), st.booleans(), st.floats(allow_nan=True, allow_infinity=True))
def test_what_is_left_behind_looks_released(record: LockRecord, saved: bool, dead: bool, wait: float) -> None:
    """Whatever lock was found, and whatever was asked for: a listing tells ours from a live one, and it is readable."""
    options = QueueOptions(max_attempts=1000, backoff=600, backoff_max=86_400)
    for after in (
        rules.released(record, token=TOKEN, wait=wait, saved=saved),
        rules.failed(record, token=TOKEN, dead=dead, options=options, wait=wait, saved=saved),
        rules.buried(record, token=TOKEN, saved=saved),
        rules.revived(record, token=TOKEN),
    ):
        data = after.encode()
        assert looks_released(len(data))
        assert LockRecord.decode(data) == after


def test_failures_travel_with_the_lock() -> None:
    """From owner to owner, through releases and take-overs; only a retry by a person forgets them."""
    first = rules.taken_over(lock(LockState.FREE), token=TOKEN, owner="a", ttl=60.0, since="")
    failed = rules.failed(first, token=TOKEN, dead=False, options=OPTIONS)
    second = rules.taken_over(failed, token=TOKEN, owner="b", ttl=90.0, since="")
    released = rules.released(rules.renewed(second, token=TOKEN), token=TOKEN)
    third = rules.taken_over(released, token=TOKEN, owner="c", ttl=60.0, since="")

    assert [record.failures for record in (first, failed, second, released, third)] == [0, 1, 1, 1, 1]
    assert (second.owner, second.ttl, second.beat, second.backoff) == ("b", 90.0, 0, 0)
    assert rules.buried(third, token=TOKEN).failures == 1
    assert rules.revived(third, token=TOKEN).failures == 0


@pytest.mark.parametrize(("failures", "last"), [(0, False), (1, False), (2, True), (3, True)])
def test_the_last_attempt(failures: int, last: bool) -> None:
    """At `max_attempts` failures a group that is tried as a whole is dead."""
    assert rules.is_last_attempt(lock(LockState.HELD, failures=failures), OPTIONS) is last


@pytest.mark.parametrize(
    ("dead", "wait", "backoff"), [(False, 0, 10), (False, 60, 60), (False, 1e9, 86_400), (True, 60, 0)]
)
def test_what_a_failure_leaves(dead: bool, wait: float, backoff: int) -> None:
    """A dead group has no back-off; another waits for it, or longer if it was asked for."""
    after = rules.failed(lock(LockState.HELD), token=TOKEN, dead=dead, wait=wait, options=OPTIONS)

    assert (after.state, after.failures, after.backoff) == (LockState.DEAD if dead else LockState.FREE, 1, backoff)


def test_a_retry_keeps_what_is_done() -> None:
    """The lock says that there is progress, and that its failures are forgiven; the next owner's says so no more."""
    dead = rules.buried(lock(LockState.HELD, failures=3), token=TOKEN, saved=True)
    revived = rules.revived(dead, token=TOKEN)
    taken = rules.taken_over(revived, token=TOKEN, owner="a", ttl=60.0, since="")

    assert [(one.saved, one.forgiven) for one in (dead, revived, taken)] == [
        (True, False),
        (True, True),
        (False, False),
    ]


@pytest.mark.parametrize(
    ("wait", "backoff"), [(0.0, 0), (-1.0, 0), (0.1, 1), (60.0, 60), (1e9, 86_400), (math.inf, 86_400), (math.nan, 0)]
)
def test_a_release_counts_as_nothing(wait: float, backoff: int) -> None:
    """The group is free after a wait of whole seconds, at most a day."""
    after = rules.released(lock(LockState.HELD, failures=2), token=TOKEN, wait=wait)

    assert (after.state, after.failures, after.backoff) == (LockState.FREE, 2, backoff)


def test_a_retried_group_is_free_at_once() -> None:
    """A clean slate, but for the epoch."""
    after = rules.revived(lock(LockState.DEAD, failures=9), token=TOKEN)

    assert after == replace(lock(LockState.FREE, ttl=None), token=TOKEN)
    assert rules.standing(after, 0.0, OPTIONS) == Takeable(crashed=False)


@pytest.mark.parametrize(
    ("failures", "expected"), [(1, 10), (2, 20), (3, 40), (6, 320), (7, 600), (1000, 600), (10**6, 600)]
)
def test_the_back_off_doubles_up_to_its_bound(failures: int, expected: int) -> None:
    """Whole seconds, and no overflow however often a group failed."""
    assert rules.backoff(failures, OPTIONS) == expected


def test_the_back_off_may_be_nothing_or_a_fraction() -> None:
    """A fraction is rounded up, so that a wait is never cut short."""
    assert rules.backoff(5, QueueOptions(backoff=0)) == 0
    assert rules.backoff(1, QueueOptions(backoff=0.1)) == 1
    assert rules.backoff(9, QueueOptions(backoff=1, backoff_max=2.5)) == 3
