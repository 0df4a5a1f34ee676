"""What a person sees while a queue runs: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from s3queue._events import Event
from s3queue._model import FailedAttempt, FailedGroup, QueueStatus, RunSummary
from s3queue._runtime import Runtime

__all__ = ["Display", "show_failures", "show_history", "show_status", "show_summary"]

_PLAIN_EVERY = 5.0


class Display(logging.Handler):
    """Counts events, and shows them together with warnings of the log."""

    def __init__(self, console: Console, *, verbose: bool) -> None:
        super().__init__(logging.INFO if verbose else logging.WARNING)
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

    @contextmanager
    def showing(self) -> Iterator[None]:
        """Show progress, and this package's log, inside the block."""
        logger = logging.getLogger("s3queue")
        logger.addHandler(self)
        logger.setLevel(self.level)
        before, logger.propagate = logger.propagate, False
        try:
            with self._progress:
                yield
        finally:
            logger.propagate = before
            logger.removeHandler(self)

    def observe(self, event: Event) -> None:
        """An observer of a queue."""
        match event.name:
            case "group.done":
                self._groups += 1
            case "path.done":
                self._paths += 1
            case "group.failed":
                self._failed += 1
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

    def emit(self, record: logging.LogRecord) -> None:
        """A log record, as a line above the bar."""
        self._progress.console.print(f"{record.levelname.lower()}: {record.getMessage()}", markup=False, soft_wrap=True)

    def _more(self) -> str:
        parts = [f"{self._paths} paths" if self._paths else "", f"{self._failed} failed" if self._failed else ""]
        return "".join(f", {part}" for part in parts if part)


def show_summary(console: Console, summary: RunSummary) -> None:
    """The last lines of a run."""
    rate = summary.done / summary.seconds if summary.seconds > 0 else 0.0
    console.print(
        f"done {summary.done} groups in {summary.seconds:.1f} s ({rate:.1f}/s); failed attempts {summary.failed}, "
        f"dead {summary.dead}, leases lost {summary.lost}",
        markup=False,
        soft_wrap=True,
    )
    if summary.unfinished:
        why = "stopped" if summary.stopped else "nothing more to claim now"
        console.print(
            f"unfinished: {summary.unfinished} groups, {summary.leased_elsewhere} of them leased elsewhere or waiting "
            f"for their next attempt ({why})",
            markup=False,
            soft_wrap=True,
        )


def show_failures(console: Console, failures: Sequence[FailedGroup]) -> None:
    """A line a group, and one for its last error."""
    for group in failures:
        state = "dead" if group.dead else "waiting"
        console.print(
            f"{group.hash}  {state:<8}{len(group.work_paths)} paths, {group.failures} failed attempts",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
        if group.last is not None:
            told = f"    {group.last.at}  {group.last.kind}: {group.last.error}"
            console.print(told, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(failures)} groups", markup=False)


def show_history(console: Console, attempts: Sequence[FailedAttempt]) -> None:
    """Each attempt in full."""
    for one in attempts:
        head = (
            f"epoch {one.epoch}, failure {one.attempt}, {one.at}, by {one.owner}\n{one.kind}: {one.error}\n{one.detail}"
        )
        console.print(head, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(attempts)} failed attempts on record", markup=False)


def show_status(console: Console, status: QueueStatus) -> None:
    """A workspace's counts."""
    rows = {
        "groups": status.groups,
        "paths": status.paths,
        "done": status.done,
        "dead": status.dead,
        "leased": status.leased,
        "expired": status.expired,
        "released": status.released,
        "free": status.free,
    }
    for name, count in rows.items():
        console.print(f"{name:<9}{count:>10}", markup=False, highlight=False)
