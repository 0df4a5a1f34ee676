"""A store whose every operation waits until somebody decides what becomes of it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

import anyio

from s3queue import _keys as keys
from s3queue._errors import StoreError, Unanswered
from s3queue._runtime import Runtime
from s3queue.stores import MemoryBucket, MemoryStore
from s3queue.stores._port import Body, Deleted, Head, Page, PutMode, Written
from tests.audit import Audit

WORK = "work"
_READS = ("get", "head", "list")


class Fate(Enum):
    """What becomes of an operation; the value is how a schedule spells it, after ``process.number``."""

    ANSWERED = "."
    #: It never reaches the store; the caller gets no answer.
    FAILS = "!"
    #: The store does it; the caller gets no answer.
    UNANSWERED = "~"
    #: Something below the caller sends it twice; the caller gets the second answer.
    TWICE = "&"
    #: It is on its way for long: its caller may give up before the store does it.
    DELAYED = "d"
    #: The store does it now, and the answer is on its way for long.
    ANSWER_DELAYED = "D"
    #: The whole process stands still before this, while the clock goes on.
    STALLS = "z"
    #: The process dies; the operation was not done, or was.
    DIES_BEFORE = "x"
    DIES_AFTER = "X"
    #: The handler raises.
    RAISES = "e"

    def befalls(self, verb: str) -> bool:
        """Whether this is worth telling apart from the others for that kind of operation."""
        if verb == WORK:
            return self in (Fate.ANSWERED, Fate.STALLS, Fate.DIES_BEFORE, Fate.RAISES)
        if verb in _READS:
            return self in (Fate.ANSWERED, Fate.FAILS, Fate.DIES_BEFORE)
        return self is not Fate.RAISES


class Died(BaseException):
    """The process is no more: nothing of it goes on."""


@dataclass(frozen=True)
class Footprint:
    """Which operation this is, the same in every schedule, and what it may touch."""

    process: str
    number: int
    verb: str
    #: The key, or the first of them.
    about: str
    #: The groups that it may touch; None: any.
    groups: frozenset[str] | None

    def commutes(self, other: Footprint) -> bool:
        """Whether their order makes no difference to anybody."""
        if self.process == other.process:
            return False
        if self.verb in _READS and other.verb in _READS:
            return True
        return self.groups is not None and other.groups is not None and not self.groups & other.groups


@dataclass(eq=False)
class Operation:
    """One request of one process, or the work of its handler."""

    what: Footprint
    #: Does it, at once.
    act: Callable[[], Any]
    told: anyio.Event = field(default_factory=anyio.Event)
    value: Any = None
    error: BaseException | None = None
    applied: bool = False

    def apply(self) -> str:
        """Have the store do it; returns what it answered, in a word."""
        self.applied = True
        try:
            self.value, self.error = self.act(), None
        except StoreError as error:
            self.value, self.error = None, error
        return "ok" if self.error is None else type(self.error).__name__

    def leave_unanswered(self) -> None:
        """The caller hears nothing, and gives up."""
        self.tell(Unanswered(f"{self.what.verb} {self.what.about}: no answer"))

    def tell(self, error: BaseException | None = None) -> None:
        """Let the caller have the answer, or this error in its place."""
        self.error = error or self.error
        self.told.set()


class Gate:
    """Where operations wait."""

    def __init__(self) -> None:
        self.waiting: list[Operation] = []
        self.dead: set[str] = set()
        self._numbers: dict[str, int] = {}

    async def pass_through(
        self, process: str, verb: str, about: str, groups: frozenset[str] | None, act: Callable[[], Any]
    ) -> Any:
        """Wait for the decision, and live with it."""
        if process in self.dead:
            raise Died
        number = self._numbers.get(process, 0)
        self._numbers[process] = number + 1
        operation = Operation(Footprint(process, number, verb, about, groups), act)
        self.waiting.append(operation)
        try:
            await operation.told.wait()
        finally:
            # Given up before it was sent: it is nobody's any more. What is on its way is not in here.
            if operation in self.waiting:
                self.waiting.remove(operation)
        if operation.error is not None:
            raise operation.error
        return operation.value

    def kill(self, process: str) -> None:
        """Whatever this process waits for, it gets no more."""
        self.dead.add(process)
        for operation in [operation for operation in self.waiting if operation.what.process == process]:
            self.waiting.remove(operation)
            operation.tell(Died())


class GatedStore:
    """One process's store: `MemoryStore`, operation by operation. Its node's clock may be off by `skew` seconds."""

    name = "gated"
    lists_in_order = True

    def __init__(self, gate: Gate, process: str, runtime: Runtime, audit: Audit, skew: float = 0.0) -> None:
        self._gate = gate
        self._process = process
        self._audit = audit
        self._store = _Instant(runtime, audit.view(process), skew)

    async def get(self, key: str) -> Body:
        return cast("Body", await self._pass("get", [key], lambda: self._store.get(key)))

    async def head(self, key: str) -> Head:
        return cast("Head", await self._pass("head", [key], lambda: self._store.head(key)))

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        group = keys.parse_flag(key)
        if group is not None:
            self._audit.sends_flag(self._process, group)
        return cast("Written", await self._pass("put", [key], lambda: self._store.put(key, data, mode)))

    async def delete(self, key: str) -> Deleted:
        return cast("Deleted", await self._pass("delete", [key], lambda: self._store.delete(key)))

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        return cast("Deleted", await self._pass("delete_many", keys, lambda: self._store.delete_many(keys)))

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        def listing() -> Coroutine[Any, Any, Page]:
            return self._store.list(prefix, start_after=start_after, resume=resume, limit=limit)

        return cast("Page", await self._pass("list", [prefix], listing))

    async def work(self, group: str) -> None:
        """The work of a handler: an operation too, so that it lasts as long as the explorer wants."""
        await self._gate.pass_through(self._process, WORK, group[:6], frozenset([group]), lambda: None)

    async def _pass(self, verb: str, about: Sequence[str], act: Callable[[], Coroutine[Any, Any, object]]) -> object:
        groups = None if verb == "list" else frozenset(map(_group, about))
        return await self._gate.pass_through(self._process, verb, about[0], groups, lambda: _at_once(act()))


class _Instant(MemoryStore):
    """The memory store without its pause, so that the explorer can do an operation between two steps."""

    def __init__(self, runtime: Runtime, bucket: MemoryBucket, skew: float) -> None:
        super().__init__(runtime, bucket)
        self._skew = skew

    async def _begin(self, verb: str) -> float:
        self.requests[verb] += 1
        return float(1_790_000_000 + int(self._runtime.monotonic() + self._skew))


def _at_once(coroutine: Coroutine[Any, Any, object]) -> object:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the memory store waits for something")


def _group(key: str) -> str:
    failure, piece = keys.parse_failure(key), keys.parse_piece(key)
    found = failure[0] if failure else piece[0] if piece else None
    return keys.parse_lock(key) or keys.parse_flag(key) or found or key
