"""``--processes N``: several worker processes under one that shows their progress, restarts them and ends them.

A child is this same command with the same arguments, told by its environment that it is one. It says what happens on
the pipe that was its standard output, a line of JSON each, and ends when its standard input does: that is how it
learns that its parent is gone, however that came about.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self

import anyio
from anyio.abc import Process, TaskStatus

from s3queue._errors import ConfigurationError, S3QueueError
from s3queue._events import Event, Events
from s3queue._model import QueueStatus, RunSummary
from s3queue._runtime import Runtime
from s3queue._tasks import task_group
from s3queue.cli._display import Display

__all__ = ["Child", "Fleet"]

_ENVIRONMENT = "S3QUEUE_CHILD"
_REPORT_EVERY = 0.25
#: More than this is not kept for a parent that does not read; what happens is then lost on it.
_UNSENT_MOST = 1 << 20
#: A process that dies so soon after it was ready, with nothing done, would do so again.
_SOON = 5.0
_SOON_MOST = 5
#: The wait before a restart; doubles with each such death in a row.
_RESTART_PAUSE = 0.5
#: What children get beyond their grace to hand back what they hold, once nobody waits for them.
_PATIENCE = 15.0
_COUNTED = ("group.done", "path.done", "group.failed")

logger = logging.getLogger("s3queue")


class Child(logging.Handler):
    """This process is a child: its reports to the parent, and what it was told."""

    def __init__(self, told: dict[str, Any]) -> None:
        super().__init__(told["level"])
        #: Its share of ``--max-groups``.
        self.max_groups: int | None = told["max_groups"]
        self._ends_at: float | None = told["ends_at"]
        self._runtime = Runtime()
        self._counts = Counter[str]()
        self._unsent = bytearray()
        # Handlers find an ordinary output, which is the parent's, and an empty input.
        self._pipe, self._lifeline = os.dup(1), os.dup(0)
        os.dup2(told["stdout"], 1)
        os.close(told["stdout"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.set_blocking(self._pipe, False)

    @classmethod
    def of_this_process(cls) -> Self | None:
        """None in an ordinary process. To be asked once, before anything is written to standard output."""
        told = os.environ.pop(_ENVIRONMENT, None)
        return None if told is None else cls(json.loads(told))

    @property
    def max_runtime(self) -> float | None:
        """What is left of ``--max-runtime`` now, in seconds."""
        if self._ends_at is None:
            return None
        return max(0.001, self._ends_at - self._runtime.thread_time())

    @asynccontextmanager
    async def reporting(self, grace: float) -> AsyncIterator[None]:
        """Report what happens inside the block, and drain as if by SIGTERM if the parent ends."""
        threading.Thread(target=self._end_with_parent, args=(grace,), name="s3queue-lifeline", daemon=True).start()
        before, logger.propagate = logger.propagate, False
        logger.addHandler(self)
        logger.setLevel(self.level)
        try:
            async with task_group() as tasks:
                tasks.start_soon(self._report_now_and_then)
                self._say(ready=True)
                yield
                tasks.cancel_scope.cancel()
        finally:
            logger.removeHandler(self)
            logger.propagate = before

    def observe(self, event: Event) -> None:
        """An observer of a queue."""
        if event.name in _COUNTED:
            self._counts[event.name] += 1
            if event.name != "path.done":
                self._report()  # at once: this process may die any moment, and its groups are done all the same

    def emit(self, record: logging.LogRecord) -> None:
        """A log record, for the parent to show."""
        extra = {name: getattr(record, name) for name in ("action", "fields") if hasattr(record, name)}
        self._say(log={"levelno": record.levelno, "levelname": record.levelname, "msg": record.getMessage(), **extra})

    def ended(self, summary: RunSummary) -> None:
        """The last thing to say."""
        self._report()
        os.set_blocking(self._pipe, True)
        self._say(summary=dataclasses.asdict(summary))

    async def _report_now_and_then(self) -> None:
        while True:
            await self._runtime.sleep(_REPORT_EVERY)
            self._report()

    def _report(self) -> None:
        if self._counts:
            self._say(counts=self._counts)
            self._counts.clear()
        self._send()

    def _say(self, **what: Any) -> None:
        if len(self._unsent) < _UNSENT_MOST or "log" not in what:
            self._unsent += json.dumps(what, default=str).encode() + b"\n"
        self._send()

    def _send(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: os.write(self._pipe, self._unsent)]
        except BlockingIOError:
            return  # the rest goes with the next report
        except BrokenPipeError:
            self._unsent.clear()  # nobody listens any more

    def _end_with_parent(self, grace: float) -> None:
        while os.read(self._lifeline, 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(grace + _PATIENCE)
        os._exit(3)  # something holds the process up that does not let signals through


@dataclasses.dataclass(eq=False, slots=True)
class _Slot:
    """One of the processes, over all its restarts."""

    number: int
    #: What is left of its share of ``--max-groups``.
    groups: int | None
    process: Process | None = None
    summary: RunSummary | None = None
    ready_at: float | None = None
    #: Whether the process that runs now got anything done; deaths in a row of those that did not, soon after the start.
    useful: bool = False
    soon: int = 0


class Fleet:
    """Several processes that run the command with these arguments."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        processes: int,
        grace: float,
        display: Display,
        level: int,
        limits: Mapping[str, Any],
    ) -> None:
        self._command = [sys.executable, "-m", "s3queue", *arguments]
        self._grace = grace
        self._display = display
        self._level = level
        self._runtime = Runtime()
        self._events = Events()
        self._began = self._runtime.thread_time()
        seconds = limits["max_runtime"]
        #: By the machine's monotonic clock, which its processes share.
        self._ends_at = None if seconds is None else self._began + seconds
        shares = _shares(limits["max_groups"], processes)
        self._slots = [_Slot(number, share) for number, share in enumerate(shares, start=1)]
        self._stop = anyio.Event()
        self._counts = Counter[str]()

    async def run(self) -> None:
        """Keep all of them at work until each has ended by itself, or after a signal.

        The first SIGTERM or SIGINT drains them, the second one ends them, and this process, at once. Raises
        `S3QueueError` if one dies again and again as soon as it has started."""
        try:
            async with task_group() as tasks:
                await tasks.start(self._on_signals)
                async with task_group() as slots:
                    for slot in self._slots:
                        slots.start_soon(self._keep, slot)
                tasks.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await self._end_all()

    def summary(self, status: QueueStatus | None) -> RunSummary:
        """What all of them did, and how they left the workspace: as `status` says, or (None) the last one of them."""
        last = self.last
        if status is not None:
            dead, held = status.dead, status.leased + status.expired + status.released
            unfinished = status.groups - status.done - status.dead
        else:
            assert last is not None
            dead, held, unfinished = last.dead, last.leased_elsewhere, last.unfinished
        summaries = self._summaries()
        return RunSummary(
            # What died told its counts all the same, but never the rest.
            done=self._counts["group.done"],
            failed=self._counts["group.failed"],
            lost=sum(one.lost for one in summaries),
            dead=dead,
            leased_elsewhere=held,
            unfinished=unfinished,
            seconds=self._runtime.thread_time() - self._began,
            stopped=self._stop.is_set(),
            limit=next((one.limit for one in summaries if one.limit is not None), None),
            done_paths=max(self._counts["path.done"], sum(one.done_paths for one in summaries)),
            failed_paths=sum(one.failed_paths for one in summaries),
        )

    @property
    def last(self) -> RunSummary | None:
        """The summary of the process that saw the workspace last, as far as that shows."""
        return min(self._summaries(), key=lambda summary: summary.unfinished, default=None)

    def _summaries(self) -> list[RunSummary]:
        return [slot.summary for slot in self._slots if slot.summary is not None]

    # One process.

    async def _keep(self, slot: _Slot) -> None:
        """Run a process until it has ended by itself; one that dies is replaced."""
        while slot.groups != 0 and not (self._stop.is_set() or self._is_late):
            code = await self._run(slot)
            if slot.summary is not None or self._stop.is_set():
                return
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            self._give_up_if_hopeless(slot, code, how)
            pause = _RESTART_PAUSE * 2**slot.soon
            self._events.emit("process.died", logging.WARNING, process=slot.number, how=how, restart_in=pause)
            with anyio.move_on_after(pause):
                await self._stop.wait()

    def _give_up_if_hopeless(self, slot: _Slot, code: int, how: str) -> None:
        if slot.ready_at is None and code == 2:
            raise ConfigurationError(f"process {slot.number} {how}, before it began: its message is above")
        soon = slot.ready_at is None or self._runtime.monotonic() - slot.ready_at < _SOON
        slot.soon = slot.soon + 1 if soon and not slot.useful else 0
        if slot.soon >= _SOON_MOST:
            raise S3QueueError(
                f"process {slot.number} {how}, {slot.soon} times in a row as soon as it was started: "
                "try the handler without --processes"
            )

    async def _run(self, slot: _Slot) -> int:
        slot.ready_at, slot.useful = None, False
        with _inheritable_output() as stdout:
            told = {
                "level": self._level,
                "max_groups": slot.groups,
                "ends_at": self._ends_at,
                "stdout": stdout,
            }
            slot.process = await anyio.open_process(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None,
                env={**os.environ, _ENVIRONMENT: json.dumps(told)},
                # The terminal's Ctrl-C is for us to forward.
                start_new_session=True,
                pass_fds=[stdout],
            )
        if self._stop.is_set():
            _send(slot.process, signal.SIGTERM)
        code = await self._listen(slot, slot.process)
        await slot.process.aclose()
        slot.process = None
        return code

    async def _listen(self, slot: _Slot, process: Process) -> int:
        async with task_group() as tasks:
            heard = await tasks.start(self._hear, slot, process)
            code = await process.wait()
            with anyio.move_on_after(1):  # what it left running may hold its pipe open
                await heard.wait()
            tasks.cancel_scope.cancel()
        return code

    async def _hear(self, slot: _Slot, process: Process, *, task_status: TaskStatus[anyio.Event]) -> None:
        assert process.stdout is not None
        ended, rest = anyio.Event(), b""
        task_status.started(ended)
        async for chunk in process.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._heard(slot, line)
        ended.set()

    def _heard(self, slot: _Slot, line: bytes) -> None:
        try:
            what = json.loads(line)
        except ValueError:
            what = None
        if not isinstance(what, dict):
            return  # something else wrote there, before the child took its output over
        if "ready" in what:
            slot.ready_at = self._runtime.monotonic()
        for name, times in what.get("counts", {}).items():
            slot.useful = True
            self._counts[name] += times
            self._display.count(name, times)
            if name in ("group.done", "group.failed") and slot.groups is not None:
                slot.groups = max(0, slot.groups - times)
        if "log" in what:
            logger.handle(logging.makeLogRecord({"name": "s3queue", **what["log"], "process": slot.number}))
        if "summary" in what:
            slot.summary = RunSummary(**what["summary"])

    @property
    def _is_late(self) -> bool:
        return self._ends_at is not None and self._runtime.thread_time() >= self._ends_at

    # The end.

    async def _on_signals(self, *, task_status: TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            async for number in signals:
                if self._stop.is_set():
                    # The second one: leave as if nobody had ever handled it, and leave no child.
                    self._signal_all(signal.SIGKILL)
                    signal.signal(number, signal.SIG_DFL)
                    signal.raise_signal(number)
                self._stop.set()
                self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: signal.Signals) -> None:
        for slot in self._slots:
            if slot.process is not None:
                _send(slot.process, number)

    async def _end_all(self) -> None:
        """Leave no process behind, whatever happened."""
        self._signal_all(signal.SIGTERM)
        left = [slot.process for slot in self._slots if slot.process is not None]
        with anyio.move_on_after(self._grace + _PATIENCE):
            for process in left:
                await process.wait()
        self._signal_all(signal.SIGKILL)
        for process in left:
            await process.aclose()


def _shares(groups: int | None, processes: int) -> list[int | None]:
    if groups is None:
        return [None] * processes
    return [groups // processes + (i < groups % processes) for i in range(processes)]


@contextmanager
def _inheritable_output() -> Iterator[int]:
    """A second name of this process's standard output."""
    sys.stdout.flush()
    copy = os.dup(1)
    try:
        yield copy
    finally:
        os.close(copy)


def _send(process: Process, number: signal.Signals) -> None:
    if process.returncode is None:
        try:
            process.send_signal(number)
        except ProcessLookupError:
            return
