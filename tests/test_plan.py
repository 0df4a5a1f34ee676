"""The plan: each decision by itself."""

from __future__ import annotations

import math
from random import Random

import pytest

from s3queue._index import Index
from s3queue._options import QueueOptions
from s3queue._plan import (
    CANDIDATES_LEAST,
    CANDIDATES_MOST,
    CROWD,
    DEAD,
    DONE,
    FLAGS_SHARE,
    HELD,
    MINE,
    OPEN,
    PROBES_A_LISTING,
    PROBES_MOST,
    STRETCH,
    Claim,
    Finished,
    ListStretch,
    Plan,
    PollLocks,
    Probe,
    RefreshIndex,
    Step,
    TakeOver,
    Wait,
)
from s3queue.stores._port import Listed, Version

OPTIONS = QueueOptions()
FREE_SIZE, LIVE_SIZE, OLMOCR_SIZE = 50, 150, 0


def index_of(count: int, start: int = 0) -> Index:
    return Index(b"").add([f"path {i}" for i in range(start, start + count)], 1)[0]


def names_of(index: Index) -> list[str]:
    return [name for name, _ in index]


def plan_of(count: int, options: QueueOptions = OPTIONS, *, seed: int = 0) -> tuple[Plan, list[str]]:
    """A plan whose index was just checked, at time 0."""
    index = index_of(count)
    plan = Plan(options=options, rng=Random(seed))
    plan.grow(index)
    plan.index_checked(0.0)
    return plan, names_of(index)


def claim_of(step: Step) -> str:
    """The group of a claim."""
    assert isinstance(step, Claim), step
    return step.group


def walk_of(names: list[str], first: str) -> list[str]:
    """All names, from `first` once round the ring."""
    start = names.index(first)
    return names[start:] + names[:start]


def listed(version: str, *, size: int = LIVE_SIZE, modified: float = 0.0) -> Listed:
    return Listed(key="irrelevant", version=Version(version), size=size, modified=modified)


def see_all(plan: Plan, *, locks: dict[str, Listed] | None = None, now: float = 0.0, date: float | None = None) -> None:
    """Do the next step, which must be a listing, and show the whole ring."""
    step = plan.next_step(now)
    assert isinstance(step, ListStretch)
    plan.saw_stretch(ListStretch(""), done=[], locks=locks or {}, end="", date=now if date is None else date, now=now)


def after_probes(plan: Plan, now: float) -> Step:
    """The next step, after all questions for held groups were answered by "not done"."""
    while isinstance(step := plan.next_step(now), Probe):
        plan.probed(step.group, is_done=False)
    return step


def claims(plan: Plan, now: float = 0.0) -> list[str]:
    """The groups that the plan says to claim, until it says something else."""
    found = []
    while isinstance(step := plan.next_step(now), Claim):
        found.append(step.group)
    plan.gave_up_looking()
    return found


def test_the_index_is_looked_at_first() -> None:
    """Nothing is known of a workspace before its index was read."""
    plan = Plan(options=OPTIONS, rng=Random(0))

    assert plan.next_step(0.0) == RefreshIndex()
    assert plan.next_step(0.0) == Wait(math.inf)
    plan.index_checked(0.0)
    assert plan.next_step(0.0) == Finished()


def test_an_empty_workspace_is_looked_at_again_before_it_is_finished() -> None:
    """What was empty a while ago may have grown."""
    plan, _ = plan_of(0)
    later = OPTIONS.poll_min + 0.1

    assert plan.next_step(later) == RefreshIndex()
    plan.index_checked(later)
    assert plan.next_step(later) == Finished()


