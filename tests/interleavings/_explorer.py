"""Enumerates schedules, depth first, each from scratch: stateless model checking of the real code.

A schedule is a prefix of choices and then, at each step, whatever happens if nothing special does: the process that
went on last goes on. Each choice that differs has a price, in preemptions or in faults, and a scope allows so many of
each. Orders of operations that commute are explored once (sleep sets): what was explored at a step stays asleep in the
siblings until something happens that it does not commute with.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

from tests.interleavings._choices import Choice, Option, spell
from tests.interleavings._gate import Footprint
from tests.interleavings._world import Outcome, Redundant, Scope, World

Asleep = Mapping[Choice, Footprint]


@dataclass(frozen=True)
class _Start:
    """Where one run departs from those before it."""

    prefix: tuple[Choice, ...] = ()
    asleep: Asleep = field(default_factory=dict)
    preemptions: int = 0
    faults: int = 0


@dataclass(frozen=True)
class Report:
    """What an exploration found."""

    scope: str
    schedules: int
    #: The first schedule that broke a promise, if any did.
    broken: Outcome | None
    #: Whether nothing is left that the scope allows.
    exhausted: bool

    def __str__(self) -> str:
        done = "exhausted" if self.exhausted else "sampled"
        return f"{self.scope}: {self.schedules} schedules, {done}{'' if self.broken is None else ', BROKEN'}"

    def failure(self) -> str:
        """The failing schedule, for a person: its trace, and how to see it again."""
        assert self.broken is not None
        trace = "\n".join(self.broken.trace)
        command = f'python -m tests.interleavings {self.scope} "{spell(self.broken.choices)}"'
        return f"{self.broken.violation}\n{trace}\nafter {self.schedules} schedules; replay it with\n{command}"


def explore(scope: Scope, *, most: int | None = None, order: Random | None = None) -> Report:
    """Every schedule that the scope allows, until one breaks a promise (or `most` have run).

    Depth first; or as `order` draws, which finds sooner what is there to find: the first departures weigh as much as
    the last."""
    starts = [_Start()]
    schedules = 0
    while starts:
        if schedules == most:
            return Report(scope.name, schedules, None, exhausted=False)
        if order is not None:
            place = order.randrange(len(starts))
            starts[place], starts[-1] = starts[-1], starts[place]
        run = _DepthFirst(scope, starts.pop())
        outcome = World(scope).run(run)
        schedules += not outcome.redundant
        if outcome.violation is not None:
            return Report(scope.name, schedules, outcome, exhausted=False)
        starts.extend(run.branches)
    return Report(scope.name, schedules, None, exhausted=True)


def sample(scope: Scope, seeds: range) -> Report:
    """One random schedule a seed, with preemptions and faults wherever chance puts them."""
    for number, seed in enumerate(seeds, start=1):
        outcome = World(scope).run(_AtRandom(scope, Random(seed)))
        if outcome.violation is not None:
            return Report(scope.name, number, outcome, exhausted=False)
    return Report(scope.name, len(seeds), None, exhausted=False)


def replay(scope: Scope, choices: tuple[Choice, ...]) -> Outcome:
    """That schedule again; past its end, nothing special happens.

    What cannot happen (any more, since the code asks the store other things now) is left out."""
    return World(scope).run(_Script(choices))


class _DepthFirst:
    """Follows a prefix, then the defaults, and notes where else one could have gone."""

    def __init__(self, scope: Scope, start: _Start) -> None:
        self._scope = scope
        self._start = start
        self._asleep: Asleep = start.asleep
        #: What happened so far.
        self._taken: list[Choice] = []
        self._preemptions, self._faults = start.preemptions, start.faults
        self.branches: list[_Start] = []

    def scripted(self) -> Choice | None:
        step = len(self._taken)
        if step >= len(self._start.prefix):
            return None
        self._taken.append(self._start.prefix[step])
        return self._taken[-1]

    def choose(self, options: list[Option]) -> Choice:
        # What is next may cost something where what would be free is asleep.
        awake = [option for option in options if option.choice not in self._asleep and self._affordable(option)]
        if not awake:
            raise Redundant
        chosen = awake[0]
        self._branch(awake)
        self._preemptions += chosen.preemptions
        self._faults += chosen.faults
        self._asleep = _still_asleep(self._asleep, chosen)
        self._taken.append(chosen.choice)
        return chosen.choice

    def _affordable(self, option: Option) -> bool:
        return (
            self._preemptions + option.preemptions <= self._scope.preemptions
            and self._faults + option.faults <= self._scope.faults
        )

    def _branch(self, awake: list[Option]) -> None:
        explored: dict[Choice, Footprint] = dict(self._asleep)
        for i, option in enumerate(awake):
            if i:
                self.branches.append(
                    _Start(
                        (*self._taken, option.choice),
                        _still_asleep(explored, option),
                        self._preemptions + option.preemptions,
                        self._faults + option.faults,
                    )
                )
            if option.footprint is not None:
                explored[option.choice] = option.footprint


def _still_asleep(asleep: Asleep, happens: Option) -> Asleep:
    what = happens.footprint
    if what is None:
        return {}
    return {choice: footprint for choice, footprint in asleep.items() if footprint.commutes(what)}


class _Script:
    """Follows a schedule as far as it can."""

    def __init__(self, choices: tuple[Choice, ...]) -> None:
        self._left = deque(choices)

    def scripted(self) -> Choice | None:
        return None

    def choose(self, options: list[Option]) -> Choice:
        possible = {option.choice for option in options}
        while self._left:
            choice = self._left.popleft()
            if choice in possible:
                return choice
        return options[0].choice


class _AtRandom:
    """Mostly the default, now and then something else, until the scope's allowance is spent."""

    def __init__(self, scope: Scope, rng: Random) -> None:
        self._left = list(scope.at_random)
        self._rng = rng

    def scripted(self) -> Choice | None:
        return None

    def choose(self, options: list[Option]) -> Choice:
        if self._rng.random() < 0.7:
            return options[0].choice
        possible = [o for o in options if o.preemptions <= self._left[0] and o.faults <= self._left[1]]
        chosen = self._rng.choice(possible)
        self._left[0] -= chosen.preemptions
        self._left[1] -= chosen.faults
        return chosen.choice
