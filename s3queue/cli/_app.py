"""The commands. Exit codes: 0 complete, 1 some groups are dead, 2 usage or configuration, 3 unfinished."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import typer
from rich.console import Console

from s3queue._errors import ConfigurationError, DamagedWorkspace, InvalidPath, S3QueueError
from s3queue._handlers import Handler
from s3queue._model import FailedAttempt, FailedGroup, QueueStatus, RunSummary
from s3queue._options import QueueOptions
from s3queue._pool import Per
from s3queue._queue import WorkQueue, open_queue
from s3queue._tasks import task_group
from s3queue.cli._commands import command_handler, import_handler
from s3queue.cli._demo import collect_results, count_words, sources
from s3queue.cli._display import Display, show_failures, show_history, show_status, show_summary
from s3queue.cli._inputs import collect

__all__ = ["run"]

T = TypeVar("T")

#: click's base error; newer typer carries a click of its own, so it is found by way of typer.
_UsageError: Any = typer.BadParameter.__mro__[2]

COMPLETE, SOME_DEAD, USAGE, UNFINISHED = range(4)

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="A work queue whose only server is an object store. A WORKSPACE is s3://bucket/prefix or a folder.",
)  # fmt: skip


Workspace = Annotated[str, typer.Argument(metavar="WORKSPACE", help="s3://bucket/prefix or a folder")]
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

    return _run_async(main)


@app.command()
def work(
    workspace: Workspace, command: Command = None, handler: HandlerName = None, workers: Workers = 16,
    per: PerUnit = "path", timeout: Timeout = None, grace: Grace = 30.0, lease_ttl: LeaseTtl = 120.0,
    max_attempts: MaxAttempts = 3, wait: Wait = True, unsafe_store: Unsafe = False, verbose: Verbose = False,
) -> int:  # fmt: skip
    """Work on the queue until everything in it is done."""
    options = QueueOptions(lease_ttl=lease_ttl, max_attempts=max_attempts, unsafe_store=unsafe_store)
    job = _Job(_handler(handler, command), workers, per, timeout, grace, wait)
    return _run_async(partial(_work, workspace, options, job, verbose))


@app.command(name="run")
def run_both(
    workspace: Workspace, command: Command = None, inputs: Input = None, from_file: FromFile = None,
    items_per_group: ItemsPerGroup = 1, handler: HandlerName = None, workers: Workers = 16, per: PerUnit = "path",
    timeout: Timeout = None, grace: Grace = 30.0, lease_ttl: LeaseTtl = 120.0, max_attempts: MaxAttempts = 3,
    wait: Wait = True, unsafe_store: Unsafe = False, verbose: Verbose = False,
) -> int:  # fmt: skip
    """Populate and work, in one."""
    options = QueueOptions(lease_ttl=lease_ttl, max_attempts=max_attempts, unsafe_store=unsafe_store)
    job = _Job(_handler(handler, command), workers, per, timeout, grace, wait)

    async def main() -> int:
        paths = await collect(inputs or [], from_file)
        return await _work(workspace, options, job, verbose, paths=paths, items_per_group=items_per_group)

    return _run_async(main)


@app.command()
def status(workspace: Workspace, as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> int:
    """Count the groups of the workspace."""

    async def main() -> QueueStatus:
        async with open_queue(workspace, options=QueueOptions(check_store=False)) as queue:
            return await queue.status()

    counts = _run_async(main)
    if as_json:
        values = {**dataclasses.asdict(counts), "free": counts.free, "complete": counts.complete}
        typer.echo(json.dumps(values))
    else:
        show_status(Console(), counts)
    return _exit_code(dead=counts.dead, unfinished=counts.groups - counts.done - counts.dead)


@app.command()
def failures(
    workspace: Workspace,
    group: Annotated[str | None, typer.Argument(metavar="[HASH]", help="Show every attempt at this group.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, one line each.")] = False,
) -> int:
    """Show the groups that are dead or wait after a failure; of one group, every failed attempt in full."""

    async def main() -> Sequence[FailedGroup | FailedAttempt]:
        async with open_queue(workspace, options=QueueOptions(check_store=False)) as queue:
            return await (queue.failures() if group is None else queue.history(group))

    found = _run_async(main)
    if as_json:
        for one in found:
            typer.echo(json.dumps(dataclasses.asdict(one), ensure_ascii=False))
    elif group is None:
        show_failures(Console(), [one for one in found if isinstance(one, FailedGroup)])
    else:
        show_history(Console(), [one for one in found if isinstance(one, FailedAttempt)])
    return COMPLETE


@app.command()
def retry(
    workspace: Workspace,
    hashes: Annotated[list[str] | None, typer.Argument(metavar="[HASH…]", help="Groups to retry.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that `failures` lists.")] = False,
    error: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Those whose last error matches.", show_default=False)
    ] = None,
) -> int:
    """Give dead and waiting groups a clean slate, so that workers claim them now; their history stays."""
    if [bool(hashes), everything, error is not None].count(True) != 1:
        raise ConfigurationError("say which groups: their hashes, or --all, or --error REGEX")
    matches = _pattern(error or "")

    async def main() -> int:
        async with open_queue(workspace, options=QueueOptions(check_store=False)) as queue:
            wanted = hashes or [
                group.hash
                for group in await queue.failures()
                if everything or (group.last is not None and matches.search(f"{group.last.kind}: {group.last.error}"))
            ]
            return await queue.retry(wanted)

    Console().print(f"{_run_async(main)} groups are claimable again", markup=False)
    return COMPLETE


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"--error {text!r} is no regular expression: {error}") from error


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(metavar="DIR", help="The workspace to make.")] = Path("s3queue-demo"),
) -> int:
    """Count the words of Python's own sources, with 16 workers, in a folder workspace."""
    job = _Job(count_words, workers=16, per="path", timeout=None, grace=30.0, wait=True)

    async def main() -> int:
        return await _work(str(folder), QueueOptions(), job, False, paths=sources(), items_per_group=5)

    code = _run_async(main)
    table, files, words = collect_results(folder)
    console = Console()
    console.print(f"{words} words in {files} files", markup=False)
    console.print(f"results: {table} (from the completions in {folder / 'done_flags'})", markup=False, soft_wrap=True)
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


def _handler(name: str | None, command: Sequence[str] | None) -> Handler:
    if bool(name) == bool(command):
        raise ConfigurationError("say what to run: either --handler MODULE:FUNCTION, or a command after --")
    return import_handler(name) if name else command_handler(command or ())


def _exit_code(*, dead: int, unfinished: int) -> int:
    return UNFINISHED if unfinished else SOME_DEAD if dead else COMPLETE


def _run_async(main: Callable[[], Awaitable[T]]) -> T:
    return anyio.run(main, backend_options={"use_uvloop": find_spec("uvloop") is not None})


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
