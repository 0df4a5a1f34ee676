"""The worlds that are explored: a few processes each, of the real lease, scheduler, queue and index code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from s3queue import QueueOptions
from tests.interleavings._gate import Fate
from tests.interleavings._owners import QUICK, Ending, complete, fail, owner, release, renew_and_complete
from tests.interleavings._queues import FRESH, PATIENT, by_hand, janitor, operator, populates, works
from tests.interleavings._world import Scope, World

ALL = frozenset(Fate)
#: What a network does, and what becomes of machines.
_LOST = frozenset({Fate.FAILS, Fate.UNANSWERED, Fate.TWICE})
_LATE = frozenset({Fate.DELAYED, Fate.ANSWER_DELAYED, Fate.STALLS})
_DEATHS = frozenset({Fate.DIES_BEFORE, Fate.DIES_AFTER, Fate.RAISES})
#: Seconds by which the nodes of a store disagree about the time. The margin is for that, and for whole-second stamps.
_SKEW = 1.5
#: The first failure is the last.
MORTAL = replace(QUICK, max_attempts=1)


def _owners(*endings: tuple[Ending, ...], options: QueueOptions = QUICK, skew: float = 0.0) -> Callable[[World], None]:
    def build(world: World) -> None:
        for i, first in enumerate(endings):
            world.add(f"w{i + 1}", owner(*first, options=options), skew=skew * i)

    return build


_late = _owners((renew_and_complete,), (), options=PATIENT, skew=_SKEW)


def _queues(world: World) -> None:
    world.populate(["a", "b"])
    world.add("w1", works())
    world.add("w2", works())


def _slow_queues(world: World) -> None:
    world.populate(["a"])
    world.add("w1", works(PATIENT))
    world.add("w2", works(PATIENT), skew=_SKEW)


def _swept_queues(world: World) -> None:
    world.populate(["a"])
    world.add("w1", works(FRESH))
    world.add("w2", works(FRESH))
    world.add("j", janitor, worker=False)


def _hands(world: World) -> None:
    world.populate(["a"])
    world.add("w1", by_hand(PATIENT))
    world.add("w2", by_hand(PATIENT))


def _populates(world: World) -> None:
    world.add("p1", populates(["a", "b"]), worker=False)
    world.add("p2", populates(["b", "c"]), worker=False)


def _growth(world: World) -> None:
    world.populate(["a"])
    world.add("p1", populates(["b"]), worker=False)
    world.add("w1", works())


def _operation(world: World) -> None:
    world.populate(["a"])
    world.add("w1", works())
    world.add("op", operator, worker=False)


_ALL_SCOPES = [
    # Two owners of the protocol alone; any one fault.
    Scope(name="lease", build=_owners((), ()), fates=_LOST | _DEATHS, preemptions=1, faults=1),
    Scope(name="renew", build=_owners((renew_and_complete,), ()), fates=_LOST | _DEATHS, preemptions=1, faults=1),
    Scope(name="leave", build=_owners((release,), (fail,)), fates=_LOST, preemptions=1, faults=1),
    Scope(name="deaths", build=_owners((fail,), (), options=MORTAL), fates=_LOST, preemptions=1, faults=1),
    Scope(name="slow", build=_owners((renew_and_complete,), ()), fates=_LATE, preemptions=0, faults=1),
    # Requests that take longer than a lease lives; nodes of the store that disagree about the time.
    Scope(name="late", build=_late, fates=_LATE, preemptions=1, faults=1),
    Scope(name="crowd", build=_owners((complete,), (release,), ()), fates=frozenset(), preemptions=2, faults=0),
    # Whole queues: scheduler, keeper, pool; and queues used by hand, which nobody renews.
    Scope(name="queues", build=_queues, fates=_LOST | {Fate.DIES_AFTER}, preemptions=1, faults=1, deep=(1, 2)),
    Scope(name="fresh", build=_swept_queues, fates=frozenset({Fate.STALLS}), preemptions=0, faults=1, deep=(1, 1)),
    Scope(name="stalls", build=_slow_queues, fates=_LATE, preemptions=0, faults=1, deep=(1, 1)),
    Scope(name="hands", build=_hands, fates=_LATE, preemptions=0, faults=1, deep=(1, 1)),
    # The index; and a person among the workers.
    Scope(name="populates", build=_populates, fates=ALL, preemptions=2, faults=1, deep=(3, 2)),
    Scope(name="growth", build=_growth, fates=_LOST, preemptions=1, faults=1),
    Scope(name="operator", build=_operation, fates=_LOST, preemptions=1, faults=1),
]
SCOPES = {scope.name: scope for scope in _ALL_SCOPES}