@pytest.mark.parametrize("count", [1, 3])
def test_a_look_is_given_out_once(count: int) -> None:
    """While somebody lists, others wait to be told; a look that failed is given out again."""
    plan, _ = plan_of(count)

    first = plan.next_step(0.0)
    assert isinstance(first, ListStretch)
    assert plan.next_step(0.0) == Wait(math.inf)
    plan.gave_up_looking()
    assert plan.next_step(0.0) == first


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("count", "length"), [(50, 1000), (STRETCH + 50, 1), (STRETCH + 50, 7), (STRETCH + 50, 1000)])
def test_the_walk_covers_the_ring_exactly_once(seed: int, count: int, length: int) -> None:
    """From any start, with any length of pages, each group is claimed once; the walk goes on past the ring's end."""
    plan, names = plan_of(count, seed=seed)

    claimed = walk(plan, names, length)

    assert sorted(claimed) == names
    assert claimed == walk_of(names, claimed[0])


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("length", [1, 7])
def test_pages_that_do_not_show_all_of_a_small_ring(seed: int, length: int) -> None:
    """Other people's objects may fill them: what the first one shows is claimed, and then the walk begins."""
    plan, names = plan_of(50, seed=seed)

    claimed = walk(plan, names, length)

    assert sorted(claimed) == names
    assert sorted(claimed[:length]) == names[:length]
    rest = [name for name in names if name not in claimed[:length]]
    assert claimed[length:] == walk_of(rest, claimed[length])


def walk(plan: Plan, names: list[str], length: int) -> list[str]:
    """What is claimed, in order, of a ring where all is free, by pages of this length."""
    claimed: list[str] = []
    while not isinstance(step := plan.next_step(0.0), (Finished, Wait)):
        match step:
            case ListStretch(after):
                first = names.index(after) + 1 if after else 0
                rest = names[first:]
                end = rest[length - 1] if len(rest) > length else ""
                plan.saw_stretch(step, done=[], locks={}, end=end, date=0.0, now=0.0)
            case Claim(group):
                claimed.append(group)
                plan.done(group)

    assert step == Finished()
    return claimed


def test_a_stretch_may_end_at_a_group_that_is_none_of_ours() -> None:
    """Flags of other indexes move the picture's ends, and nothing else."""
    plan, names = plan_of(10)
    between = names[4][:-1] + ("0" if names[4][-1] != "0" else "1")
    expected = [name for name in names if name <= between]

    plan.next_step(0.0)
    plan.saw_stretch(ListStretch(""), done=["f" * 40], locks={}, end=between, date=0.0, now=0.0)

    found = claims(plan)
    assert found == walk_of(expected, found[0])
    assert plan.count(DONE) == 0


def test_done_and_locked_groups_are_no_candidates() -> None:
    """Only what a listing showed free is claimed."""
    plan, names = plan_of(6)
    plan.next_step(0.0)
    plan.saw_stretch(ListStretch(""), done=names[:2], locks={names[2]: listed("v")}, end="", date=0.0, now=0.0)

    assert sorted(claims(plan)) == names[3:]
    assert [plan.count(state) for state in (OPEN, HELD, DEAD, MINE, DONE)] == [0, 1, 0, 3, 2]
    assert [plan.is_done(name) for name in names] == [True, True, False, False, False, False]


def test_each_picture_offers_more_than_the_one_before_while_nobody_else_is_about() -> None:
    """Who comes meanwhile shall be seen soon; who is alone shall not look again and again."""
    plan, names = plan_of(4 * CANDIDATES_MOST)
    plan._cursor = 0
    offered, claimed = [], []
    for _ in range(6):
        step = plan.next_step(0.0)
        assert isinstance(step, ListStretch)
        plan.saw_stretch(step, done=[], locks={}, end="", date=0.0, now=0.0)
        found = claims(plan)
        offered.append(len(found))
        claimed += found

    assert offered == [32, 64, 128, 256, 512, 512]
    assert claimed == names[: len(claimed)]


def test_a_stretch_is_listed_again_by_its_locks_alone() -> None:
    """While the listing of its flags proves that a group without a lock is not done."""
    plan, _ = plan_of(CANDIDATES_LEAST + 2, QueueOptions(index_refresh=1e9))
    good = FLAGS_SHARE * OPTIONS.completion_grace
    see_all(plan)
    assert len(claims(plan)) == CANDIDATES_LEAST

    soon = plan.next_step(good - 1)
    plan.gave_up_looking()
    later = plan.next_step(good)

    assert soon == ListStretch("", flags=False)
    assert later == ListStretch("")
    assert isinstance(soon, ListStretch)
    plan.saw_stretch(soon, done=[], locks={}, end="", date=good - 1, now=good - 1)
    claim = plan.next_step(good - 1)
    assert isinstance(claim, Claim)
    assert claim.listed == 0.0


