"""One schedule: processes on a gated bucket, driven step by step from one quiet moment to the next."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import trio
import trio.testing

from s3queue import _keys as keys
from s3queue._index import Index, validate_paths
from s3queue._runtime import SeededRuntime
from s3queue.stores import OVERWRITE
from tests import deterministic
from tests.audit import Audit, Violation
from tests.interleavings._choices import CLOCK, WAKE, Choice, Option
from tests.interleavings._gate import Died, Fate, Gate, GatedStore, Operation

#: Past this much virtual time, or this many steps, a run that is not over is stuck.
_TIME_MOST, _STEPS_MOST = 900.0, 1500


class Chooser(Protocol):
    """Decides what happens."""

    def scripted(self) -> Choice | None:
        """What is to happen now, if that was decided before."""

    def choose(self, options: list[Option]) -> Choice:
        """One of these; the first is what happens if nothing special does. Raises `Redundant`."""


class Redundant(Exception):
    """Raised by a chooser: all that could happen now was seen in another schedule."""


@dataclass(frozen=True, kw_only=True)
class Scope:
    """A small world to explore."""

    name: str
    #: Adds the processes.
    build: Callable[[World], None]
    #: What may befall operations, besides being answered.
    fates: frozenset[Fate]
    #: At most this many switches away from a process that could go on, and faults.
    preemptions: int
    faults: int
    #: The same, when there is time; and for schedules drawn at random.
    deep: tuple[int, int] = (2, 1)
    at_random: tuple[int, int] = (6, 3)
    #: Longer than any lease lives: for how long something may be delayed or stand still.
    patience: float = 40.0


@dataclass
class Process:
    """One process of the world."""

    name: str
    world: World
    main: Callable[[Process], Awaitable[None]]
    runtime: SeededRuntime
    store: GatedStore
    #: Whether some other process must be left to finish its work if this one dies.
    is_worker: bool
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    finished: bool = False

    @property
    def audit(self) -> Audit:
        return self.world.audit

    async def run(self) -> None:
        try:
            with self.scope:
                await self.main(self)
        except BaseException:
            if self.name not in self.world.gate.dead:
                raise
        finally:
            self.finished = True


@dataclass(frozen=True)
class Outcome:
    """What came of one schedule."""

    choices: tuple[Choice, ...]
    trace: tuple[str, ...]
    violation: str | None
    redundant: bool = False


class World:
    """See the module's text."""

    def __init__(self, scope: Scope) -> None:
        self.clock = trio.testing.MockClock()
        self.gate = Gate()
        self.audit = Audit(self.clock.current_time)
        self._scope = scope
        self.processes: dict[str, Process] = {}
        self._delayed: list[Operation] = []
        self._standing: dict[str, Operation] = {}
        self._frozen_at = 0.0
        self._current = ""
        self._choices: list[Choice] = []
        self._trace: list[str] = []
        scope.build(self)

    def add(
        self, name: str, main: Callable[[Process], Awaitable[None]], *, worker: bool = True, skew: float = 0.0
    ) -> None:
        """Add a process; `skew` is how far the clock of its store's node is off."""
        # Seeds follow from the place, so that the same schedule makes the same run.
        runtime = SeededRuntime(len(self.processes) + 1, skew=3600.0 * (1 - len(self.processes)))
        store = GatedStore(self.gate, name, runtime, self.audit, skew)
        self.processes[name] = Process(name, self, main, runtime, store, worker)

    def populate(self, paths: Sequence[str], per_group: int = 1) -> None:
        """Have this index from the beginning."""
        index, _ = Index(b"").add(validate_paths(paths), per_group)
        self.audit.bucket.write(keys.INDEX, index.encode(), OVERWRITE, 0.0)
        self.audit.populated(paths)

    def run(self, chooser: Chooser) -> Outcome:
        """Run from scratch to the end, as `chooser` decides."""
        violation, redundant = None, False
        try:
            deterministic.run(functools.partial(self._main, chooser), clock=self.clock)
        except Redundant:
            redundant = True
        except Violation as broken:
            violation = str(broken)
        return Outcome(tuple(self._choices), tuple(self._trace), self.audit.violation or violation, redundant)

    async def _main(self, chooser: Chooser) -> None:
        ended: BaseException | None = None
        try:
            async with trio.open_nursery() as nursery:
                for process in self.processes.values():
                    nursery.start_soon(process.run)
                try:
                    await self._drive(chooser)
                except Exception as error:
                    ended = error
                await self._end_all()
        except BaseExceptionGroup as group:
            raise Violation(f"a process ended with {next(_leaves(group))!r}") from group
        if ended is not None:
            raise ended

    async def _drive(self, chooser: Chooser) -> None:
        while True:
            await trio.testing.wait_all_tasks_blocked()
            if self.audit.violation is not None:
                raise Violation(self.audit.violation)
            choice = chooser.scripted()
            if choice is None:
                options = self._options()
                if not options:
                    break
                choice = chooser.choose(options)
            if self.clock.current_time() > _TIME_MOST or len(self._choices) > _STEPS_MOST:
                raise Violation(f"not finished after {self.clock.current_time():.0f} s")
            self._choices.append(choice)
            self._do(choice)
        stuck = [name for name, process in self.processes.items() if not process.finished]
        if stuck:
            raise Violation(f"{stuck} wait for ever")
        self.audit.check_end(settled=any(process.is_worker for process in self.processes.values()))

    async def _end_all(self) -> None:
        for name in self.processes:
            self._kill(name)
        # What is shielded from the end of its process sleeps until its own deadline.
        while not all(process.finished for process in self.processes.values()):
            await trio.testing.wait_all_tasks_blocked()
            self.clock.jump(60.0)

    # What may happen.

    def _options(self) -> list[Option]:
        ready = [operation for operation in self.gate.waiting if operation.what.process not in self._standing]
        wakes = [Option(Choice(op.what.process, op.what.number, WAKE), op.what) for op in self._frozen()]
        if ready:
            return [*self._fates(self._in_order(ready)), *wakes]
        until_due = trio.lowlevel.current_statistics().seconds_to_next_deadline
        over = all(process.finished for process in self.processes.values())
        if over or until_due == float("inf"):
            return wakes
        if wakes and self.clock.current_time() > self._frozen_at + self._scope.patience:
            return wakes
        # Two moments between which nothing was asked of the store are one to whoever wakes up.
        return [Option(CLOCK, None), *(wakes if self._choices[-1:] != [CLOCK] else [])]

    def _frozen(self) -> list[Operation]:
        return [*self._delayed, *self._standing.values()]

    def _in_order(self, ready: list[Operation]) -> list[Operation]:
        """The process that went on last goes first; then the others, by name."""
        return sorted(ready, key=lambda op: (op.what.process != self._current, op.what.process, op.what.number))

    def _fates(self, ready: list[Operation]) -> Iterator[Option]:
        goes_on = ready[0].what.process == self._current
        seen: set[str] = set()
        for i, operation in enumerate(ready):
            what = operation.what
            preempts = (goes_on and i > 0) or what.process in seen
            seen.add(what.process)
            for fate in Fate:
                if fate is Fate.ANSWERED or (fate in self._scope.fates and self._may(operation, fate)):
                    choice = Choice(what.process, what.number, fate.value)
                    yield Option(choice, what, preemptions=preempts, faults=fate is not Fate.ANSWERED)

    def _may(self, operation: Operation, fate: Fate) -> bool:
        if not fate.befalls(operation.what.verb):
            return False
        if fate not in (Fate.DIES_BEFORE, Fate.DIES_AFTER):
            return True
        alive = [p.name for p in self.processes.values() if p.is_worker and p.name not in self.gate.dead]
        return not self.processes[operation.what.process].is_worker or len(alive) > 1

    # What happens.

    def _do(self, choice: Choice) -> None:
        if choice == CLOCK:
            # A hair more, so that rounding cannot leave what is due undone.
            self.clock.jump(trio.lowlevel.current_statistics().seconds_to_next_deadline + 1e-6)
            self._tell(choice, "the clock goes on")
            return
        operation = self._find(choice)
        if choice.what == WAKE:
            self._wake(choice, operation)
            return
        self._current = choice.process
        fate = Fate(choice.what)
        if fate is not Fate.STALLS:
            self.gate.waiting.remove(operation)
        answer = operation.apply() if fate in _APPLYING else "not applied"
        self._tell(choice, f"{operation.what.verb} {operation.what.about}: {answer}{_WORDS[fate]}")
        self._befall(operation, fate)

    def _befall(self, operation: Operation, fate: Fate) -> None:
        match fate:
            case Fate.ANSWERED:
                operation.tell()
            case Fate.FAILS | Fate.UNANSWERED:
                operation.leave_unanswered()
            case Fate.TWICE:
                operation.apply()
                operation.tell()
            case Fate.RAISES:
                operation.tell(ValueError("a failure of the handler's own"))
            case Fate.DELAYED | Fate.ANSWER_DELAYED:
                self._delayed.append(operation)
                self._frozen_at = self.clock.current_time()
            case Fate.STALLS:
                self._standing[operation.what.process] = operation
                self._frozen_at = self.clock.current_time()
            case Fate.DIES_BEFORE | Fate.DIES_AFTER:
                operation.tell(Died())
                self._kill(operation.what.process)

    def _wake(self, choice: Choice, operation: Operation) -> None:
        if operation in self._delayed:
            self._delayed.remove(operation)
            answer = "its answer arrives" if operation.applied else operation.apply()
            operation.tell()
        else:
            del self._standing[choice.process]
            answer = "the process goes on"
        self._tell(choice, f"{operation.what.verb} {operation.what.about}: {answer}, at last")

    def _find(self, choice: Choice) -> Operation:
        for operation in [*self.gate.waiting, *self._frozen()]:
            if (operation.what.process, operation.what.number) == (choice.process, choice.number):
                return operation
        raise AssertionError(f"there is no operation {choice}")

    def _kill(self, name: str) -> None:
        self._standing.pop(name, None)
        self.audit.dead.add(name)
        self.gate.kill(name)
        # What is on its way stays on its way; nobody waits for it any more.
        for operation in self._delayed:
            if operation.what.process == name:
                operation.told.set()
        self.processes[name].scope.cancel()

    def _tell(self, choice: Choice, what: str) -> None:
        self._trace.append(f"{self.clock.current_time():7.2f}  {choice!s:8} {what}")


_APPLYING = (Fate.ANSWERED, Fate.UNANSWERED, Fate.TWICE, Fate.ANSWER_DELAYED, Fate.DIES_AFTER)
_WORDS = {
    Fate.ANSWERED: "",
    Fate.FAILS: ", no answer",
    Fate.UNANSWERED: ", and the answer is lost",
    Fate.TWICE: ", and the same once more",
    Fate.DELAYED: ", it is on its way for long",
    Fate.ANSWER_DELAYED: ", and the answer is on its way for long",
    Fate.STALLS: ", the process stands still",
    Fate.DIES_BEFORE: ", the process dies",
    Fate.DIES_AFTER: ", and the process dies",
    Fate.RAISES: ", the handler raises",
}


def _leaves(group: BaseException) -> Iterator[BaseException]:
    if isinstance(group, BaseExceptionGroup):
        for error in group.exceptions:
            yield from _leaves(error)
    else:
        yield group
