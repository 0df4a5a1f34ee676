"""Notices an event loop that does not run, and says what is holding it up."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import FrameType

from s3queue._events import Events
from s3queue._runtime import Runtime
from s3queue._tasks import task_group

__all__ = ["watch_loop"]


class _Pulse:
    """When the loop ran last; read by the watching thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.last = runtime.thread_time()

    async def beat(self, every: float) -> None:
        while True:
            self.last = self._runtime.thread_time()
            await self._runtime.sleep(every)


@asynccontextmanager
async def watch_loop(handler: str, warn_after: float, runtime: Runtime, events: Events) -> AsyncIterator[None]:
    """While inside, report once each time that the loop stood still for `warn_after` seconds (0: never).

    Leases cannot be renewed meanwhile, so CPU-bound work belongs into a plain function, which runs in a thread.
    """
    if not warn_after:
        yield
        return
    pulse, stop = _Pulse(runtime), threading.Event()
    thread = threading.Thread(
        target=_watch,
        args=(pulse, stop, threading.get_ident(), handler, warn_after, runtime, events),
        name="s3queue-watchdog",
        daemon=True,
    )
    thread.start()
    try:
        async with task_group() as tasks:
            tasks.start_soon(pulse.beat, warn_after / 4)
            yield
            tasks.cancel_scope.cancel()
    finally:
        stop.set()


def _watch(
    pulse: _Pulse, stop: threading.Event, loop: int, handler: str, warn_after: float, runtime: Runtime, events: Events
) -> None:
    reported = -1.0
    while not stop.wait(warn_after / 4):
        last = pulse.last
        stood = runtime.thread_time() - last
        if stood < warn_after or last == reported:
            continue
        reported = last
        where = _where(sys._current_frames().get(loop))  # noqa: SLF001 - the only way to see another thread's stack
        events.emit("loop.blocked", logging.WARNING, handler=handler, seconds=round(stood, 1), where=where)


def _where(frame: FrameType | None) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame is not None else "?"
