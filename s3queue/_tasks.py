"""Task groups whose errors come out as themselves, and computing that does not hold the event loop up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, TypeVarTuple, Unpack

import anyio
from anyio.abc import TaskGroup

__all__ = ["Change", "compute", "task_group"]

T = TypeVar("T")
Args = TypeVarTuple("Args")

#: Work on fewer bytes than this is done at once; a thread would take longer.
_INLINE = 256 * 1024


@asynccontextmanager
async def task_group() -> AsyncIterator[TaskGroup]:
    """An anyio task group that raises the first error of its tasks plainly: callers catch `StoreError`, not groups.

    The others are those of tasks that were being cancelled for it. An exit (`KeyboardInterrupt`) goes before any error.
    What the block itself raises comes out as it is, even if that is a group.
    """
    own: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            try:
                yield tasks
            except BaseException as error:
                own = error
                raise
    except BaseExceptionGroup as group:
        first = _first(group, own)
        raise first from first.__cause__


def _first(group: BaseExceptionGroup[BaseException], own: BaseException | None) -> BaseException:
    if isinstance(own, BaseExceptionGroup) and isinstance(group.exceptions[0], type(own)):
        return group.exceptions[0]  # itself, or a copy without what was cancelled
    exits, errors = group.split(lambda error: not isinstance(error, (Exception, BaseExceptionGroup)))
    found: BaseException = exits or errors or group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


class Change:
    """Wakes all who wait for something to change. Telling it costs nothing while nobody waits."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def tell(self) -> None:
        """Something changed."""
        if self._event is not None:
            self._event.set()
            self._event = None

    async def wait(self) -> None:
        """Until the next `tell`."""
        if self._event is None:
            self._event = anyio.Event()
        await self._event.wait()


async def compute(size: int, work: Callable[[Unpack[Args]], T], *args: *Args) -> T:
    """`work(*args)` on some `size` bytes: in a thread, if it is so much that the event loop would notice."""
    if size < _INLINE:
        return work(*args)
    return await anyio.to_thread.run_sync(work, *args)
