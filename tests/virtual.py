"""Virtual time: a test's coroutine on trio's mock clock, which jumps as soon as everybody waits."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import trio
import trio.testing


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test in virtual time: it may wait for hours, and takes none."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(functools.partial(test, *args, **kwargs), clock=clock)

    return run
