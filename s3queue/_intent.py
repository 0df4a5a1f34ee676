"""One conditional write, carried to an answer: won, lost, or unknown. Every compare-and-swap is one of these.

An intent is one set of bytes for one key, under one condition, recognisable as ours when read back (records bear a
fresh token; the index is recognised whole). What an answer means:

=====================  ====================================================================================
200                    won
412, 304               nothing yet: something below may have sent the request twice, so that our own write
                       refused our resend. Read the object.
409                    another write was in flight; some stores say so to the loser of a race. Read the object.
404 to a replace       the object is gone: lost
no answer, 5xx         the write may have been applied. Read the object.
anything else          raised: it is not about this object (no permission, no such feature, …)
=====================  ====================================================================================

What a read shows: our bytes: won, with the version of that read. Somebody else's: lost. What was there before (or still
nothing): unknown; the *same* intent is sent again, until time is up. An unknown intent may still be applied later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import anyio

from s3queue._errors import NotFound, PreconditionFailed, StoreError, Throttled, Unanswered, WriteConflict
from s3queue._runtime import Runtime
from s3queue.stores._port import Body, Create, Replace, Store, Version

__all__ = ["Intent", "Lost", "Outcome", "Unknown", "Won", "settle"]

_RESEND_FIRST = 0.05
_RESEND_MOST = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """A conditional write that may be sent any number of times and has one effect."""

    key: str
    data: bytes
    mode: Create | Replace
    #: Whether an object with these bytes is this intent's work.
    ours: Callable[[bytes], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Won:
    """The write was applied, by us, once."""

    version: Version
    #: The runtime's monotonic clock before the first request that can have applied it.
    sent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Somebody else's write stands; `current` is what it left, None if there is nothing now."""

    current: Body | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """Time was up before it was known. The write may stand already, or be applied later, or never."""

    cause: StoreError


Outcome = Won | Lost | Unknown


async def settle(
    store: Store, runtime: Runtime, intent: Intent, *, until: float, since: float | None = None
) -> Outcome:
    """Send `intent`, and read back and send again as needed, until it is won or lost or the clock says `until`.

    `since` is when this very intent was first sent, if it is tried again: it may have been applied then.
    Raises the store's errors that are not about this object (`AccessDenied`, `Unsupported`, …).
    """
    first_sent = runtime.monotonic() if since is None else since
    cause: StoreError | None = None
    attempt = 0
    with anyio.CancelScope(deadline=until):
        while True:
            sent = runtime.monotonic()
            try:
                written = await store.put(intent.key, intent.data, intent.mode)
            except (PreconditionFailed, WriteConflict, Unanswered, Throttled, NotFound) as error:
                cause = error
            else:
                # An earlier send cannot have been applied if this one met its condition.
                return Won(version=written.version, sent=sent)
            verdict = await _read_back(store, intent, first_sent)
            if verdict is not None:
                return verdict
            pause = min(_RESEND_MOST, _RESEND_FIRST * 2**attempt)
            await runtime.sleep(pause * (0.5 + runtime.rng.random()))
            attempt += 1
    return Unknown(cause=cause or Unanswered(f"no answer to a PUT of {intent.key!r} in time"))


async def _read_back(store: Store, intent: Intent, first_sent: float) -> Won | Lost | None:
    try:
        current = await store.get(intent.key)
    except NotFound:
        return None if isinstance(intent.mode, Create) else Lost(current=None)
    except (Unanswered, Throttled, WriteConflict):
        return None
    if intent.ours(current.data):
        return Won(version=current.version, sent=first_sent)
    if isinstance(intent.mode, Replace) and current.version == intent.mode.version:
        return None
    return Lost(current=current)
