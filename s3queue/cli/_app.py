"""The commands that work, and the entry point.

Exit codes: 0 complete, 1 some groups are dead, 2 usage or configuration, 3 unfinished.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from s3queue._errors import (
    AccessDenied,
    ConfigurationError,
    DamagedWorkspace,
    InvalidPath,
    S3QueueError,
    Unanswered,
)
from s3queue._events import Observer, together
from s3queue._handlers import Handler
from s3queue._model import RunSummary
from s3queue._options import QueueOptions
from s3queue._pool import Per
from s3queue._queue import WorkQueue
from s3queue._runtime import Runtime
from s3queue._tasks import task_group
from s3queue.cli import _dashboard, _doctor, _operate  # noqa: F401 - their commands are part of the application
from s3queue.cli._about import show_completion, show_version
from s3queue.cli._base import (
    COMPLETE,
    SOME_DEAD,
    UNFINISHED,
    USAGE,
    AsJson,
    Workspace,
    app,
    looking_at,
    require_folder,
    run_async,
    working_on,
)
from s3queue.cli._commands import command_handler, import_handler
from s3queue.cli._config import WORKING, defaults_for, names_of_flags, read_settings, source_of, takers_of
from s3queue.cli._demo import count_words, sources, write_table
from s3queue.cli._display import Display, show_summary
from s3queue.cli._durations import parse_duration
from s3queue.cli._fetch import Fetch, FetchSpace, fetching, parse_size
from s3queue.cli._inputs import collect
from s3queue.cli._logs import LogFormat, LogLevel, Verbose, level_of
from s3queue.cli._otel import Otel, telling_otel
from s3queue.cli._processes import Child, Fleet
from s3queue.cli._settings import Settings, is_setting, options, use
from s3queue.cli._words import about_option, counted, in_flags, no_groups, plain_usage

__all__ = ["run"]

#: click's base error; newer typer carries a click of its own, so it is found by way of typer.
_UsageError: Any = typer.BadParameter.__mro__[2]
_NoSuchOption: Any = sys.modules[_UsageError.__module__].NoSuchOption

Input = Annotated[
    list[str] | None, typer.Option("--input", metavar="GLOB", help="Files, or s3://bucket/prefix/*.pdf; repeatable.")
]
FromFile = Annotated[
    str | None, typer.Option("--from-file", metavar="FILE", help="One path a line; - reads standard input.")
]
ItemsPerGroup = Annotated[int, typer.Option("--items-per-group", metavar="N", min=1, help="Paths in one work group.")]
HandlerName = Annotated[
    str | None, typer.Option("--handler", metavar="MODULE:FUNCTION", help="A function of one argument.")
]
Command = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- CMD … {} …", help="A command; {} becomes the path.", show_default=False),
]
Workers = Annotated[int, typer.Option(metavar="N", min=1, help="Calls of the handler at a time.")]
PerUnit = Annotated[Per, typer.Option("--per", help="What one call gets.")]
Timeout = Annotated[float | None, typer.Option(metavar="S", help="Seconds that one call may take.")]
Grace = Annotated[float, typer.Option(metavar="S", help="Seconds that running calls get after SIGTERM or SIGINT.")]
LeaseTtl = Annotated[
    float, typer.Option(metavar="S", help="Seconds after which a dead machine's groups are taken over.")
]
MaxAttempts = Annotated[
    int, typer.Option(metavar="N", help="Failures after which a path is dead; a whole group with --per group.")
]
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


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    completion: Annotated[
        Literal["bash", "zsh", "fish", "powershell"] | None,
        typer.Option(
            "--show-completion",
            callback=show_completion,
            is_eager=True,
            show_default=False,
            help="Print what makes this shell complete s3queue's commands and options.",
        ),
    ] = None,
) -> None:
    """What stands before a command."""


@app.command()
def populate(
    workspace: Workspace, inputs: Input = None, from_file: FromFile = None, items_per_group: ItemsPerGroup = 1,
    unsafe_store: Unsafe = False, as_json: AsJson = False, verbose: Verbose = False, log_format: LogFormat = "text",
    log_level: LogLevel = None,
) -> int:  # fmt: skip
    """Add paths to the workspace's queue; those that it has already stay as they are.

    Examples:

      s3queue populate s3://bucket/ws --input '/mnt/scans/**/*.pdf' --items-per-group 20

      s3queue populate s3://bucket/ws --input 's3://other/scans/*.pdf'

      find . -name '*.wav' | s3queue populate ws --from-file -
    """
    settings = options(unsafe_store=unsafe_store)
    output = _Output(as_json, level_of(log_level, verbose), log_format)

    async def main() -> int:
        paths = await collect(inputs or [], from_file)
        with output.display().telling_log():
            async with working_on(workspace, settings) as queue:
                added = await queue.populate_queue(paths, items_per_group)
        output.populated(paths, added)
        output.tell({"paths": len(set(paths)), "groups_added": added})
        return COMPLETE

    return run_async(main)


@app.command()
def work(
    ctx: typer.Context, workspace: Workspace, command: Command = None, handler: HandlerName = None,
    workers: Workers = 16, processes: Processes = 1, per: PerUnit = "path", timeout: Timeout = None,
    grace: Grace = 30.0, lease_ttl: LeaseTtl = 120.0, max_attempts: MaxAttempts = 3, max_crashes: MaxCrashes = 3,
    result: Kept = None, once: Once = False, forever: Forever = False, max_groups: MaxGroups = None,
    max_runtime: MaxRuntime = None, fetch: Fetch = False, fetch_space: FetchSpace = "10GB",
    unsafe_store: Unsafe = False, otel: Otel = False, as_json: AsJson = False, verbose: Verbose = False,
    log_format: LogFormat = "text", log_level: LogLevel = None,
) -> int:  # fmt: skip
    """Work on the queue until everything in it is done. Start it on as many machines as you like.

    Exit codes: 0 everything is done, 1 some groups are dead, 2 usage or configuration, 3 unfinished. SIGTERM or Ctrl-C
    stops claiming, gives what runs --grace seconds, and hands the rest back; the second one leaves at once.

    Examples:

      s3queue work s3://bucket/ws --workers 32 -- pdftotext {} -

      s3queue work s3://bucket/ws --fetch --result stdout -- wc -w {}

      s3queue work s3://bucket/ws --handler mypackage.jobs:convert
    """
    settings = options(
        lease_ttl=lease_ttl, max_attempts=max_attempts, max_crashes=max_crashes, unsafe_store=unsafe_store
    )
    job = _Job(
        _handler(handler, command, result), workers, per, timeout, grace,
        _Limits(once, forever, max_groups, max_runtime), processes, _space(fetch_space, fetch), otel,
    )  # fmt: skip
    output = _Output(as_json, level_of(log_level, verbose), log_format)
    return run_async(partial(_work, workspace, settings, job, output, called=ctx.obj))


@app.command(name="run")
def run_both(
    ctx: typer.Context, workspace: Workspace, command: Command = None, inputs: Input = None,
    from_file: FromFile = None, items_per_group: ItemsPerGroup = 1, handler: HandlerName = None,
    workers: Workers = 16, processes: Processes = 1, per: PerUnit = "path",
    timeout: Timeout = None, grace: Grace = 30.0, lease_ttl: LeaseTtl = 120.0, max_attempts: MaxAttempts = 3,
    max_crashes: MaxCrashes = 3, result: Kept = None, once: Once = False, forever: Forever = False,
    max_groups: MaxGroups = None, max_runtime: MaxRuntime = None, fetch: Fetch = False,
    fetch_space: FetchSpace = "10GB", unsafe_store: Unsafe = False, otel: Otel = False, as_json: AsJson = False,
    verbose: Verbose = False, log_format: LogFormat = "text", log_level: LogLevel = None,
) -> int:  # fmt: skip
    """Populate and work, in one.

    Example: s3queue run ws --input '*.pdf' --result stdout -- pdftotext {} -
    """
    settings = options(
        lease_ttl=lease_ttl, max_attempts=max_attempts, max_crashes=max_crashes, unsafe_store=unsafe_store
    )
    job = _Job(
        _handler(handler, command, result), workers, per, timeout, grace,
        _Limits(once, forever, max_groups, max_runtime), processes, _space(fetch_space, fetch), otel,
    )  # fmt: skip
    output = _Output(as_json, level_of(log_level, verbose), log_format)
    called: _Called = ctx.obj

    async def main() -> int:
        paths = await collect(inputs or [], from_file) if called.child is None else ()
        return await _work(
            workspace, settings, job, output, paths=paths, items_per_group=items_per_group, called=called
        )

    return run_async(main)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="The workspace to make.")] = Path("s3queue-demo"),
) -> int:
    """Count the words of Python's own sources, with 16 workers, in a folder workspace.

    Example: s3queue demo && s3queue status s3queue-demo
    """
    job = _Job(count_words, workers=16, per="path", timeout=None, grace=30.0)
    table = folder / "word-counts.csv"

    async def main() -> tuple[int, int, int]:
        code = await _work(str(folder), QueueOptions(), job, _Output(), paths=sources(), items_per_group=5)
        async with looking_at(str(folder)) as queue:
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
        if once and forever:
            raise ConfigurationError("--forever waits for work, and --once does not: take one of them")
        self._runtime = Runtime()
        self._once = once
        self.forever = forever
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
            "forever": self.forever,
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
    #: Bytes of local copies that the handler gets of what lies on S3; None for no copies.
    fetch_space: int | None = None
    #: Whether OpenTelemetry is told.
    otel: bool = False

    async def run(self, queue: WorkQueue, settings: QueueOptions, **limits: Any) -> RunSummary:
        """Do it, on this queue, within these limits."""
        async with AsyncExitStack() as stack:
            handler, timeout = self.handler, self.timeout
            if self.fetch_space is not None:
                copying = fetching(handler, settings, workers=self.workers, timeout=timeout, space=self.fetch_space)
                handler, timeout = await stack.enter_async_context(copying), None
            arguments = self.limits.arguments() | limits
            return await queue.run(
                handler, workers=self.workers, per=self.per, timeout=timeout, grace=self.grace, **arguments
            )


@dataclasses.dataclass(frozen=True, slots=True)
class _Called:
    """How this process was called: its arguments, and whether it is the child of another."""

    arguments: Sequence[str]
    child: Child | None


@dataclasses.dataclass(frozen=True, slots=True)
class _Output:
    """Where things are said: with JSON on standard output, all else goes to standard error."""

    as_json: bool = False
    level: int = logging.WARNING
    log_format: Literal["text", "json"] = "text"

    @property
    def console(self) -> Console:
        return Console(stderr=self.as_json)

    def display(self) -> Display:
        return Display(self.console, level=self.level, log_format=self.log_format)

    def populated(self, paths: Sequence[str], added: int) -> None:
        told = f"{counted(len(set(paths)), 'path')} given, {counted(added, 'new group')}"
        self.console.print(told, markup=False, highlight=False)

    def tell(self, values: Mapping[str, Any]) -> None:
        if self.as_json:
            typer.echo(json.dumps(values))


async def _work(
    workspace: str,
    settings: QueueOptions,
    job: _Job,
    output: _Output,
    *,
    paths: Sequence[str] = (),
    items_per_group: int = 1,
    called: _Called | None = None,
) -> int:
    if called is not None and called.child is not None:
        return await _work_as_child(workspace, settings, job, called.child)
    if not paths and not job.limits.forever:
        require_folder(workspace)
    display = output.display()
    added: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        stack.enter_context(display.telling_log())
        job, observe = await stack.enter_async_context(_telling(job, display.observe))
        queue = await stack.enter_async_context(working_on(workspace, settings, observe))
        if paths:
            added = {"paths": len(set(paths)), "groups_added": await queue.populate_queue(paths, items_per_group)}
            output.populated(paths, added["groups_added"])
        with display.showing():
            async with task_group() as tasks:
                tasks.start_soon(_count, queue, display, workspace, job.limits.forever)
                tasks.start_soon(display.tell_now_and_then)
                if job.processes == 1 or called is None:
                    summary = await job.run(queue, settings)
                else:
                    summary = await _work_in_processes(queue, job, display, output.level, called.arguments)
                tasks.cancel_scope.cancel()
        idle = summary.complete and not (summary.done or summary.failed or summary.dead)
        if idle and not queue.groups:
            await queue.initialize_queue()  # with --processes nobody may have counted here yet
        if idle and not queue.groups and not job.limits.forever:
            raise ConfigurationError(no_groups(workspace))
        show_summary(output.console, summary, workspace, queue.groups)
    output.tell({**added, **dataclasses.asdict(summary), "complete": summary.complete})
    return _exit_code(dead=summary.dead, unfinished=summary.unfinished)


@asynccontextmanager
async def _telling(job: _Job, observer: Observer) -> AsyncIterator[tuple[_Job, Observer]]:
    """The job and what observes its queue; OpenTelemetry is told of both, if that is wanted."""
    async with telling_otel(job.otel) as telemetry:
        if telemetry is None:
            yield job, observer
        else:
            yield dataclasses.replace(job, handler=telemetry.traced(job.handler)), together(observer, telemetry)


async def _work_in_processes(
    queue: WorkQueue, job: _Job, display: Display, level: int, arguments: Sequence[str]
) -> RunSummary:
    fleet = Fleet(
        arguments,
        processes=job.processes,
        grace=job.grace,
        display=display,
        level=level,
        limits=job.limits.arguments(),
    )
    await fleet.run()
    complete = fleet.last is not None and fleet.last.complete
    return fleet.summary(None if complete else await queue.status())


async def _work_as_child(workspace: str, settings: QueueOptions, job: _Job, child: Child) -> int:
    settings = dataclasses.replace(settings, check_store=False)  # the parent has checked it
    async with (
        child.reporting(job.grace),
        _telling(job, child.observe) as (job, observe),
        working_on(workspace, settings, observe) as queue,
    ):
        summary = await job.run(queue, settings, max_groups=child.max_groups, max_runtime=child.max_runtime)
        child.ended(summary)
    return _exit_code(dead=summary.dead, unfinished=summary.unfinished)


async def _count(queue: WorkQueue, display: Display, workspace: str, forever: bool) -> None:
    """For the bar; nobody waits for it, and work does not need it."""
    unfinished = await queue.initialize_queue()
    display.expect(queue.groups, unfinished)
    if forever and not queue.groups:
        typer.echo(f"s3queue: {no_groups(workspace)}; waiting for them", err=True)


def _space(size: str, fetch: bool) -> int | None:
    space = parse_size(size)
    return space if fetch else None


def _handler(name: str | None, command: Sequence[str] | None, kept: str | None) -> Handler:
    if bool(name) == bool(command):
        problem = "--handler and a command are two things to run" if name else "nothing to run was given"
        raise ConfigurationError(f"{problem}: write either --handler MODULE:FUNCTION, or a command after --")
    if name and kept:
        raise ConfigurationError("--result is for commands: what a --handler function returns is its result")
    return import_handler(name) if name else command_handler(command or (), keep_stdout=kept == "stdout")


def _exit_code(*, dead: int, unfinished: int) -> int:
    return UNFINISHED if unfinished else SOME_DEAD if dead else COMPLETE


def run(arguments: Sequence[str]) -> int:
    """Run one command; the exit code. Every error of the user's is one line on standard error."""
    called = _Called(arguments, Child.of_this_process())
    flags: frozenset[str] = frozenset()
    try:
        command = typer.main.get_command(app)
        flags = names_of_flags(command)
        settings = read_settings(command)
        use(settings)
        if called.child is None and arguments and arguments[0] in WORKING:
            _warn_of_strays(settings)
        code = command.main(
            list(arguments) or ["--help"], prog_name="s3queue", standalone_mode=False, obj=called,
            default_map=defaults_for(command, settings),
        )  # fmt: skip
    except _UsageError as error:
        told = plain_usage(error.format_message()) + source_of(error)
        return _complain(told.rstrip(".") + _about(error, command, arguments), USAGE)
    except typer.Exit as leaving:
        return leaving.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return 130
    except (ConfigurationError, InvalidPath, DamagedWorkspace, AccessDenied) as error:
        return _complain(in_flags(str(error), flags), USAGE)
    except Unanswered as error:
        told = f"{error}: check that the store is up and can be reached"
        return _complain(f"{told} at that endpoint (AWS_ENDPOINT_URL_S3)" if " at http" in told else told, UNFINISHED)
    except S3QueueError as error:
        return _complain(str(error), UNFINISHED)
    return code if isinstance(code, int) else COMPLETE


def _about(error: Any, group: Any, arguments: Sequence[str]) -> str:
    """What to do about an option that its command does not have, or an argument too many."""
    if arguments[0] == "populate" and "unexpected extra argument" in error.format_message():
        return ": a pattern needs quotes, or else the shell expands it"
    option = error.option_name if isinstance(error, _NoSuchOption) else None
    if option is None or arguments[0] not in WORKING:
        return ""
    return about_option(
        option,
        takers=takers_of(group, option),
        is_setting=is_setting(option),
        is_before_dashes="--" in arguments,
    )


def _warn_of_strays(settings: Settings) -> None:
    """A misspelled variable must not look as if it were obeyed."""
    for variable in settings.strays:
        typer.echo(f"s3queue: {variable} names no setting and is ignored: see `s3queue config`", err=True)


def _complain(message: str, code: int) -> int:
    typer.echo(f"s3queue: {' '.join(message.split())}", err=True)
    return code
