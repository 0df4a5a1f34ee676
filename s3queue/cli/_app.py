"""The commands that work, and the entry point.

Exit codes: 0 complete, 1 some groups are dead, 2 usage or configuration, 3 unfinished.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from s3queue._errors import ConfigurationError, DamagedWorkspace, InvalidPath, S3QueueError
from s3queue._handlers import Handler
from s3queue._model import RunSummary
from s3queue._options import QueueOptions
from s3queue._pool import Per
from s3queue._queue import WorkQueue, open_queue
from s3queue._runtime import Runtime
from s3queue._tasks import task_group
from s3queue.cli import _operate  # noqa: F401 - its commands are part of the application
from s3queue.cli._base import COMPLETE, LOOK, SOME_DEAD, UNFINISHED, USAGE, Workspace, app, run_async
from s3queue.cli._commands import command_handler, import_handler
from s3queue.cli._demo import count_words, sources, write_table
from s3queue.cli._display import Display, show_summary
from s3queue.cli._durations import parse_duration
from s3queue.cli._inputs import collect
from s3queue.cli._processes import Child, Fleet

__all__ = ["run"]

#: click's base error; newer typer carries a click of its own, so it is found by way of typer.
_UsageError: Any = typer.BadParameter.__mro__[2]

Input = Annotated[
    list[str] | None, typer.Option("--input", metavar="GLOB", help="Files, or s3://bucket/prefix/*.pdf; repeatable.")
]
FromFile = Annotated[
    str | None, typer.Option("--from-file", metavar="FILE", help="One path a line; - reads standard input.")
]
ItemsPerGroup = Annotated[int, typer.Option("--items-per-group", metavar="N", help="Paths in one work group.")]
HandlerName = Annotated[
    str | None, typer.Option("--handler", metavar="MODULE:FUNCTION", help="A function of one argument.")
]
Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- CMD … {} …", help="A command; {} becomes the path.", show_default=False),
]
Workers = Annotated[int, typer.Option(metavar="N", help="Calls of the handler at a time.")]
PerUnit = Annotated[Per, typer.Option("--per", help="What one call gets.")]
Timeout = Annotated[float | None, typer.Option(metavar="S", help="Seconds that one call may take.")]
Grace = Annotated[float, typer.Option(metavar="S", help="Seconds that running calls get after SIGTERM or SIGINT.")]
LeaseTtl = Annotated[
    float, typer.Option(metavar="S", help="Seconds after which a dead machine's groups are taken over.")
]
MaxAttempts = Annotated[int, typer.Option(metavar="N", help="Failures after which a group is dead.")]
Processes = Annotated[
    int,
    typer.Option("--processes", metavar="N", min=1, help="Processes, each with --workers: for handlers that compute."),
]
Once = Annotated[
    bool, typer.Option("--once", help="One pass: take what is claimable now; wait for nothing that others hold.")
]
Forever = Annotated[bool, typer.Option("--forever", help="When all is done, wait for the index to grow.")]
MaxGroups = Annotated[int | None, typer.Option(metavar="N", help="End after work on N groups.", show_default=False)]
MaxRuntime = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="End within this time, such as 3h50m: start nothing that would not end, hand back the rest.",
        show_default=False,
    ),
]
MaxCrashes = Annotated[
    int, typer.Option(metavar="N", help="Deaths of its process in a row after which a path is dead.")
]
Kept = Annotated[
    Literal["stdout"] | None,
    typer.Option("--result", help="Keep a command's standard output as its result.", show_default=False),
]
Unsafe = Annotated[bool, typer.Option("--unsafe-store", help="Run although the store fails the start-up check.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show what happens, not only warnings.")]


@app.command()
def populate(
    workspace: Workspace, inputs: Input = None, from_file: FromFile = None, items_per_group: ItemsPerGroup = 1,
    unsafe_store: Unsafe = False,
) -> int:  # fmt: skip
    """Add paths to the workspace's queue; those that it has already stay as they are."""

    async def main() -> int:
        paths = await collect(inputs or [], from_file)
        async with open_queue(workspace, options=QueueOptions(unsafe_store=unsafe_store)) as queue:
            added = await queue.populate_queue(paths, items_per_group)
        Console().print(f"{len(set(paths))} paths given, {added} new groups", markup=False)
        return COMPLETE

    return run_async(main)


