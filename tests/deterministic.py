"""Trio without chance: the same program makes the same run, task by task, and without a word in the log."""

from __future__ import annotations

import gc
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, TypeVar
from unittest import mock

import trio
import trio.testing
from trio._core import _run

from s3queue import _tasks

T = TypeVar("T")


class _InOrder(Random):
    """Lets tasks run in the order of their making: trio takes a batch from its end."""

    def shuffle(self, x: Any) -> None:
        x.reverse()


def run(main: Callable[[], Awaitable[T]], *, clock: trio.testing.MockClock, seed: int | None = None) -> T:
    """`trio.run` whose order of tasks is that of their making, or follows from `seed`."""
    with _few_collections(), _without_chance(_InOrder() if seed is None else Random(seed)):
        return trio.run(main, clock=clock)


@contextmanager
def _few_collections() -> Iterator[None]:
    """Looking for garbage is a fifth of a run that makes a world from scratch, and finds next to none."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@contextmanager
def _without_chance(order: Random) -> Iterator[None]:
    logger = logging.getLogger("s3queue")
    # Trio shuffles what is runnable, and has this switch for tools like ours. A thread's end would be chance as well.
    with (
        mock.patch.object(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", new=True),
        mock.patch.object(_run, "_r", order),
        mock.patch.object(logger, "disabled", new=True),
        mock.patch.object(_tasks, "_INLINE", 1 << 60),
    ):
        yield
