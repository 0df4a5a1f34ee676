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
from s3queue._tasks import task_group
from s3queue.cli import _dashboard, _operate  # noqa: F401 - their commands are part of the application
from s3queue.cli._base import COMPLETE, LOOK, SOME_DEAD, UNFINISHED, USAGE, Workspace, app, run_async
from s3queue.cli._commands import command_handler, import_handler
from s3queue.cli._demo import count_words, sources, write_table
from s3queue.cli._display import Display, show_summary
from s3queue.cli._inputs import collect

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
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait for groups that others hold.")]
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
    workspace: Workspace, command: Command = None, handler: HandlerName = None, workers: Workers = 16,
    per: PerUnit = "path", timeout: Timeout = None, grace: Grace = 30.0, lease_ttl: LeaseTtl = 120.0,
    max_attempts: MaxAttempts = 3, max_crashes: MaxCrashes = 3, result: Kept = None, wait: Wait = True,
    unsafe_store: Unsafe = False, verbose: Verbose = False,
) -> int:  # fmt: skip
    """Work on the queue until everything in it is done."""
    options = QueueOptions(
        lease_ttl=lease_ttl, max_attempts=max_attempts, max_crashes=max_crashes, unsafe_store=unsafe_store
    )
    job = _Job(_handler(handler, command, result), workers, per, timeout, grace, wait)
    return run_async(partial(_work, workspace, options, job, verbose))


@app.command(name="run")
def run_both(
    workspace: Workspace, command: Command = None, inputs: Input = None, from_file: FromFile = None,
    items_per_group: ItemsPerGroup = 1, handler: HandlerName = None, workers: Workers = 16, per: PerUnit = "path",
    timeout: Timeout = None, grace: Grace = 30.0, lease_ttl: LeaseTtl = 120.0, max_attempts: MaxAttempts = 3,
    max_crashes: MaxCrashes = 3, result: Kept = None, wait: Wait = True, unsafe_store: Unsafe = False,
    verbose: Verbose = False,
) -> int:  # fmt: skip
    """Populate and work, in one."""
    options = QueueOptions(
        lease_ttl=lease_ttl, max_attempts=max_attempts, max_crashes=max_crashes, unsafe_store=unsafe_store
    )
    job = _Job(_handler(handler, command, result), workers, per, timeout, grace, wait)

    async def main() -> int:
        paths = await collect(inputs or [], from_file)
        return await _work(workspace, options, job, verbose, paths=paths, items_per_group=items_per_group)

    return run_async(main)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="The workspace to make.")] = Path("s3queue-demo"),
) -> int:
    """Count the words of Python's own sources, with 16 workers, in a folder workspace."""
    job = _Job(count_words, workers=16, per="path", timeout=None, grace=30.0, wait=True)
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
    handler: Handler
    workers: int
    per: Per
    timeout: float | None
    grace: float
    wait: bool


async def _work(
    workspace: str,
    options: QueueOptions,
    job: _Job,
    verbose: bool,
    *,
    paths: Sequence[str] = (),
    items_per_group: int = 1,
) -> int:
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
                summary: RunSummary = await queue.run(
                    job.handler, workers=job.workers, per=job.per, timeout=job.timeout, grace=job.grace, wait=job.wait
                )
                tasks.cancel_scope.cancel()
    show_summary(console, summary)
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
    try:
        code = app(list(arguments) or ["--help"], prog_name="s3queue", standalone_mode=False)
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