@app.command()
def work(
    ctx: typer.Context, workspace: Workspace, command: Command = None, handler: HandlerName = None,
    workers: Workers = 16, processes: Processes = 1, per: PerUnit = "path", timeout: Timeout = None,
    grace: Grace = 30.0, lease_ttl: LeaseTtl = 120.0, max_attempts: MaxAttempts = 3, max_crashes: MaxCrashes = 3,
    result: Kept = None, once: Once = False, forever: Forever = False, max_groups: MaxGroups = None,
    max_runtime: MaxRuntime = None, unsafe_store: Unsafe = False, verbose: Verbose = False,
) -> int:  # fmt: skip
    """Work on the queue until everything in it is done."""
    options = QueueOptions(
        lease_ttl=lease_ttl, max_attempts=max_attempts, max_crashes=max_crashes, unsafe_store=unsafe_store
    )
    limits = _Limits(once, forever, max_groups, max_runtime)
    job = _Job(_handler(handler, command, result), workers, per, timeout, grace, limits, processes)
    return run_async(partial(_work, workspace, options, job, verbose, called=ctx.obj))


@app.command(name="run")
def run_both(
    ctx: typer.Context, workspace: Workspace, command: Command = None, inputs: Input = None,
    from_file: FromFile = None, items_per_group: ItemsPerGroup = 1, handler: HandlerName = None,
    workers: Workers = 16, processes: Processes = 1, per: PerUnit = "path",
    timeout: Timeout = None, grace: Grace = 30.0, lease_ttl: LeaseTtl = 120.0, max_attempts: MaxAttempts = 3,
    max_crashes: MaxCrashes = 3, result: Kept = None, once: Once = False, forever: Forever = False,
    max_groups: MaxGroups = None, max_runtime: MaxRuntime = None, unsafe_store: Unsafe = False,
    verbose: Verbose = False,
) -> int:  # fmt: skip
    """Populate and work, in one."""
    options = QueueOptions(
        lease_ttl=lease_ttl, max_attempts=max_attempts, max_crashes=max_crashes, unsafe_store=unsafe_store
    )
    limits = _Limits(once, forever, max_groups, max_runtime)
    job = _Job(_handler(handler, command, result), workers, per, timeout, grace, limits, processes)
    called: _Called = ctx.obj

    async def main() -> int:
        paths = await collect(inputs or [], from_file) if called.child is None else ()
        return await _work(
            workspace, options, job, verbose, paths=paths, items_per_group=items_per_group, called=called
        )

    return run_async(main)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="The workspace to make.")] = Path("s3queue-demo"),
) -> int:
    """Count the words of Python's own sources, with 16 workers, in a folder workspace."""
    job = _Job(count_words, workers=16, per="path", timeout=None, grace=30.0)
    table = folder / "word-counts.csv"

    async def main() -> tuple[int, int, int]:
        code = await _work(str(folder), QueueOptions(), job, False, paths=sources(), items_per_group=5)
        async with open_queue(str(folder), options=LOOK) as queue:
            return code, *await write_table(queue.results(), table)

    code, files, words = run_async(main)
    console = Console()
    console.print(f"{words} words in {files} files", markup=False)
    console.print(f"results: {table} (as `s3queue results {folder}` shows them)", markup=False, soft_wrap=True)
    return code


