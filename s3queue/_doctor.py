"""The start-up check spelled out for people: what works, how fast, at what price, and what to do about the rest.

It works on scratch keys, which it removes, and reads the index; the workspace's groups are left alone.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from s3queue import _keys as keys
from s3queue._catalogue import Catalogue
from s3queue._errors import (
    AccessDenied,
    CredentialsExpired,
    DamagedWorkspace,
    NotFound,
    S3QueueError,
    StoreError,
    Throttled,
    Unanswered,
    WriteConflict,
)
from s3queue._events import Events
from s3queue._options import QueueOptions
from s3queue._prices import Prices, prices_of
from s3queue._runtime import Runtime
from s3queue._store_check import CHECKS, Check, Scratch, access_remedy, examine, name_of, scratch_keys
from s3queue._tasks import task_group
from s3queue.stores._port import CREATE, OVERWRITE, Page, Store
from s3queue.stores._retry import RetryingStore

__all__ = ["Diagnosis", "Verdict", "diagnose"]

Verdict = Literal["ok", "note", "failed", "unanswered", "skipped"]

#: Requests of each verb that are timed.
_SAMPLES = 5
#: How long requests are sent as fast as they go, and how many at most.
_RATE_FOR = 2.0
_RATE_MOST = 20_000
#: A clock that is further off is worth a word; SigV4 refuses requests from 900 s on.
_CLOCK_OFF = 60.0
#: A request that is waited for no longer: too short for `RetryPolicy` to send one again.
_ONCE = 1e-3
#: What a million groups take: a claim and a completion each, and a page of flags and one of locks for every thousand.
_MILLION = {"put": 2_000_000, "list": 2_000}

_PERMISSIONS = {"write": "s3:PutObject", "read": "s3:GetObject", "list": "s3:ListBucket", "delete": "s3:DeleteObject"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One line of a doctor's report."""

    #: What was looked at, in words that do not change between versions.
    name: str
    #: ``note`` is no fault; ``unanswered``: the store gave no usable answer; ``skipped``: rests on another line.
    verdict: Verdict
    #: What was found, in a line, and what can be done about it ("" if nothing need be done).
    found: str
    remedy: str = ""
    #: How long it took, in seconds; of single requests the median.
    seconds: float | None = None
    #: The numbers in `found`: seconds, requests a second, dollars.
    values: Mapping[str, float] = field(default_factory=dict)


Tell = Callable[[Diagnosis], None]


async def diagnose(
    store: Store, options: QueueOptions, runtime: Runtime, events: Events, tell: Tell
) -> list[Diagnosis]:
    """Look at everything, telling each line as soon as it is known; all lines. Raises nothing of the store's."""
    doctor = _Doctor(store, options, runtime, events, tell)
    await doctor.examine()
    return doctor.lines


