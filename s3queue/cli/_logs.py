"""The log on standard error as JSON: one object a line, with the events' stable names."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer

__all__ = ["JsonLines", "LogFormat", "LogHandler", "LogLevel", "Verbose", "level_of", "logging_to"]

LogFormat = Annotated[
    Literal["text", "json"], typer.Option("--log-format", help="json: an object a line on standard error.")
]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    typer.Option("--log-level", help="The least that is logged (default: warning).", show_default=False),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="The same as --log-level info.")]


def level_of(level: str | None, verbose: bool) -> int:
    """As a number of `logging`."""
    if level is not None:
        return logging.getLevelNamesMapping()[level.upper()]
    return logging.INFO if verbose else logging.WARNING


@contextmanager
def logging_to(handler: logging.Handler) -> Iterator[None]:
    """Give this package's log to `handler`, and to nobody else, inside the block."""
    logger = logging.getLogger("s3queue")
    before = logger.propagate, logger.level
    logger.addHandler(handler)
    logger.setLevel(handler.level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = before[0]
        logger.setLevel(before[1])


class LogHandler(logging.Handler):
    """Says each record; if nobody can be told any more (a pipe that broke), the work goes on all the same."""

    def emit(self, record: logging.LogRecord) -> None:
        """One record, as `logging` hands it over."""
        try:
            self.say(record)
        except Exception:  # as the handlers of `logging` do
            self.handleError(record)

    def say(self, record: logging.LogRecord) -> None:
        """Write it."""
        raise NotImplementedError


class JsonLines(LogHandler):
    """Writes `time` (ISO 8601, UTC), `level`, `pid` and `event`, and the event's own fields beside them."""

    def say(self, record: logging.LogRecord) -> None:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "pid": record.process,
            "event": getattr(record, "action", "log"),
        }
        if line["event"] == "log":
            line["message"] = record.getMessage()
        if record.exc_info:
            line["traceback"] = logging.Formatter().formatException(record.exc_info)
        fields = getattr(record, "fields", {})
        line |= {name: value for name, value in fields.items() if name not in line}
        sys.stderr.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")
        sys.stderr.flush()