class _Limits:
    """When to end, apart from when all is done; the time counts from here."""

    def __init__(
        self, once: bool = False, forever: bool = False, max_groups: int | None = None, max_runtime: str | None = None
    ) -> None:
        self._runtime = Runtime()
        self._once = once
        self._forever = forever
        self._max_groups = max_groups
        self._seconds = None if max_runtime is None else parse_duration(max_runtime)
        self._began = self._runtime.thread_time()

    def arguments(self) -> dict[str, Any]:
        """What `WorkQueue.run` is to be told now."""
        seconds = self._seconds
        if seconds:
            seconds = max(0.001, seconds - (self._runtime.thread_time() - self._began))
        return {
            "wait": not self._once,
            "forever": self._forever,
            "max_groups": self._max_groups,
            "max_runtime": seconds,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    handler: Handler
    workers: int
    per: Per
    timeout: float | None
    grace: float
    limits: _Limits = dataclasses.field(default_factory=_Limits)
    processes: int = 1

    async def run(self, queue: WorkQueue, **limits: Any) -> RunSummary:
        """Do it, on this queue, within these limits."""
        arguments = self.limits.arguments() | limits
        return await queue.run(
            self.handler, workers=self.workers, per=self.per, timeout=self.timeout, grace=self.grace, **arguments
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Called:
    """How this process was called: its arguments, and whether it is the child of another."""

    arguments: Sequence[str]
    child: Child | None


async def _work(
    workspace: str,
    options: QueueOptions,
    job: _Job,
    verbose: bool,
    *,
    paths: Sequence[str] = (),
    items_per_group: int = 1,
    called: _Called | None = None,
) -> int:
    if called is not None and called.child is not None:
        return await _work_as_child(workspace, options, job, called.child)
    console = Console()
    display = Display(console, verbose=verbose)
    async with open_queue(workspace, options=options, observer=display.observe) as queue:
        if paths:
            added = await queue.populate_queue(paths, items_per_group)
            console.print(f"{len(set(paths))} paths given, {added} new groups", markup=False)
        with display.showing():
            async with task_group() as tasks:
                tasks.start_soon(_count, queue, display)
                tasks.start_soon(display.tell_now_and_then)
                if job.processes == 1 or called is None:
                    summary = await job.run(queue)
                else:
                    summary = await _work_in_processes(queue, job, display, verbose, called.arguments)
                tasks.cancel_scope.cancel()
    show_summary(console, summary)
    return _exit_code(dead=summary.dead, unfinished=summary.unfinished)


async def _work_in_processes(
    queue: WorkQueue, job: _Job, display: Display, verbose: bool, arguments: Sequence[str]
) -> RunSummary:
    fleet = Fleet(
        arguments,
        processes=job.processes,
        grace=job.grace,
        display=display,
        verbose=verbose,
        limits=job.limits.arguments(),
    )
    await fleet.run()
    complete = fleet.last is not None and fleet.last.complete
    return fleet.summary(None if complete else await queue.status())


async def _work_as_child(workspace: str, options: QueueOptions, job: _Job, child: Child) -> int:
    options = dataclasses.replace(options, check_store=False)  # the parent has checked it
    async with child.reporting(job.grace), open_queue(workspace, options=options, observer=child.observe) as queue:
        summary = await job.run(queue, max_groups=child.max_groups, max_runtime=child.max_runtime)
        child.ended(summary)
    return _exit_code(dead=summary.dead, unfinished=summary.unfinished)


async def _count(queue: WorkQueue, display: Display) -> None:
    """For the bar; nobody waits for it, and work does not need it."""
    unfinished = await queue.initialize_queue()
    display.expect(queue.groups, unfinished)


def _handler(name: str | None, command: Sequence[str] | None, kept: str | None) -> Handler:
    if bool(name) == bool(command):
        raise ConfigurationError("say what to run: either --handler MODULE:FUNCTION, or a command after --")
    if name and kept:
        raise ConfigurationError("--result is for commands: what a --handler function returns is its result")
    return import_handler(name) if name else command_handler(command or (), keep_stdout=kept == "stdout")


def _exit_code(*, dead: int, unfinished: int) -> int:
    return UNFINISHED if unfinished else SOME_DEAD if dead else COMPLETE


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code. Every error of the user's is one line on standard error."""
    called = _Called(arguments, Child.of_this_process())
    try:
        code = app(list(arguments) or ["--help"], prog_name="s3queue", standalone_mode=False, obj=called)
    except _UsageError as error:
        return _complain(error.format_message(), USAGE)
    except typer.Exit as leaving:
        return leaving.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except (ConfigurationError, InvalidPath, DamagedWorkspace) as error:
        return _complain(str(error), USAGE)
    except S3QueueError as error:
        return _complain(str(error), UNFINISHED)
    return code if isinstance(code, int) else COMPLETE


def _complain(message: str, code: int) -> int:
    typer.echo(f"s3queue: {' '.join(message.split())}", err=True)
    return code
