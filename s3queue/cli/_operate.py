"""The commands for looking at a workspace, and for acting on its groups."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from s3queue._errors import ConfigurationError
from s3queue._model import FailedAttempt, FailedGroup, Finding, QueueStatus
from s3queue.cli._base import (
    COMPLETE,
    SOME_DEAD,
    UNFINISHED,
    AsJson,
    Workspace,
    app,
    looking_at,
    require_groups,
    run_async,
)
from s3queue.cli._display import show_failures, show_findings, show_history, show_status
from s3queue.cli._export import export
from s3queue.cli._watch import follow, status_fields
from s3queue.cli._words import counted, no_groups

__all__: list[str] = []

Hashes = Annotated[list[str], typer.Argument(metavar="HASH", help="Groups, by their hashes.")]


@app.command()
def status(
    workspace: Workspace,
    as_json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on counting, until everything is done.")] = False,
    interval: Annotated[
        float, typer.Option(metavar="S", min=0.1, help="Seconds between two looks; more if a look takes long.")
    ] = 2.0,
) -> int:
    """Count the groups of the workspace; with --watch, show also who works, how fast, and what failed last.

    A later look of --watch lists only what may have changed. Without a terminal it is a line (with --json, an object)
    a look.

    Exit codes: 0 everything is done, 1 some groups are dead, 3 unfinished.

    Examples:

      s3queue status s3://bucket/ws --watch

      s3queue status s3://bucket/ws --json | jq .free
    """

    async def main() -> QueueStatus:
        async with looking_at(workspace) as queue:
            if watch:
                return await follow(queue.watch(), Console(), interval=interval, as_json=as_json)
            return await queue.status()

    counts = run_async(main)
    if not counts.groups:
        raise ConfigurationError(no_groups(workspace))
    if not watch and as_json:
        typer.echo(json.dumps(status_fields(counts)))
    elif not watch:
        show_status(Console(), counts)
    unfinished = counts.groups - counts.done - counts.dead
    return UNFINISHED if unfinished else SOME_DEAD if counts.dead else COMPLETE


@app.command()
def results(
    workspace: Workspace,
    form: Annotated[Literal["jsonl", "csv"], typer.Option("--format", help="An object, or a row, a path.")] = "jsonl",
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to write; else standard output.")] = None,
) -> int:
    """Export what the handlers returned: each finished path once, also of groups that are not complete.

    Example: s3queue results s3://bucket/ws --format csv --output results.csv
    """

    async def main() -> int:
        async with looking_at(workspace) as queue:
            count = await export(queue.results(), form, output)
            if not count:
                await require_groups(queue, workspace)
            return count

    count = run_async(main)
    if output is not None:
        Console().print(f"{counted(count, 'result')}: {output}", markup=False, soft_wrap=True)
    return COMPLETE


@app.command()
def failures(
    workspace: Workspace,
    named: Annotated[
        list[str] | None, typer.Argument(metavar="HASH", help="Show every attempt at this group.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Show the groups that are dead or wait after a failure; of one group, every failed attempt in full.

    `failures WORKSPACE HASH` and `failures WORKSPACE show HASH` are the same.

    Examples:

      s3queue failures s3://bucket/ws

      s3queue failures s3://bucket/ws --json | jq -r '.work_paths[]'
    """
    group = _the_one(named or [])

    async def main() -> Sequence[FailedGroup | FailedAttempt]:
        async with looking_at(workspace) as queue:
            found = await (queue.failures() if group is None else queue.history(group))
            if not found:
                await require_groups(queue, workspace)
            return found

    found = run_async(main)
    if as_json:
        _echo(found)
    elif group is None:
        show_failures(Console(), [one for one in found if isinstance(one, FailedGroup)])
    else:
        show_history(Console(), [one for one in found if isinstance(one, FailedAttempt)])
    return COMPLETE


