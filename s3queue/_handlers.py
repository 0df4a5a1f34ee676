"""User handlers, made uniform: coroutine functions run on the event loop, plain functions in threads."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread

from s3queue._errors import ConfigurationError, HandlerError
from s3queue._model import WorkItem

__all__ = ["Handler", "Runner", "current_item", "whole_number"]

#: Takes a `WorkItem` (per group) or a path (per path); returns JSON values, or None.
Handler = Callable[[Any], Any]

_current: ContextVar[WorkItem] = ContextVar("s3queue_item")


def current_item() -> WorkItem:
    """The group that the calling handler works on, with its epoch (the fencing token); also in a handler's thread.

    Raises `LookupError` outside a handler.
    """
    return _current.get()


class Runner:
    """Runs one handler, so that every way in which it can fail comes out as an ordinary exception."""

    def __init__(self, handler: Handler, *, workers: int, timeout: float | None) -> None:
        if not callable(handler):
            raise ConfigurationError(f"a handler must be a function of one argument, not {handler!r}")
        if timeout is not None and not timeout > 0:
            raise ConfigurationError(f"timeout must be more than 0 seconds, not {timeout!r}")
        self.name = _name(handler)
        self._handler = handler
        self._timeout = timeout
        self._threads = anyio.CapacityLimiter(whole_number("workers", workers))
        self._is_async = _is_async(handler)

    def resize(self, workers: int) -> None:
        """So many threads at a time from now on."""
        self._threads.total_tokens = workers

    async def __call__(self, item: WorkItem, argument: Any) -> Any:
        """The handler's result for `argument`, a part of `item` or `item` itself.

        Raises what it raised, and `HandlerError` if it took too long, was cancelled by itself, or called `sys.exit`.
        A thread cannot be stopped: on cancellation it runs on, and its result is dropped.
        """
        _current.set(item)
        if self._timeout is None:
            return await self._call(argument)
        with anyio.move_on_after(self._timeout):
            return await self._call(argument)
        raise HandlerError(f"{self.name} ran longer than its timeout of {self._timeout:g} s")

    async def _call(self, argument: Any) -> Any:
        try:
            if self._is_async:
                return await self._handler(argument)
            # In a list: trio lets no thread return what can be awaited, as a lambda round a coroutine function does.
            (result,) = await anyio.to_thread.run_sync(
                lambda: [self._handler(argument)], limiter=self._threads, abandon_on_cancel=True
            )
            return await result if isinstance(result, Awaitable) else result
        except SystemExit as error:
            raise HandlerError(f"{self.name} called sys.exit({error.code!r})") from error
        except anyio.get_cancelled_exc_class():
            # Ours to pass on only if it is we who are being cancelled; a handler may also have cancelled itself.
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise HandlerError(f"{self.name} was cancelled from within") from None


def whole_number(name: str, value: int) -> int:
    """`value`, if it is 1 or more. Raises `ConfigurationError`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(f"{name} must be a whole number, 1 or more, not {value!r}")
    return value


def _unwrapped(handler: Handler) -> Handler:
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler


def _is_async(handler: Handler) -> bool:
    inner = _unwrapped(handler)
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004 - asks for the method itself


def _name(handler: Handler) -> str:
    inner = _unwrapped(handler)
    name = getattr(inner, "__qualname__", None) or type(inner).__qualname__
    return f"{getattr(inner, '__module__', '?')}:{name}"
