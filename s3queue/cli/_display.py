"""What a person sees while a queue runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from s3queue._events import Event
from s3queue._model import FailedAttempt, FailedGroup, Finding, QueueStatus, RunSummary
from s3queue._runtime import Runtime
from s3queue.cli._logs import JsonLines, LogHandler, logging_to
from s3queue.cli._words import counted

__all__ = ["Display", "ago", "show_failures", "show_findings", "show_history", "show_status", "show_summary"]

_PLAIN_EVERY = 5.0
#: Failed paths of one group that a table shows.
_PATHS_MOST = 10


class Display(LogHandler):
    """Counts events, and shows them together with warnings of the log."""

    def __init__(self, console: Console, *, level: int, log_format: Literal["text", "json"]) -> None:
        super().__init__(level)
        self._log: logging.Handler = JsonLines(level) if log_format == "json" else self
        self._console = console
        self._runtime = Runtime()
        self._groups = 0
        self._paths = 0
        self._failed = 0
        self._done_before = 0
        self._total: int | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[more]}"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("groups", total=None, more="")

    def telling_log(self) -> AbstractContextManager[None]:
        """Show this package's log inside the block."""
        return logging_to(self._log)

    def showing(self) -> AbstractContextManager[object]:
        """Show progress inside the block."""
        return self._progress

    def observe(self, event: Event) -> None:
        """An observer of a queue."""
        self.count(event.name)

    def count(self, name: str, times: int = 1) -> None:
        """So many events of this name have happened."""
        match name:
            case "group.done":
                self._groups += times
            case "path.done":
                self._paths += times
            case "group.failed":
                self._failed += times
            case _:
                return
        self._progress.update(self._task, completed=self._done_before + self._groups, more=self._more())

    def expect(self, total: int, unfinished: int) -> None:
        """There are `total` groups, of which `unfinished` were not done when this was counted."""
        self._total = total
        self._done_before = max(0, total - unfinished - self._groups)
        self._progress.update(self._task, total=total, completed=self._done_before + self._groups)

    async def tell_now_and_then(self) -> None:
        """Where there is no terminal: a line every few seconds, if something was done. Runs until cancelled."""
        told = -1
        while not self._console.is_terminal:
            await self._runtime.sleep(_PLAIN_EVERY)
            now = self._groups + self._paths + self._failed
            if now != told:
                of = f" of {self._total}" if self._total is not None else ""
                self._console.print(f"{self._done_before + self._groups}{of} groups done{self._more()}", markup=False)
                told = now

    def say(self, record: logging.LogRecord) -> None:
        """A log record: a line above the bar, or on standard error."""
        line = f"{record.levelname.lower()}: {record.getMessage()}"
        if self._console.is_terminal:
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            typer.echo(line, err=True)

    def _more(self) -> str:
        parts = [
            counted(self._paths, "path") if self._paths else "",
            counted(self._failed, "failed attempt") if self._failed else "",
        ]
        return "".join(f", {part}" for part in parts if part)


def show_summary(console: Console, summary: RunSummary, workspace: str, groups: int) -> None:
    """The last lines of a run on a workspace that has so many groups."""
    if summary.done or summary.failed or summary.lost or summary.unfinished:
        rate = summary.done / summary.seconds if summary.seconds > 0 else 0.0
        told = (
            f"{counted(summary.done, 'group')} done in {summary.seconds:.1f} s ({rate:.1f}/s); "
            f"{counted(summary.failed, 'failed attempt')}, {counted(summary.lost, 'lease')} lost"
        )
    else:
        told = f"nothing to do: of {counted(groups, 'group')} {groups - summary.dead} are done already"
    console.print(told, markup=False, soft_wrap=True)
    if summary.dead:
        _line(console, f"dead: {counted(summary.dead, 'group')}: `s3queue failures {workspace}` says why")
    if summary.unfinished:
        why = "nothing more to claim now"
        if summary.limit is not None:
            why = f"--{summary.limit.replace('_', '-')}"
        if summary.stopped:
            why = "stopped"
        console.print(
            f"unfinished: {counted(summary.unfinished, 'group')}, {summary.leased_elsewhere} of them leased or waiting "
            f"for their next attempt ({why})",
            markup=False,
            soft_wrap=True,
        )


def show_failures(console: Console, failures: Sequence[FailedGroup]) -> None:
    """A line a group, one for its last error, and one for each of its failed paths."""
    for group in failures:
        state = "dead" if group.dead else "waiting"
        _line(
            console,
            f"{group.hash}  {state:<8}{counted(len(group.work_paths), 'path')}, {group.done} done, "
            f"{counted(group.failures, 'failed attempt')}, {ago(group.age)} ago",
        )
        if group.last is not None:
            _line(console, f"    {group.last.at}  {group.last.kind}: {group.last.error}")
        for path in group.paths[:_PATHS_MOST]:
            crashes = f", {path.crashes} {'crash' if path.crashes == 1 else 'crashes'}" if path.crashes else ""
            _line(console, f"    {path.path}  ({counted(path.attempts, 'attempt')}{crashes}): {path.error}")
        if len(group.paths) > _PATHS_MOST:
            _line(console, f"    and {counted(len(group.paths) - _PATHS_MOST, 'more path')}: see --json")
    console.print(counted(len(failures), "group"), markup=False)


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """A line a finding."""
    for one in findings:
        _line(console, f"{one.kind}: {one.where}: {one.detail}")
    console.print(counted(len(findings), "finding") if findings else "consistent", markup=False)


def _line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def ago(seconds: float) -> str:
    """A duration in its largest unit, for people."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def show_history(console: Console, attempts: Sequence[FailedAttempt]) -> None:
    """Each attempt in full."""
    for one in attempts:
        took = f" after {one.seconds:.1f} s" if one.seconds is not None else ""
        _line(console, f"epoch {one.epoch}, attempt {one.attempt}, {one.at}, by {one.owner}{took}")
        _line(console, f"{one.kind}: {one.error}")
        for path in one.paths:
            _line(console, f"    {path}")
        _line(console, one.detail)
    console.print(f"{counted(len(attempts), 'failed attempt')} on record", markup=False)


def show_status(console: Console, status: QueueStatus) -> None:
    """A workspace's counts, and what each means."""
    rows = {
        "groups": (status.groups, ""),
        "paths": (status.paths, ""),
        "done": (status.done, ""),
        "dead": (status.dead, "failed for good: see `s3queue failures`"),
        "leased": (status.leased, "running: someone holds a lease"),
        "expired": (status.expired, "the lease ran out: whoever comes takes over"),
        "released": (status.released, "waiting for the next attempt"),
        "free": (status.free, "nobody began"),
    }
    for name, (count, meaning) in rows.items():
        _line(console, f"{name:<9}{count:>10}  {meaning}".rstrip())