@app.command()
def retry(
    workspace: Workspace,
    hashes: Annotated[list[str] | None, typer.Argument(metavar="HASH", help="Groups to retry.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All that `failures` lists.")] = False,
    error: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Those whose last error matches.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Give dead and waiting groups a clean slate, so that workers claim them now; their history stays.

    Examples:

      s3queue retry s3://bucket/ws --all

      s3queue retry s3://bucket/ws --error 'Timeout|503'
    """
    if [bool(hashes), everything, error is not None].count(True) != 1:
        raise ConfigurationError("say which groups: their hashes, or --all, or --error REGEX")
    matches = _pattern(error or "")

    async def main() -> int:
        async with looking_at(workspace) as queue:
            wanted = hashes or [group.hash for group in await queue.failures() if everything or _says(group, matches)]
            retried = await queue.retry(wanted)
            if not retried:
                await require_groups(queue, workspace)
            return retried

    retried = run_async(main)
    _tell(as_json, {"retried": retried}, f"{counted(retried, 'group')} made claimable again")
    return COMPLETE


@app.command()
def release(
    workspace: Workspace,
    group: Annotated[str, typer.Argument(metavar="HASH", help="The group, by its hash.")],
    force: Annotated[bool, typer.Option("--force", help="An owner that is alive loses its work.")] = False,
    as_json: AsJson = False,
) -> int:
    """Break a stuck lease: the group is free at once, at the same epoch, with the progress that is on record.

    Example: s3queue release s3://bucket/ws 3f786850e387550fdab836ed7e6dc881de23001b --force
    """
    if not force:
        raise ConfigurationError(
            "a lease runs out by itself when its owner is dead; to break one whose owner may be alive, add --force"
        )

    async def main() -> bool:
        async with looking_at(workspace) as queue:
            return await queue.break_lease(group)

    broken = run_async(main)
    said = "the group is free" if broken else "nobody holds the group: nothing was changed"
    _tell(as_json, {"released": broken}, said)
    return COMPLETE


@app.command()
def reset(workspace: Workspace, hashes: Hashes, as_json: AsJson = False) -> int:
    """Run finished groups again, under new hashes; their old completions stay in the workspace as history.

    Example: s3queue reset s3://bucket/ws 3f786850e387550fdab836ed7e6dc881de23001b
    """

    async def main() -> dict[str, str]:
        async with looking_at(workspace) as queue:
            return await queue.reset(hashes)

    for old, new in run_async(main).items():
        _tell(as_json, {"old": old, "new": new}, f"{old} runs again as {new}")
    return COMPLETE


@app.command()
def sweep(workspace: Workspace, as_json: AsJson = False) -> int:
    """Delete the locks that crashed owners left behind on finished groups. Workers do it too, as they come by.

    Example: s3queue sweep s3://bucket/ws
    """

    async def main() -> int:
        async with looking_at(workspace) as queue:
            deleted = await queue.sweep()
            if not deleted:
                await require_groups(queue, workspace)
            return deleted

    deleted = run_async(main)
    _tell(as_json, {"deleted": deleted}, f"{counted(deleted, 'lock')} deleted")
    return COMPLETE


@app.command()
def check(workspace: Workspace, as_json: AsJson = False) -> int:
    """Read everything and report each inconsistency. Exit code 0 if there is none, 1 otherwise.

    Example: s3queue check s3://bucket/ws --json
    """

    async def main() -> list[Finding]:
        async with looking_at(workspace) as queue:
            found = [finding async for finding in queue.check()]
            if not found:
                await require_groups(queue, workspace)
            return found

    found = run_async(main)
    if as_json:
        _echo(found)
    else:
        show_findings(Console(), found)
    return SOME_DEAD if found else COMPLETE


def _echo(found: Sequence[FailedGroup | FailedAttempt | Finding]) -> None:
    for one in found:
        typer.echo(json.dumps(dataclasses.asdict(one), ensure_ascii=False))


def _tell(as_json: bool, values: dict[str, Any], text: str) -> None:
    if as_json:
        typer.echo(json.dumps(values))
    else:
        Console().print(text, markup=False, highlight=False, soft_wrap=True)


def _the_one(named: Sequence[str]) -> str | None:
    """The hash, with or without the word ``show`` before it; None for none. Raises `ConfigurationError` for several."""
    hashes = named[1:] if named[:1] == ["show"] else named
    if len(hashes) > 1:
        raise ConfigurationError("failures shows one group, or all: name one hash, or none")
    return hashes[0] if hashes else None


def _says(group: FailedGroup, matches: re.Pattern[str]) -> bool:
    """Whether the group's last error, or one of its paths', matches."""
    errors = [path.error for path in group.paths]
    if group.last is not None:
        errors.append(f"{group.last.kind}: {group.last.error}")
    return any(matches.search(error) for error in errors)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ConfigurationError(f"--error {text!r} is no regular expression: {error}") from error
