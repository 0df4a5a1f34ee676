"""Deadlines, retries and pace of every request: one policy, one place.

A conditional write that may have been applied is never sent again here: whoever sent it settles it by reading
(`s3queue._intent`). Everything else is safe to repeat: reads, listings, deletions, plain overwrites.

================================  =========================  =====================
outcome                           conditional put            anything else
================================  =========================  =====================
throttled: nothing was applied    again                      again
no answer, or a conflict          up to the sender           again
credentials out of date           again (they are refreshed  again
                                  below)
anything else                     raised                     raised
================================  =========================  =====================
"""

from __future__ import annotations

import copy
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import anyio

from s3queue._errors import CredentialsExpired, StoreError, Throttled, Unanswered, WriteConflict
from s3queue._events import Events
from s3queue._runtime import Runtime
from s3queue.stores._pace import Pace
from s3queue.stores._port import Body, Deleted, Head, Overwrite, Page, PutMode, Replace, Store, Written

__all__ = ["RetryPolicy", "RetryingStore"]

T = TypeVar("T")

#: Seconds without any answer after which that is told.
_SILENCE_TOLD = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When to send a failed request again. Pure: times and chance come in as numbers."""

    #: Total seconds from the first attempt within which the last one may begin.
    retry_for: float
    #: Upper bounds of the first wait and of any wait, in seconds.
    first: float = 0.1
    most: float = 5.0

    def decide(
        self, error: StoreError, *, repeatable: bool, attempt: int, elapsed: float, chance: float
    ) -> float | None:
        """Seconds to wait before the next attempt; None to give up.

        `attempt` counts from 1; `chance` in [0, 1) spreads those apart who failed together (full jitter, but at least a
        tenth of the bound).
        """
        again = (
            (Throttled, CredentialsExpired, Unanswered, WriteConflict)
            if repeatable
            else (
                Throttled,
                CredentialsExpired,
            )
        )
        if not isinstance(error, again):
            return None
        bound = min(self.most, self.first * 2 ** min(attempt - 1, 20))
        wait = bound * (0.1 + 0.9 * chance)
        return wait if elapsed + wait < self.retry_for else None


@dataclass(slots=True)
class _Silence:
    """Since when no request was answered, if that is so, and whether that was told."""

    since: float | None = None
    told: bool = False


class RetryingStore:
    """A store whose every request has a deadline, and is sent again as `RetryPolicy` says."""

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        *,
        timeout: float,
        retry_for: float,
        events: Events,
        pace: Pace | None = None,
    ) -> None:
        self._store = store
        self._runtime = runtime
        self._timeout = timeout
        self._policy = RetryPolicy(retry_for=retry_for)
        self._events = events
        #: Requests sent so far, by verb, those of retries included.
        self.requests: Counter[str] = Counter()
        self.pace = pace or Pace()
        self._silence = _Silence()

    def with_timeout(self, timeout: float) -> RetryingStore:
        """The same store with another deadline for each request; all else is shared."""
        other = copy.copy(self)
        other._timeout = timeout  # noqa: SLF001 - another of this class
        return other

    @property
    def name(self) -> str:
        return self._store.name

    @property
    def lists_in_order(self) -> bool:
        return self._store.lists_in_order

    async def get(self, key: str) -> Body:
        return await self._send("get", key, lambda: self._store.get(key))

    async def head(self, key: str) -> Head:
        return await self._send("head", key, lambda: self._store.head(key))

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        # Who replaces an object holds it, and renews or ends that: it goes before those that begin something.
        return await self._send(
            "put",
            key,
            lambda: self._store.put(key, data, mode),
            repeatable=isinstance(mode, Overwrite),
            urgent=isinstance(mode, Replace),
        )

    async def delete(self, key: str) -> Deleted:
        return await self._send("delete", key, lambda: self._store.delete(key))

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        what = f"{len(keys)} keys"
        return await self._send(
            "delete_many", what, lambda: self._store.delete_many(keys), requests=-(-len(keys) // 1000)
        )

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        return await self._send(
            "list", prefix, lambda: self._store.list(prefix, start_after=start_after, resume=resume, limit=limit)
        )

    async def _send(
        self,
        verb: str,
        key: str,
        request: Callable[[], Awaitable[T]],
        *,
        repeatable: bool = True,
        urgent: bool = False,
        requests: int = 1,
    ) -> T:
        began = self._runtime.monotonic()
        attempt = 0
        while True:
            attempt += 1
            era = await self.pace.enter(urgent=urgent)
            self.requests[verb] += requests
            try:
                answer = await self._try(request, verb, key, requests, era)
            except StoreError as error:
                now = self._runtime.monotonic()
                elapsed = now - began
                self._note_silence(error, now)
                wait = self._policy.decide(
                    error, repeatable=repeatable, attempt=attempt, elapsed=elapsed, chance=self._runtime.rng.random()
                )
                if wait is None:
                    if attempt > 1:
                        error.args = (f"{error} (after {attempt} attempts in {elapsed:.1f} s)",)
                    raise
                self._events.emit("store.retry", logging.DEBUG, verb=verb, attempt=attempt, wait=wait, error=str(error))
            else:
                self._silence.since = None
                return answer
            await self._runtime.sleep(wait)

    def _note_silence(self, error: StoreError, now: float) -> None:
        """Every error but one is an answer. A silence is told once, before it has been taken for a hang."""
        silence = self._silence
        if not isinstance(error, Unanswered):
            silence.since = None
        elif silence.since is None:
            silence.since, silence.told = now, False
        elif not silence.told and now - silence.since >= _SILENCE_TOLD:
            silence.told = True
            self._events.emit("store.silent", logging.WARNING, seconds=round(now - silence.since, 1), error=str(error))

    async def _try(self, request: Callable[[], Awaitable[T]], verb: str, key: str, requests: int, era: int) -> T:
        """One try, timed if anybody wants to know."""
        if not self._events.wanted():
            return await self._once(request, verb, key, requests, era)
        began, outcome = self._runtime.monotonic(), "cancelled"
        try:
            answer = await self._once(request, verb, key, requests, era)
            outcome = "ok"
        except StoreError as error:
            outcome = type(error).__name__
            raise
        finally:
            seconds = self._runtime.monotonic() - began
            self._events.emit("store.request", verb=verb, outcome=outcome, seconds=seconds, count=requests)
        return answer

    async def _once(self, request: Callable[[], Awaitable[T]], verb: str, key: str, requests: int, era: int) -> T:
        seconds = self._timeout * max(1, requests)
        throttled = False
        try:
            with anyio.CancelScope(deadline=self._runtime.monotonic() + seconds):
                return await request()
        except TimeoutError:
            pass  # the store's own
        except Throttled:
            throttled = True
            raise
        finally:
            if self.pace.leave(era, throttled=throttled):
                self._events.emit("store.throttled", logging.INFO, verb=verb, window=self.pace.window)
        raise Unanswered(f"{self.name}: no answer to {verb} of {key!r} within {seconds:g} s")