def test_what_is_done_meanwhile_is_no_candidate_any_more() -> None:
    """A listing of all flags may come between a picture and its claims."""
    plan, names = plan_of(3)
    see_all(plan)
    plan.done(names[1])

    found = claims(plan)
    assert found == walk_of([names[0], names[2]], found[0])
    assert plan.is_done(names[1])


def test_a_lock_that_is_left_behind_brings_nothing_back() -> None:
    """Done is done, and ours is ours, whatever a listing shows of their locks."""
    plan, names = plan_of(2)
    see_all(plan)
    ours = claim_of(plan.next_step(0.0))
    (other,) = set(names) - {ours}
    plan.done(other)

    plan.saw_locks({name: listed("v", size=FREE_SIZE) for name in names}, date=0.0, now=0.0)

    assert [plan.count(state) for state in (HELD, MINE, DONE)] == [0, 1, 1]
    assert isinstance(plan.next_step(0.0), Wait)


def test_a_stale_picture_is_dropped() -> None:
    """Candidates older than `picture_ttl` are listed again, and the walk goes on where it was."""
    plan, names = plan_of(5)
    see_all(plan)
    first = claim_of(plan.next_step(OPTIONS.picture_ttl))
    late = OPTIONS.picture_ttl + 0.1

    step = plan.next_step(late)

    assert step == ListStretch("", flags=False)
    assert isinstance(step, ListStretch)
    plan.saw_stretch(step, done=[], locks={}, end="", date=late, now=late)
    assert claims(plan, late) == walk_of(names, first)[1:]


def test_a_collision_ends_a_picture() -> None:
    """Someone walks here: the rest of the picture is dropped, and the walk goes on somewhere else."""
    starts = set()
    for seed in range(20):
        plan, _ = plan_of(STRETCH + 100, seed=seed)
        see_all(plan)
        claim = plan.next_step(0.0)
        assert isinstance(claim, Claim)
        plan.done(claim.group)
        plan.collided(claim)
        step = plan.next_step(0.0)
        assert isinstance(step, ListStretch)
        starts.add(step.after)

    assert len(starts) > 10


def test_a_collision_ends_no_newer_picture() -> None:
    """Claims of one picture collide together; the next picture knows of that already."""
    plan, _ = plan_of(100)
    see_all(plan)
    first, second = plan.next_step(0.0), plan.next_step(0.0)
    assert isinstance(first, Claim)
    assert isinstance(second, Claim)
    plan.collided(first)
    see_all(plan)

    plan.collided(second)

    assert isinstance(plan.next_step(0.0), Claim)


def test_a_released_lock_is_taken_over_before_anything_new_is_claimed() -> None:
    """Work that was begun comes first."""
    plan, names = plan_of(3)
    see_all(plan, locks={names[2]: listed("v", size=FREE_SIZE)})

    assert plan.next_step(0.0) == TakeOver(names[2])
    assert sorted(claims(plan)) == names[:2]


@pytest.mark.parametrize("seed", range(10))
def test_who_comes_to_a_ring_where_somebody_walks_leaves_him_room(seed: int) -> None:
    """A fresh lock is where somebody walks: he finds the groups that follow it free for a while."""
    plan, names = plan_of(400, seed=seed)
    plan._cursor = 0
    see_all(plan, locks={names[0]: listed("v", modified=95.0)}, date=100.0)

    found = claims(plan)

    assert len(found) >= CANDIDATES_LEAST
    assert found == sorted(found)
    assert found[0] >= names[99]


def test_who_walks_goes_on_while_there_is_room() -> None:
    """With somebody far before him he offers himself no more than what nobody who comes in between would take."""
    plan, names = plan_of(STRETCH, QueueOptions(index_refresh=1e9))
    see_all(plan)
    first = claims(plan)
    walk = walk_of(names, first[0])
    wall = walk[len(first) + 200]

    see_all(plan, locks={wall: listed("v", modified=95.0)}, date=100.0)

    assert claims(plan) == walk[len(first) :][:50]


def test_an_old_lock_is_no_wall() -> None:
    """Its owner is at work, or gone, and claims nothing here."""
    plan, names = plan_of(20)
    see_all(plan, locks={names[4]: listed("v", modified=10.0)}, date=100.0)

    found = claims(plan)

    assert found == [name for name in walk_of(names, found[0]) if name != names[4]]


