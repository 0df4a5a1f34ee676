"""A store with faults on demand: what no real server does when asked to."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Self, TypeVar

from anyio.abc import TaskGroup

from s3queue._errors import ConfigurationError, StoreError, Throttled, Unanswered, WriteConflict
from s3queue._runtime import Random, Runtime
from s3queue._tasks import task_group
from s3queue.stores._port import Body, Deleted, Head, Page, PutMode, Store, Written

__all__ = ["Fault", "FaultyStore"]

T = TypeVar("T")

_VERBS = ("get", "head", "put", "delete", "delete_many", "list")
_READS = ("get", "head", "list")


class Fault(Enum):
    """What happens to a request."""

    FAILS_BEFORE = "fails before"
    """It never reaches the store; the caller gets no answer, or the error that the script names."""
    APPLIED_THEN_ERROR = "applied, then error"
    """The store does it; the caller gets no answer."""
    DELAYED = "delayed"
    """It is done, late."""
    APPLIED_LATER = "applied later"
    """The caller gets no answer, and the store does it some time afterwards."""
    THROTTLED = "throttled"
    """Refused: too many requests."""
    CONFLICT = "conflict"
    """Refused: another write was in flight."""

    def befalls(self, verb: str) -> bool:
        """Whether a store may do this to that kind of request."""
        if self is Fault.CONFLICT:
            return verb == "put"
        return self is not Fault.APPLIED_LATER or verb not in _READS


@dataclass(slots=True)
class _Rule:
    verb: str
    key: re.Pattern[str]
    fault: Fault
    seconds: float
    error: type[StoreError]
    left: int


@dataclass(frozen=True, slots=True)
class _Chaos:
    rng: Random
    rate: float
    faults: Mapping[str, Sequence[Fault]]
    seconds: float


#: Named out here: inside the class, `list` is the store's operation.
_Rules = list[_Rule]
_Log = list[tuple[str, str, Fault | None]]


class FaultyStore:
    """A store around another one that misbehaves as told. Use it as ``async with``: it owns the late writes."""

    def __init__(self, store: Store, runtime: Runtime) -> None:
        self._store = store
        self._runtime = runtime
        self._rules: _Rules = []
        self._chaos: _Chaos | None = None
        self._tasks: TaskGroup | None = None
        self._stack = AsyncExitStack()
        #: (verb, key, fault or None) of every request so far.
        self.log: _Log = []

    async def __aenter__(self) -> Self:
        self._tasks = await self._stack.enter_async_context(task_group())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Wait for the late writes; if the block failed, they never land."""
        return await self._stack.__aexit__(kind, error, trace)

    def script(
        self,
        verb: str,
        key: str,
        fault: Fault,
        *,
        times: int = 1,
        seconds: float = 1.0,
        error: type[StoreError] = Unanswered,
    ) -> None:
        """The next `times` requests of `verb` for keys that match the regular expression `key` have this fault.

        `seconds` is how much later `DELAYED` and `APPLIED_LATER` act, `error` what `FAILS_BEFORE` raises. Scripts are
        used up in the order they were given.

        Raises `ConfigurationError` for a verb that there is not, or that cannot have this fault.
        """
        if verb not in _VERBS or not fault.befalls(verb):
            raise ConfigurationError(f"no store does this to a {verb!r}: {fault.value}")
        self._rules.append(_Rule(verb, re.compile(key), fault, seconds, error, times))

    def chaos(
        self,
        rng: Random,
        rate: float,
        faults: Sequence[Fault] = tuple(Fault),
        *,
        verbs: Sequence[str] = _VERBS,
        seconds: float = 1.0,
    ) -> None:
        """From now on each request of `verbs` has, with probability `rate` (0 to 1), one of those `faults` that it can
        have; `seconds` is how much later `DELAYED` and `APPLIED_LATER` act."""
        possible = {verb: [fault for fault in faults if fault.befalls(verb)] for verb in verbs}
        self._chaos = _Chaos(rng, rate, possible, seconds)

    def calm(self) -> None:
        """No more faults."""
        self._rules.clear()
        self._chaos = None

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def lists_in_order(self) -> bool:
        return self._store.lists_in_order

    async def get(self, key: str) -> Body:
        return await self._do("get", key, lambda: self._store.get(key))

    async def head(self, key: str) -> Head:
        return await self._do("head", key, lambda: self._store.head(key))

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        return await self._do("put", key, lambda: self._store.put(key, data, mode))

    async def delete(self, key: str) -> Deleted:
        return await self._do("delete", key, lambda: self._store.delete(key))

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        return await self._do("delete_many", keys[0] if keys else "", lambda: self._store.delete_many(keys))

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        return await self._do(
            "list", prefix, lambda: self._store.list(prefix, start_after=start_after, resume=resume, limit=limit)
        )

    def _next_fault(self, verb: str, key: str) -> tuple[Fault | None, float, type[StoreError]]:
        for rule in self._rules:
            if rule.left and rule.verb == verb and rule.key.search(key):
                rule.left -= 1
                return rule.fault, rule.seconds, rule.error
        chaos = self._chaos
        faults = chaos.faults.get(verb) if chaos is not None else None
        if chaos is not None and faults and chaos.rng.random() < chaos.rate:
            return chaos.rng.choice(faults), chaos.seconds, Unanswered
        return None, 0.0, Unanswered

    async def _do(self, verb: str, key: str, request: Callable[[], Awaitable[T]]) -> T:
        fault, seconds, error = self._next_fault(verb, key)
        self.log.append((verb, key, fault))
        message = f"{self.name}: {verb} of {key!r}: {fault.value if fault else ''}"
        match fault:
            case Fault.FAILS_BEFORE:
                raise error(message)
            case Fault.APPLIED_THEN_ERROR:
                await request()
                raise Unanswered(message)
            case Fault.APPLIED_LATER:
                self._later(request, seconds)
                raise Unanswered(message)
            case Fault.THROTTLED:
                raise Throttled(message)
            case Fault.CONFLICT:
                raise WriteConflict(message)
            case Fault.DELAYED:
                await self._runtime.sleep(seconds)
        return await request()

    def _later(self, request: Callable[[], Awaitable[T]], seconds: float) -> None:
        if self._tasks is None:
            raise ConfigurationError("enter the FaultyStore first (async with): late writes need an owner")
        self._tasks.start_soon(self._apply, request, seconds)

    async def _apply(self, request: Callable[[], Awaitable[T]], seconds: float) -> None:
        await self._runtime.sleep(seconds)
        try:
            await request()
        except StoreError:
            return  # refused after all: nobody waits for the answer
