"""Runs one fleet to its end, and judges it."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from random import Random

import anyio
import trio
import trio.testing

from tests import deterministic
from tests.audit import Audit, Violation
from tests.simulation import _actors as actors
from tests.simulation._actors import Fleet
from tests.simulation._settings import Settings, draw


@dataclass(frozen=True)
class Report:
    """What came of a fleet."""

    seed: int
    settings: Settings
    violation: str | None
    #: Virtual seconds; requests; a digest of every change of the bucket, in order.
    seconds: float
    requests: int
    history: str
    #: Groups of the index, and workers at a time.
    groups: int
    workers: int

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.seconds:.0f} s, {self.requests} requests, history {self.history}"

    def failure(self) -> str:
        """What a person needs to know."""
        return f"{self.violation}\n{self.settings}\nrun it again with\npython -m tests.simulation {self.seed}"


def simulate(seed: int) -> Report:
    """The fleet of this seed, from the first populate to the end."""
    settings = draw(seed)
    clock = trio.testing.MockClock(autojump_threshold=0)
    audit = Audit(clock.current_time, olmocr=settings.options.olmocr_lock_timeout)
    fleet = Fleet(settings, audit, Random(seed))
    violation = None
    try:
        deterministic.run(functools.partial(_live, fleet), clock=clock, seed=seed)
        _judge(fleet)
    except Violation as broken:
        violation = str(broken)
    except BaseExceptionGroup as group:
        violation = repr(_first(group))
    digest = hashlib.sha256(repr(audit.history).encode()).hexdigest()[:16]
    requests = sum(machine.cable.requests for machine in fleet.machines.values())
    return Report(
        seed,
        settings,
        audit.violation or violation,
        clock.current_time(),
        requests,
        digest,
        len(audit.index()),
        settings.machines * settings.workers,
    )


async def _live(fleet: Fleet) -> None:
    settings = fleet.settings
    with anyio.move_on_after(settings.calm + settings.time_to_end) as in_time:
        async with anyio.create_task_group() as tasks:
            for number in range(settings.populates):
                tasks.start_soon(actors.populate, fleet, number)
            for number in range(settings.machines):
                tasks.start_soon(actors.place, fleet, number)
            for number in range(settings.strangers):
                tasks.start_soon(actors.stranger, fleet, number)
            for actor in (actors.killer, actors.pauser, actors.clockmaker, actors.operator, Fleet.calm_down):
                tasks.start_soon(actor, fleet)
    if in_time.cancelled_caught:
        raise Violation(f"not finished {settings.time_to_end:.0f} s after the calm")
    if settings.per_path and not settings.strangers:
        await _judge_results(fleet)


async def _judge_results(fleet: Fleet) -> None:
    """Each path of a finished group has its result, whoever ran it, and however often the group changed hands."""
    machine = fleet.machine("reader")
    found = {result.path: result.result async for result in machine.queue.results()}
    done = [paths for group, paths in fleet.audit.index() if fleet.audit.is_done(group)]
    wrong = [path for paths in done for path in paths if found.get(path) != path]
    if wrong:
        raise Violation(f"{len(wrong)} results are not there: {wrong[:3]}")


def _judge(fleet: Fleet) -> None:
    settings, audit = fleet.settings, fleet.audit
    audit.check_end()
    if settings.undisturbed:
        _judge_waste(fleet)


def _judge_waste(fleet: Fleet) -> None:
    """Where nothing disturbs, no work is done twice, and requests are a few a group, and a few more a second."""
    audit, settings = fleet.audit, fleet.settings
    lost = sum(machine.lost for machine in fleet.machines.values())
    if lost:
        raise Violation(f"{lost} leases were lost")
    units = (
        len([path for group, paths in audit.index() for path in paths])
        if settings.per_path
        else audit.told_done.total()
    )
    if fleet.ended > units:
        raise Violation(f"{fleet.ended} runs came to their end, for {units} of use")
    requests = sum(machine.cable.requests for machine in fleet.machines.values())
    # A machine that finds nothing to do is started again, here, each second.
    looks = settings.machines * (_seconds(audit) / min(1.0, settings.options.poll_min) + 10)
    allowed = 8 * (audit.runs.total() or fleet.ended) + 8 * looks
    if requests > allowed:
        raise Violation(f"{requests} requests, and {allowed:.0f} are plenty")


def _seconds(audit: Audit) -> float:
    """How long it took, to the last change of the bucket."""
    return audit.history[-1][0] if audit.history else 0.0


def _first(group: BaseException) -> BaseException:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    return group
