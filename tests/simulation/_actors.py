"""Those who use the queue, and those who disturb it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

import anyio

from s3queue import ConfigurationError, LeaseLost, OutcomeUnknown, PermanentError, RetryLater, StoreError, WorkItem
from s3queue import _keys as keys
from s3queue._errors import NotFound
from s3queue._index import Index
from s3queue.stores import OVERWRITE
from tests.audit import Audit
from tests.simulation._machine import Machine
from tests.simulation._settings import Settings


@dataclass
class Fleet:
    """What all actors share."""

    settings: Settings
    audit: Audit
    rng: Random
    machines: dict[str, Machine] = field(default_factory=dict)
    #: Runs of handlers that came to their end.
    ended: int = 0
    kills: int = 0
    #: Populates that are not acknowledged yet.
    populating: int = field(init=False)
    #: Whether a person may still do something.
    intervening: bool = True

    def __post_init__(self) -> None:
        self.populating = self.settings.populates

    def machine(self, name: str) -> Machine:
        made = Machine(name, self.settings, self.audit, Random(self.rng.getrandbits(32)))
        made.cable.overloaded = self.settings.throttled > 0 and anyio.current_time() < self.settings.calm
        self.machines[name] = made
        if anyio.current_time() >= self.settings.calm:
            made.store.calm()
        return made

    def workers(self) -> list[Machine]:
        """The machines that work and can be disturbed."""
        return [machine for name, machine in sorted(self.machines.items()) if name[0] == "m" and not machine.dead]

    async def moment(self) -> None:
        """Some time before the calm."""
        await anyio.sleep(self.rng.uniform(0, max(0.0, self.settings.calm - anyio.current_time())))

    async def calm_down(self) -> None:
        """From the calm on, nothing goes wrong any more."""
        await anyio.sleep(self.settings.calm)
        for machine in self.machines.values():
            machine.store.calm()
            machine.cable.overloaded = False


async def populate(fleet: Fleet, number: int) -> None:
    """Adds its paths, a part of which others add as well, until it is told that they are there."""
    if number:
        await fleet.moment()
    settings = fleet.settings
    shared = settings.paths // 4
    paths = [f"{'all' if i < shared else number}-{i}" for i in range(settings.paths)]
    machine = fleet.machine(f"p{number}")
    async with machine.store:
        while True:
            try:
                await machine.queue.populate_queue(paths, settings.per_group)
            except (OutcomeUnknown, StoreError):
                await machine.runtime.sleep(1.0)
                continue
            fleet.audit.populated(paths)
            fleet.populating -= 1
            return


async def place(fleet: Fleet, number: int) -> None:
    """A place for a machine: one that dies is replaced; one whose store fails it is started again."""
    life = 0
    while True:
        # Until then somebody may add groups, or have some run again.
        settled = not (fleet.populating or fleet.intervening)
        machine = fleet.machine(f"m{number}.{life}")
        life += 1
        if await _work(fleet, machine) and settled:
            return
        await anyio.sleep(1.0)


async def _work(fleet: Fleet, machine: Machine) -> bool:
    """Whether it left because all was done or dead."""
    with machine.scope:
        try:
            async with machine.store:
                await machine.queue.run(
                    _handler(fleet, machine),
                    workers=fleet.settings.workers,
                    per="path" if fleet.settings.per_path else "group",
                    handle_signals=False,
                )
        except StoreError:
            return False
    return not machine.dead


def _handler(fleet: Fleet, machine: Machine) -> Callable[..., object]:
    audit, settings = fleet.audit, fleet.settings

    async def work() -> None:
        long = machine.rng.random() < 0.02
        await machine.runtime.sleep(
            2.5 * settings.options.lease_ttl if long else machine.rng.expovariate(1 / settings.work)
        )
        match machine.rng.random():
            case chance if chance < 0.02:
                raise ValueError("a failure of the handler's own")
            case chance if chance < 0.023:
                raise PermanentError("for ever")
            case chance if chance < 0.03:
                raise RetryLater(5.0)
        fleet.ended += 1

    async def group(item: WorkItem) -> str:
        audit.begins(machine.name, item.hash, item.epoch)
        try:
            await work()
        finally:
            audit.ends(machine.name, item.hash)
        return machine.name

    async def path(name: str) -> str:
        audit.path_begins(machine.name, name)
        try:
            await work()
        finally:
            audit.path_ends(machine.name, name)
        return name

    return path if settings.per_path else group


async def killer(fleet: Fleet) -> None:
    """Kills a machine now and then."""
    for _ in range(fleet.settings.kills):
        await fleet.moment()
        if victims := fleet.workers():
            fleet.rng.choice(victims).kill()
            fleet.kills += 1


async def pauser(fleet: Fleet) -> None:
    """Has machines stand still, for less or for longer than a lease lives."""
    for _ in range(fleet.settings.pauses):
        await fleet.moment()
        if victims := fleet.workers():
            await fleet.rng.choice(victims).stand_still(fleet.rng.uniform(0.2, 3) * fleet.settings.options.lease_ttl)


async def clockmaker(fleet: Fleet) -> None:
    """Sets machines' wall clocks."""
    for _ in range(fleet.settings.jumps):
        await fleet.moment()
        if victims := fleet.workers():
            fleet.rng.choice(victims).runtime.skew += fleet.rng.choice([-3600.0, -1.0, 30.0, 86_400.0])


