"""One process: its cable to the store, its node of the store, its clock; it may be killed, or stand still."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import TypeVar

import anyio

from s3queue import Backend, Event, WorkQueue
from s3queue import _keys as keys
from s3queue._errors import Throttled
from s3queue._runtime import SeededRuntime
from s3queue.stores import MemoryStore, PutMode
from s3queue.stores._port import Body, Deleted, Head, Page, Written
from s3queue.testing import FaultyStore
from tests.audit import Audit
from tests.simulation._settings import Settings

T = TypeVar("T")


class Machine:
    """See the module's text."""

    def __init__(self, name: str, settings: Settings, audit: Audit, rng: Random) -> None:
        self.name = name
        self.audit = audit
        self.settings = settings
        self.rng = rng
        self.runtime = SeededRuntime(rng.getrandbits(32), skew=rng.uniform(-1, 1) * settings.wall_skew)
        self.cable = _Cable(self)
        self.store = _Faulty(self)
        if settings.faults:
            self.store.chaos(Random(rng.getrandbits(32)), settings.faults, seconds=rng.choice([1.0, 6.0, 40.0]))
        self.queue = WorkQueue(
            Backend(self.store), options=settings.options, runtime=self.runtime, observer=self._observe
        )
        self.scope = anyio.CancelScope()
        self.dead = False
        #: Leases that it lost, or took from others.
        self.lost = 0
        self._awake = anyio.Event()
        self._awake.set()

    def kill(self) -> None:
        """Nothing that it still wants of the store reaches it, or comes back."""
        self.dead = True
        self.audit.dead.add(self.name)
        self.scope.cancel()

    async def stand_still(self, seconds: float) -> None:
        """No request goes out and no answer comes in, while its clocks go on."""
        self._awake = anyio.Event()
        await anyio.sleep(seconds)
        self._awake.set()

    async def awake(self) -> None:
        """Wait until it goes on: for ever if it is dead."""
        if self.dead:
            await anyio.sleep_forever()
        await self._awake.wait()

    def _observe(self, event: Event) -> None:
        fields = event.fields
        self.lost += event.name in ("lease.lost", "lease.taken_over")
        if event.name == "group.done":
            self.audit.completed(self.name, fields["hash"], fields["epoch"])
        elif event.name == "lease.lost" and "taken over" in fields["error"]:
            self.audit.lost(self.name, fields["hash"], fields["epoch"])


class _Faulty(FaultyStore):
    """Requests go wrong after they were sent, and the auditor hears of completions before: some come very late."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.cable, machine.runtime)
        self._machine = machine

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        group = keys.parse_flag(key)
        if group is not None and not self._machine.dead:
            self._machine.audit.sends_flag(self._machine.name, group)
        return await super().put(key, data, mode)


class _Cable:
    """What lies between a machine and the bucket."""

    lists_in_order = True

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._settings = machine.settings
        self._rng = Random(machine.rng.getrandbits(32))
        self._node = _Node(machine, Random(machine.rng.getrandbits(32)))
        self.overloaded = False
        self.name = machine.name

    @property
    def requests(self) -> int:
        return self._node.requests.total()

    async def get(self, key: str) -> Body:
        return await self._pass(lambda: self._node.get(key))

    async def head(self, key: str) -> Head:
        return await self._pass(lambda: self._node.head(key))

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        return await self._pass(lambda: self._node.put(key, data, mode))

    async def delete(self, key: str) -> Deleted:
        return await self._pass(lambda: self._node.delete(key))

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        return await self._pass(lambda: self._node.delete_many(keys))

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        await self._wait(self._settings.list_latency)
        return await self._pass(lambda: self._node.list(prefix, start_after=start_after, resume=resume, limit=limit))

    async def _pass(self, request: Callable[[], Awaitable[T]]) -> T:
        await self._wait(self._settings.latency)
        if self.overloaded and self._rng.random() < self._settings.throttled:
            raise Throttled("too many requests")
        answer = await request()
        await self._wait(self._settings.latency)
        return answer

    async def _wait(self, seconds: float) -> None:
        await self._machine.awake()
        await anyio.sleep(seconds * self._rng.uniform(0.2, 1.0))
        await self._machine.awake()


class _Node(MemoryStore):
    """A node of the store: its clock is a little off, another way each time, as there are many."""

    def __init__(self, machine: Machine, rng: Random) -> None:
        super().__init__(machine.runtime, machine.audit.view(machine.name))
        self._rng = rng
        self._skew = machine.settings.node_skew

    async def _begin(self, verb: str) -> float:
        await super()._begin(verb)
        return float(1_790_000_000 + int(self._runtime.monotonic() + 1 + self._rng.uniform(-1, 1) * self._skew))
