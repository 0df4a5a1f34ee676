"""What happens, told as it happens: stable names with plain fields, to the log and to whoever observes.

An observer is a plain function of one `Event`. It runs on the event loop, so it must be quick; an exception in it is
logged and goes no further.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["Event", "Events", "Observer"]

logger = logging.getLogger("s3queue")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened, such as ``lease.claimed``; `fields` hold numbers and strings, never a secret."""

    name: str
    """What happened, by a name that does not change between versions."""
    fields: Mapping[str, Any]
    """Its particulars, such as ``hash`` and ``epoch``; times are seconds."""

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.fields.items())])


Observer = Callable[[Event], None]
"""What is told of each event: a quick, plain function. What it raises is logged, and goes no further."""


class Events:
    """Hands events to the `s3queue` log (with `action` and the fields in `extra`) and to an observer."""

    def __init__(self, observer: Observer | None = None) -> None:
        self._observer = observer

    def emit(self, name: str, /, level: int = logging.DEBUG, **fields: Any) -> None:
        """Say that `name` happened."""
        event = Event(name, fields)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", event, extra={"action": name, "fields": fields})
        if self._observer is None:
            return
        try:
            self._observer(event)
        except Exception:  # an observer's fault must not cost a lease
            logger.exception("the observer failed on %s", name)