def test_a_live_lock_is_looked_at_when_it_may_be_past() -> None:
    """By the store's clock: its age when it was listed, and our own seconds since."""
    plan, names = plan_of(1)
    lock = listed("v", modified=1000.0)
    see_all(plan, locks={names[0]: lock}, date=1050.0)
    ready = OPTIONS.lease_ttl + OPTIONS.margin - 50.0

    assert plan.next_step(0.0) == PollLocks()
    plan.saw_locks({names[0]: lock}, date=1050.0, now=0.0)
    now = 0.0
    while isinstance(step := after_probes(plan, now), (Wait, PollLocks, RefreshIndex)):
        match step:
            case Wait(until):
                assert until > now
                now = until
            case PollLocks():
                plan.saw_locks({names[0]: lock}, date=1050.0 + now, now=now)
            case RefreshIndex():
                plan.index_checked(now)

    assert step == TakeOver(names[0])
    assert now == ready


def test_a_renewed_lock_is_left_alone() -> None:
    """A lock that changed since counts from its change."""
    plan, names = plan_of(1)
    see_all(plan, locks={names[0]: listed("v1")})
    plan.next_step(0.0)
    plan.saw_locks({names[0]: listed("v2", modified=100.0)}, date=125.0, now=125.0)
    plan.index_checked(125.0)

    step = after_probes(plan, 125.0)

    assert isinstance(step, Wait)
    assert 125.0 < step.until <= 125.0 + OPTIONS.poll_max


def test_an_olmocr_lock_has_olmocrs_patience() -> None:
    """An empty lock is not looked at before olmOCR's own timeout is over."""
    plan, names = plan_of(1)
    see_all(plan, locks={names[0]: listed("v", size=OLMOCR_SIZE)})
    timeout = OPTIONS.olmocr_lock_timeout + OPTIONS.margin
    for now in (timeout - 1, timeout):
        plan.index_checked(now)
        plan.gave_up_looking()
        plan.next_step(now)
        plan.saw_locks({names[0]: listed("v", size=OLMOCR_SIZE)}, date=now, now=now)
        assert (after_probes(plan, now) == TakeOver(names[0])) == (now == timeout)


def test_polls_grow_apart_while_nothing_changes() -> None:
    """From `poll_min` to `poll_max`, with jitter; a change starts them again."""
    plan, names = plan_of(1, QueueOptions(index_refresh=1e9))
    locks = {names[0]: listed("v")}
    see_all(plan, locks=locks)
    now, waits = 0.0, []
    for _ in range(7):
        assert plan.next_step(now) == PollLocks()
        plan.saw_locks(locks, date=0.0, now=now)
        step = after_probes(plan, now)
        assert isinstance(step, Wait)
        waits.append(step.until - now)
        now = step.until
    assert plan.next_step(now) == PollLocks()
    plan.saw_locks({names[0]: listed("v2")}, date=0.0, now=now)
    after = after_probes(plan, now)

    assert all(OPTIONS.poll_min <= wait <= 1.25 * OPTIONS.poll_max for wait in waits)
    assert waits[-1] >= 0.75 * OPTIONS.poll_max > waits[0]
    assert isinstance(after, Wait)
    assert after.until - now <= 1.25 * (1 + 1 / PROBES_A_LISTING) * OPTIONS.poll_min


def test_few_vanished_locks_are_probed() -> None:
    """A lock that went is a group that was done, or one to claim: a HEAD tells."""
    plan, names = plan_of(3)
    see_all(plan, locks={name: listed("v") for name in names})
    assert plan.next_step(0.0) == PollLocks()
    plan.saw_locks({names[2]: listed("v")}, date=0.0, now=0.0)

    assert [plan.next_step(0.0) for _ in range(3)] == [Probe(names[0]), Probe(names[1]), Probe(names[2])]
    plan.probed(names[0], is_done=True)
    plan.probed(names[1], is_done=False)
    plan.probed(names[2], is_done=False)
    assert [plan.count(state) for state in (OPEN, HELD, MINE, DONE)] == [1, 1, 0, 1]
    assert isinstance(plan.next_step(0.0), ListStretch)


