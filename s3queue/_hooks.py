"""What a user wants to be told of a queue's groups, by plain functions of the group.

An `Observer` hears of everything, in numbers and strings; these hear of four things, with the group and its paths.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from s3queue._errors import ConfigurationError
from s3queue._model import WorkItem

__all__ = ["Hooks"]

logger = logging.getLogger("s3queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Functions that a queue calls as its groups come and go: ``open_queue(workspace, hooks=Hooks(on_done=count))``.

    They are plain functions and run on the event loop, right after the store has acknowledged what they are told, so
    they must be quick: hand anything slow to a task of your own (``send_stream.send_nowait``). What a hook returns is
    dropped; what it raises is logged, and changes nothing for the queue. Each claim is followed by one of `on_done`,
    `on_failed` and `on_lease_lost`, or by none when the group is handed back unfinished. A crash tells nobody: for what
    must not be missed, read `WorkQueue.results()` and `failures()`.

    Raises `ConfigurationError` for what is not a plain function.
    """

    on_claim: Callable[[WorkItem], object] | None = None
    """A group is ours. It may still wait for a worker."""
    on_done: Callable[[WorkItem], object] | None = None
    """We completed a group."""
    on_failed: Callable[[WorkItem, BaseException | str, bool], object] | None = None
    """Our attempt at a group failed, with this error (an exception, or a line); True if the group is dead now."""
    on_lease_lost: Callable[[WorkItem, str], object] | None = None
    """The lease on a group is lost, for this reason; the work on it is stopped, and its result dropped."""

    def __post_init__(self) -> None:
        for field in fields(self):
            hook = getattr(self, field.name)
            if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
                raise ConfigurationError(f"Hooks.{field.name} must be a plain function, not {hook!r}")

    def call(self, name: str, item: Callable[[], WorkItem], *more: Any) -> None:
        """Call the hook of this name, if there is one, with `item()`. Raises nothing that is an error."""
        hook = getattr(self, name)
        if hook is None:
            return
        try:
            hook(item(), *more)
        except Exception:  # a hook's fault must not cost a lease
            logger.exception("the hook %s failed", name)