class _Doctor:
    def __init__(self, store: Store, options: QueueOptions, runtime: Runtime, events: Events, tell: Tell) -> None:
        def within(retry_for: float) -> RetryingStore:
            return RetryingStore(store, runtime, timeout=options.request_timeout, retry_for=retry_for, events=events)

        self._store = within(options.retry_for)
        self._impatient = within(_ONCE)
        self._options = options
        self._runtime = runtime
        self._events = events
        self._tell = tell
        self._on_s3 = store.name.startswith("s3://")
        #: What is known of the store's clock less this machine's: it lies between these.
        self._clock = (float("-inf"), float("inf"))
        self.lines: list[Diagnosis] = []

    async def examine(self) -> None:
        if not await self._answers():
            return
        async with scratch_keys(self._store, self._runtime, self._events) as scratch:
            allowed = await self._permissions(scratch)
            self._say_clock()
            for check in CHECKS:
                await self._check(check, scratch, allowed)
            await self._rate(scratch, allowed)
            await self._clean_up(scratch)
        await self._index()
        self._say_cost()

    def _say(self, name: str, verdict: Verdict, found: str, **more: Any) -> None:
        line = Diagnosis(name=name, verdict=verdict, found=found, **more)
        self.lines.append(line)
        self._tell(line)

    def _say_error(self, name: str, error: S3QueueError) -> None:
        """One that no step has a word for: its message says what to do."""
        no_answer = isinstance(error, (Unanswered, Throttled))
        remedy = "check the endpoint, the network and the store's health, then try again" if no_answer else ""
        self._say(name, "unanswered" if no_answer else "failed", str(error), remedy=remedy)

    async def _answers(self) -> bool:
        began = self._runtime.thread_time()
        try:
            await self._store.list(keys.SCRATCH, limit=1)
        except AccessDenied:
            pass  # an answer all the same: the permissions are looked at one by one
        except S3QueueError as error:
            self._say_error("answer", error)
            return False
        took = self._runtime.thread_time() - began
        self._say("answer", "ok", f"{self._store.name} answers", seconds=took)
        return True

    # Permissions, latencies and the clock, by single requests.

    async def _permissions(self, scratch: Scratch) -> bool:
        """Whether everything is allowed that s3queue does."""
        key, data = scratch.key("doctor"), scratch.body()

        async def list_page() -> Page:
            return await self._store.list(scratch.prefix, limit=10)

        steps: Mapping[str, Callable[[], Awaitable[Any]]] = {
            "write": lambda: self._store.put(key, data, OVERWRITE),
            "read": lambda: self._store.get(key),
            "list": list_page,
            "delete": lambda: self._store.delete(key),
        }
        return all([await self._permission(name, request) for name, request in steps.items()])

    async def _permission(self, name: str, request: Callable[[], Awaitable[Any]]) -> bool:
        try:
            took = statistics.median([await self._timed(request) for _ in range(_SAMPLES)])
        except AccessDenied as error:
            self._say(
                name,
                "failed",
                str(error),
                remedy=access_remedy(self._store, _PERMISSIONS[name], writes=name == "write"),
            )
            return False
        except NotFound as error:  # of what could not be written: whoever may not read is told so
            self._say(name, "skipped", str(error))
            return False
        except S3QueueError as error:
            self._say_error(name, error)
            return False
        self._say(name, "ok", f"{_PERMISSIONS[name]} is allowed" if self._on_s3 else "is allowed", seconds=took)
        return True

    async def _timed(self, request: Callable[[], Awaitable[Any]]) -> float:
        # The event loop's own clock may tick in milliseconds (uvloop's does).
        began, sent = self._runtime.thread_time(), self._runtime.wall()
        answer = await request()
        took = self._runtime.thread_time() - began
        # Dates may be cut to whole seconds: the store's clock was between `date` and `date` + 1 when it answered, some
        # time between our sending and our receiving. Each answer narrows it down.
        low, high = self._clock
        self._clock = max(low, answer.date - sent - took), min(high, answer.date + 1 - sent)
        return took

    def _say_clock(self) -> None:
        low, high = self._clock
        if low == float("-inf"):
            self._say("clock", "skipped", "no request of the above succeeded")
            return
        off, slack = (low + high) / 2, abs(high - low) / 2
        found = f"the store's clock is {off:+.1f} s from this machine's (give or take {slack:.1f} s)"
        values = {"offset": round(off, 3), "slack": round(slack, 3)}
        if abs(off) <= _CLOCK_OFF:
            self._say("clock", "ok", found, values=values)
            return
        remedy = "set this machine's clock: leases do not use it, but signatures are refused from 15 minutes on"
        self._say("clock", "note", found, remedy=remedy, values=values)

    # What the protocol needs.

    async def _check(self, check: Check, scratch: Scratch, allowed: bool) -> None:
        name = name_of(check)
        if not allowed:
            self._say(name, "skipped", "needs the permissions above")
            return
        began = self._runtime.thread_time()
        try:
            problem = await examine(check, scratch)
        except S3QueueError as error:
            self._say_error(name, error)
            return
        took = self._runtime.thread_time() - began
        if problem is None:
            self._say(name, "ok", _PROVED[name], seconds=took)
        else:
            self._say(name, "failed", problem.what, remedy=problem.remedy, seconds=took)

    async def _rate(self, scratch: Scratch, allowed: bool) -> None:
        """Conditional creates of new objects, as fast as they go on all connections."""
        if not allowed:
            self._say("request rate", "skipped", "needs the permissions above")
            return
        latencies: list[float] = []
        failed: Counter[str] = Counter()
        names = iter(range(_RATE_MOST))
        began = self._runtime.monotonic()

        async def send() -> None:
            for number in names:
                if self._runtime.monotonic() - began >= _RATE_FOR:
                    return
                sent = self._runtime.thread_time()
                try:
                    await self._impatient.put(scratch.key(f"rate-{number}"), scratch.body(), CREATE)
                except (Throttled, Unanswered, WriteConflict) as error:
                    failed[type(error).__name__] += 1
                    continue
                latencies.append(self._runtime.thread_time() - sent)

        try:
            async with task_group() as tasks:
                for _ in range(int(self._options.connections)):
                    tasks.start_soon(send)
        except StoreError as error:
            self._say_error("request rate", error)
            return
        self._say_rate(latencies, failed, self._runtime.monotonic() - began)

    def _say_rate(self, latencies: list[float], failed: Counter[str], seconds: float) -> None:
        if len(latencies) < 2:
            self._say("request rate", "unanswered", f"of {failed.total()} requests none succeeded", remedy=_SLOW)
            return
        rate = len(latencies) / max(seconds, 1e-9)
        cuts = statistics.quantiles(latencies, n=100, method="inclusive")
        found = (
            f"{rate:.0f} conditional writes/s on {self._options.connections} connections (median {cuts[49] * 1000:.1f} "
            f"ms, 99th percentile {cuts[98] * 1000:.1f} ms): up to {rate / 2:.0f} groups/s by one process here"
        )
        values = {"rate": round(rate, 1), "p50": cuts[49], "p99": cuts[98], **failed}
        if failed:
            told = ", ".join(f"{count} {name}" for name, count in failed.items())
            self._say("request rate", "note", f"{found}; {told}", remedy=_SLOW, seconds=seconds, values=values)
        else:
            self._say("request rate", "ok", found, seconds=seconds, values=values)

    async def _clean_up(self, scratch: Scratch) -> None:
        try:
            await scratch.clean_up()
        except StoreError as error:
            remedy = f"delete what is below {scratch.prefix!r} in the workspace"
            self._say("clean up", "failed", f"scratch keys could not be removed: {error}", remedy=remedy)
        scratch.used.clear()

    # The workspace, and what it costs.

    async def _index(self) -> None:
        began = self._runtime.thread_time()
        try:
            index = (await Catalogue(self._store, self._runtime, self._events).load()).index
        except DamagedWorkspace as error:
            self._say("index", "failed", str(error), remedy="restore it from a copy, or populate another workspace")
            return
        except (StoreError, CredentialsExpired) as error:
            self._say_error("index", error)
            return
        took = self._runtime.thread_time() - began
        if not len(index):
            self._say("index", "note", "the workspace has no groups yet", remedy="`s3queue populate` adds some")
            return
        self._say("index", "ok", f"{len(index)} groups", seconds=took, values={"groups": len(index)})

    def _say_cost(self) -> None:
        prices = prices_of(self._store.name)
        if prices is None:
            self._say("cost", "ok", "a folder's requests cost nothing", values={"per_million_groups": 0.0})
            return
        self._say("cost", "ok", self._cost(prices), values={"per_million_groups": prices.cost(_MILLION)})

    def _cost(self, prices: Prices) -> str:
        renewals, every = prices.cost({"put": 1_000_000}), self._options.lease_ttl / 3
        return (
            f"${prices.cost(_MILLION):.2f} per million groups (two PUTs each), ${renewals:.2f} per million renewals "
            f"(one for every {every:.0f} s that a group runs); {prices.name}, us-east-1"
        )


_SLOW = "workers slow down by themselves; ask for a higher limit, or use fewer connections, if this stays"

_PROVED = {
    "read after write": "what was written is read at once, byte for byte",
    "conditional create": "If-None-Match: * is honoured",
    "conditional update": "If-Match is honoured, and refuses an old ETag",
    "update of a missing object": "If-Match on a missing object is refused",
    "listing": "shows writes and deletions at once",
    "racing creates": "of 16 racing creates one wins",
}