def test_a_probe_that_failed_is_made_again() -> None:
    """A group whose lock has vanished is asked after at each poll until somebody tells what it is."""
    plan, names = plan_of(2)
    see_all(plan, locks={name: listed("v") for name in names})
    plan.next_step(0.0)
    plan.saw_locks({}, date=0.0, now=0.0)
    assert plan.next_step(0.0) == Probe(names[0])

    plan.index_checked(30.0)
    plan.saw_locks({}, date=30.0, now=30.0)

    assert [plan.next_step(30.0) for _ in range(2)] == [Probe(names[0]), Probe(names[1])]
    plan.probed(names[0], is_done=True)
    plan.index_checked(60.0)
    plan.saw_locks({}, date=60.0, now=60.0)
    assert plan.next_step(60.0) == Probe(names[1])


def test_a_lock_that_is_back_needs_no_probe() -> None:
    """Somebody claimed the group: it is asked after like any other that is held, and no more."""
    plan, names = plan_of(1)
    see_all(plan, locks={names[0]: listed("v")})
    plan.next_step(0.0)
    plan.saw_locks({}, date=0.0, now=0.0)
    plan.saw_locks({names[0]: listed("theirs")}, date=0.0, now=0.0)

    assert plan.next_step(0.0) == Probe(names[0])
    assert isinstance(plan.next_step(0.0), Wait)
    assert plan.count(HELD) == 1


