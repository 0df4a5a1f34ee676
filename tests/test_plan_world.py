"""A whole world of other processes that the plan must come to terms with: a rule machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from s3queue._index import Index
from s3queue._plan import (
    DEAD,
    DONE,
    HELD,
    MINE,
    OPEN,
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
from tests.test_plan import FREE_SIZE, LIVE_SIZE, OLMOCR_SIZE, OPTIONS, index_of, listed, names_of


@dataclass
class Lock:
    """A lock of the world below; `wait` is its ttl with the margin, or its back-off."""

    version: int
    size: int
    modified: float
    wait: float
    dead: bool = False


class World(RuleBasedStateMachine):
    """One plan, obeyed faithfully, in a world where others claim, finish, crash, fail, retry and populate.

    Whatever they do: what the plan counts adds up, it asks for nothing that it knows to be pointless, and once they
    stop, every group comes to its end.
    """

    @initialize(count=st.integers(0, 40), seed=st.integers(0, 2**16), page=st.sampled_from([1, 3, 1000]))
    def start(self, count: int, seed: int, page: int) -> None:
        self.rng = Random(seed)
        self.now = 0.0
        self.page = page
        self.index = index_of(count)
        self.names = names_of(self.index)
        self.done: set[str] = set()
        self.locks: dict[str, Lock] = {}
        self.retried: set[str] = set()
        self.versions = 0
        self.plan = Plan(options=OPTIONS, rng=self.rng)
        self.known = Index(b"")

    # What others do.

    def pick(self, at: int) -> str | None:
        return self.names[at % len(self.names)] if self.names else None

    def lock(self, group: str, size: int, wait: float, *, dead: bool = False) -> None:
        self.versions += 1
        self.locks[group] = Lock(self.versions, size, self.now, wait, dead)

    @rule(at=st.integers(0, 99), size=st.sampled_from([LIVE_SIZE, OLMOCR_SIZE]), ttl=st.sampled_from([30, 120, 400]))
    def somebody_claims_or_renews(self, at: int, size: int, ttl: float) -> None:
        group = self.pick(at)
        if group is not None and group not in self.done:
            wait = OPTIONS.olmocr_lock_timeout if size == OLMOCR_SIZE else ttl
            self.lock(group, size, wait + OPTIONS.margin)

    @rule(at=st.integers(0, 99), left=st.booleans())
    def somebody_finishes(self, at: int, *, left: bool) -> None:
        group = self.pick(at)
        if group in self.locks:
            self.done.add(group)
            if not left:
                del self.locks[group]

    @rule(at=st.integers(0, 99), backoff=st.sampled_from([0, 10, 600]), dead=st.booleans())
    def somebody_gives_up(self, at: int, backoff: int, *, dead: bool) -> None:
        group = self.pick(at)
        if group in self.locks and group not in self.done:
            self.lock(group, FREE_SIZE, 0 if dead else backoff, dead=dead)

    @rule(at=st.integers(0, 99))
    def somebody_retries(self, at: int) -> None:
        group = self.pick(at)
        if group in self.locks and self.locks[group].dead:
            self.lock(group, FREE_SIZE, 0)
            self.retried.add(group)

    @rule(count=st.integers(1, 9))
    def somebody_populates(self, count: int) -> None:
        if len(self.names) < 60:
            self.index = self.index.add([f"more {len(self.names) + i}" for i in range(count)], 1)[0]
            self.names = names_of(self.index)

    @rule(seconds=st.sampled_from([0.1, 3.0, 20.0, 200.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # What we do.

    @rule(steps=st.integers(1, 20), fails=st.booleans())
    def we_work(self, steps: int, *, fails: bool) -> None:
        for _ in range(steps):
            step = self.plan.next_step(self.now)
            if isinstance(step, (Wait, Finished)):
                return
            self.obey(step, fails=fails)

    def obey(self, step: Step, *, fails: bool) -> None:
        match step:
            case RefreshIndex():
                if self.known is not self.index:
                    self.known = self.index
                    self.plan.grow(self.index)
                self.plan.index_checked(self.now)
            case ListStretch(after):
                self.list_stretch(step, after)
            case PollLocks():
                self.plan.saw_locks(self.listed(self.locks), date=self.now, now=self.now)
            case Probe(group):
                self.plan.probed(group, is_done=group in self.done)
            case Claim():
                self.claim(step, fails=fails)
            case TakeOver(group):
                self.take_over(group, fails=fails)

    def listed(self, groups: dict[str, Lock]) -> dict[str, Listed]:
        return {
            group: listed(str(lock.version), size=lock.size, modified=lock.modified) for group, lock in groups.items()
        }

    def list_stretch(self, step: ListStretch, after: str) -> None:
        keys = sorted(self.done | set(self.locks))
        seen = [key for key in keys if key > after and (step.flags or key in self.locks)]
        end = seen[self.page - 1] if len(seen) > self.page else ""
        within = {key for key in seen if not end or key <= end}
        self.plan.saw_stretch(
            step,
            done=within & self.done if step.flags else set(),
            locks=self.listed({group: lock for group, lock in self.locks.items() if group in within and step.locks}),
            end=end,
            date=self.now,
            now=self.now,
        )

    def claim(self, step: Claim, *, fails: bool) -> None:
        group = step.group
        if group in self.locks:
            self.busy(group)
            self.plan.collided(step)
        elif group in self.done:
            self.plan.done(group)
            self.plan.collided(step)
        else:
            self.handle(group, fails=fails)

    def take_over(self, group: str, *, fails: bool) -> None:
        lock = self.locks.get(group)
        if lock is None:
            self.plan.held(group, None, self.now)
        elif lock.dead or self.now - lock.modified < lock.wait:
            self.busy(group)
        elif group in self.done:
            del self.locks[group]
            self.plan.done(group)
        else:
            self.handle(group, fails=fails)

    def busy(self, group: str) -> None:
        lock = self.locks[group]
        version = Version(str(lock.version))
        if lock.dead:
            self.plan.dead(group, version)
        else:
            self.plan.held(group, version, max(self.now, lock.modified + lock.wait))

    def handle(self, group: str, *, fails: bool) -> None:
        assert group not in self.done
        if fails:
            self.lock(group, FREE_SIZE, 10)
            self.plan.handed_back(group, Version(str(self.versions)), self.now + 10)
        else:
            self.done.add(group)
            self.lock(group, LIVE_SIZE, 120)
            self.plan.done(group)

    # What holds.

    @invariant()
    def it_adds_up(self) -> None:
        counts = [self.plan.count(state) for state in (OPEN, HELD, DEAD, MINE, DONE)]
        assert counts == [self.plan._state.count(state) for state in (OPEN, HELD, DEAD, MINE, DONE)]
        assert sum(counts) == len(self.known)
        assert self.plan.count(MINE) == 0
        assert all(group in self.done for group in names_of(self.known) if self.plan.is_done(group))

    def teardown(self) -> None:
        if not hasattr(self, "plan"):
            return
        for _ in range(2):
            self.drain()
            self.now += OPTIONS.index_refresh
        assert self.known is self.index
        alive = set(self.names) - self.done - {group for group, lock in self.locks.items() if lock.dead}
        # A retry is noticed by those who poll; who has nothing left to poll for learns of it when it runs again.
        assert alive <= self.retried

    def drain(self) -> None:
        for _ in range(5000):
            step = self.plan.next_step(self.now)
            if isinstance(step, Finished):
                return
            if isinstance(step, Wait):
                assert self.now < step.until < math.inf
                self.now = step.until
            else:
                self.obey(step, fails=False)
        pytest.fail(f"no end in sight: {self.plan}")


TestWorld = World.TestCase
TestWorld.settings = settings(derandomize=True, deadline=None, max_examples=150, stateful_step_count=30)