async def operator(fleet: Fleet) -> None:
    """A person who retries, breaks leases, sweeps, looks, and has finished groups run again."""
    machine = fleet.machine("operator")
    fleet.audit.operators.add(machine.name)
    async with machine.store:
        for _ in range(fleet.settings.interventions):
            await fleet.moment()
            groups = [group for group, _ in fleet.audit.index()] or ["0" * 40]
            group = fleet.rng.choice(groups)
            try:
                match fleet.rng.randrange(5):
                    case 0:
                        await machine.queue.retry()
                    case 1:
                        await machine.queue.break_lease(group)
                    case 2:
                        await machine.queue.sweep()
                    case 3:
                        await machine.queue.status()
                    case _:
                        await machine.queue.reset([group])
            except (OutcomeUnknown, StoreError, ConfigurationError, LeaseLost):
                continue
    fleet.intervening = False


async def stranger(fleet: Fleet, number: int) -> None:
    """A worker as olmOCR's: looks, then writes without conditions, then deletes its lock; it may die at work."""
    machine = fleet.machine(f"olmocr{number}")
    fleet.audit.strangers.add(machine.name)
    while anyio.current_time() < fleet.settings.calm:
        await machine.runtime.sleep(fleet.rng.uniform(0.5, 20))
        group = await _free(machine)
        if group is None:
            continue
        with suppress(StoreError):
            await machine.cable.put(keys.lock(group), b"", OVERWRITE)
            await machine.runtime.sleep(fleet.rng.expovariate(1 / fleet.settings.work))
            if fleet.rng.random() < 0.1:
                return  # dead, and its lock stays
            await machine.cable.put(keys.flag(group), b"", OVERWRITE)
            await machine.cable.delete(keys.lock(group))


async def _free(machine: Machine) -> str | None:
    try:
        index = Index.decode((await machine.cable.get(keys.INDEX)).data)
        groups = [group for group, _ in index]
        machine.rng.shuffle(groups)
        for group in groups[:5]:
            if await _is_free(machine, group):
                return group
    except (NotFound, StoreError):
        pass
    return None


async def _is_free(machine: Machine, group: str) -> bool:
    for key in (keys.flag(group), keys.lock(group)):
        try:
            seen = await machine.cable.head(key)
        except NotFound:
            continue
        if keys.parse_flag(key) or seen.date - seen.modified <= machine.settings.options.olmocr_lock_timeout:
            return False
    return True