def test_held_groups_are_asked_after() -> None:
    """A lock outlives its group's completion, so each poll asks for the flags of what is held: few by a HEAD each."""
    plan, names = plan_of(100)
    held = names[:: len(names) // (CROWD - 1)][: CROWD - 1]
    for name in set(names) - set(held):
        plan.done(name)
    locks = {name: listed("v") for name in held}
    plan.saw_locks(locks, date=0.0, now=0.0)

    probes = [plan.next_step(0.0) for _ in held]

    assert sorted(step.group for step in probes if isinstance(step, Probe)) == sorted(held)
    assert isinstance(plan.next_step(0.0), Wait)
    plan.probed(held[0], is_done=True)
    assert (plan.count(HELD), plan.count(DONE)) == (CROWD - 2, 100 - CROWD + 2)
    price = (1 + len(held) / PROBES_A_LISTING) * OPTIONS.poll_min
    assert plan.next_step(price - 0.01) == Wait(price)
    assert plan.next_step(price) == PollLocks()


def test_a_crowd_of_held_groups_is_listed() -> None:
    """Where many are close together on the ring, a listing of their stretch tells of all at once."""
    plan, names = plan_of(100)
    for name in names[: -CROWD - 3]:
        plan.done(name)
    locks = {name: listed("v") for name in names[-CROWD - 3 :]}
    plan.saw_locks(locks, date=0.0, now=0.0)

    step = plan.next_step(0.0)

    assert step == ListStretch(names[-CROWD - 4], locks=False)
    assert isinstance(step, ListStretch)
    plan.saw_stretch(step, done=names[-CROWD:], locks={}, end="", date=0.0, now=0.0)
    assert (plan.count(HELD), plan.count(DONE)) == (3, 97)


def test_a_dead_groups_lock_that_vanished_is_probed() -> None:
    """Somebody retried the group and finished it, or deleted its lock by hand."""
    plan, names = plan_of(1)
    plan.dead(names[0], Version("v"))
    plan.saw_locks({}, date=0.0, now=0.0)

    assert plan.next_step(0.0) == Probe(names[0])


def test_many_vanished_locks_are_listed() -> None:
    """A HEAD each would cost more than the listing of their stretch."""
    plan, names = plan_of(PROBES_MOST + 1)
    see_all(plan, locks={name: listed("v") for name in names})
    plan.next_step(0.0)
    plan.saw_locks({}, date=0.0, now=0.0)

    assert plan.count(OPEN) == len(names)
    assert isinstance(plan.next_step(0.0), ListStretch)


def test_a_dead_group_is_left_alone_until_its_lock_changes() -> None:
    """It costs no request while its lock is the same, and is work again once someone has retried it."""
    plan, names = plan_of(2)
    see_all(plan, locks={names[0]: listed("v", size=FREE_SIZE), names[1]: listed("w")})
    assert plan.next_step(0.0) == TakeOver(names[0])
    plan.dead(names[0], Version("v"))
    for now in (0.0, 20.0):
        assert plan.next_step(now) == PollLocks()
        plan.saw_locks({names[0]: listed("v", size=FREE_SIZE), names[1]: listed("w")}, date=now, now=now)
        assert isinstance(after_probes(plan, now), Wait)
    assert (plan.count(DEAD), plan.count(HELD)) == (1, 1)

    plan.saw_locks({names[0]: listed("v2", size=FREE_SIZE), names[1]: listed("w")}, date=21.0, now=21.0)

    assert plan.next_step(21.0) == TakeOver(names[0])


def test_all_done_or_dead_is_finished() -> None:
    """Dead groups do not keep a process waiting."""
    plan, names = plan_of(2)
    plan.done(names[0])
    plan.dead(names[1], Version("v"))

    assert plan.next_step(0.0) == Finished()


def test_our_own_groups_are_not_finished() -> None:
    """They may yet fail, and the index may grow meanwhile."""
    plan, _ = plan_of(1)
    see_all(plan)
    assert isinstance(plan.next_step(0.0), Claim)

    assert plan.next_step(0.0) == Wait(OPTIONS.index_refresh)


def test_what_we_handed_back_needs_no_listing() -> None:
    """We know when its back-off is over."""
    plan, names = plan_of(2, QueueOptions(index_refresh=1e9))
    see_all(plan)
    found = claims(plan)
    assert found == walk_of(names, found[0])
    plan.handed_back(names[0], Version("v"), 10.0)
    plan.handed_back(names[1], Version("w"), 5.0)
    plan.next_step(0.0)
    plan.saw_locks({names[0]: listed("v", size=FREE_SIZE), names[1]: listed("w", size=FREE_SIZE)}, date=0.0, now=0.0)
    plan._next_poll = math.inf

    assert isinstance(after_probes(plan, 4.9), Wait)
    assert plan.next_step(5.0) == TakeOver(names[1])
    assert plan.next_step(10.0) == TakeOver(names[0])


def test_what_we_handed_back_may_be_somebody_elses_by_then() -> None:
    """A newer lock is what counts."""
    plan, names = plan_of(1, QueueOptions(index_refresh=1e9))
    see_all(plan)
    found = claims(plan)
    assert found == walk_of(names, found[0])
    plan.handed_back(names[0], Version("v"), 5.0)
    plan.next_step(0.0)
    plan.saw_locks({names[0]: listed("theirs", modified=1.0)}, date=1.0, now=1.0)

    assert not isinstance(plan.next_step(5.0), TakeOver)


def test_growth_keeps_what_is_known() -> None:
    """Old groups keep their state at their new places, new ones are open, and old candidates are dropped."""
    plan, names = plan_of(6)
    see_all(plan, locks={names[0]: listed("v")}, date=100.0)
    ours = claim_of(plan.next_step(0.0))
    done, dead, *_ = [name for name in names[1:] if name != ours]
    plan.done(done)
    plan.dead(dead, None)
    bigger = plan.index.add([f"new {i}" for i in range(20)], 1)[0]

    plan.grow(bigger)

    assert [plan.count(state) for state in (OPEN, HELD, DEAD, MINE, DONE)] == [22, 1, 1, 1, 1]
    assert plan.is_done(done)
    see_all(plan)
    assert sorted(claims(plan)) == sorted(set(names_of(bigger)) - {names[0], ours, done, dead})


def test_groups_that_are_not_in_the_index_are_nobodys() -> None:
    """Locks and flags of foreign groups change nothing."""
    plan, _ = plan_of(2)
    foreign = "f" * 40
    see_all(plan, locks={foreign: listed("v", size=FREE_SIZE)})
    plan.done(foreign)
    plan.probed(foreign, is_done=False)
    plan.dead(foreign, None)

    assert [plan.count(state) for state in (OPEN, HELD, DEAD, MINE, DONE)] == [2, 0, 0, 0, 0]
    assert not plan.is_done(foreign)
    assert len(claims(plan)) == 2


def test_the_index_is_checked_while_there_is_work() -> None:
    """A long walk must not hide that the index has grown."""
    plan, _ = plan_of(3)
    see_all(plan)

    assert isinstance(plan.next_step(0.0), Claim)
    assert plan.next_step(OPTIONS.index_refresh) == RefreshIndex()
