"""`s3queue doctor`: what works, how fast, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import json

import typer
from rich.console import Console
from rich.text import Text

from s3queue._doctor import Diagnosis, diagnose
from s3queue._events import Events
from s3queue._runtime import Runtime
from s3queue.cli._base import COMPLETE, UNFINISHED, USAGE, AsJson, Workspace, app, put_args_of, run_async
from s3queue.cli._settings import options
from s3queue.stores._open import open_store

__all__: list[str] = []

#: A person waits: a store that is silent is given up sooner than a worker would.
_PATIENCE = 5.0
_STYLES = {"ok": "green", "note": "yellow", "failed": "bold red", "unanswered": "bold red", "skipped": "dim"}


@app.command()
def doctor(workspace: Workspace, as_json: AsJson = False) -> int:
    """Try everything that s3queue needs of the store: permissions, conditions, speed; with remedies.

    It works on scratch keys below store_check/, which it removes, and leaves the workspace's groups alone. It takes
    some seconds and a few thousand requests (on S3 up to five cents).

    Exit codes: 0 all is well, 2 something must be put right, 3 the store gave no answer.

    Example: s3queue doctor s3://bucket/ws
    """
    console = Console()

    def tell(line: Diagnosis) -> None:
        if as_json:
            typer.echo(json.dumps(dataclasses.asdict(line)))
        else:
            _show(console, line)

    async def main() -> list[Diagnosis]:
        settings, runtime = options(request_timeout=_PATIENCE, retry_for=_PATIENCE), Runtime()
        put_args = put_args_of(workspace)
        async with open_store(workspace, options=settings, runtime=runtime, put_args=put_args) as store:
            return await diagnose(store, settings, runtime, Events(), tell)

    verdicts = {line.verdict for line in run_async(main)}
    return USAGE if "failed" in verdicts else UNFINISHED if "unanswered" in verdicts else COMPLETE


def _show(console: Console, line: Diagnosis) -> None:
    took = f" ({_duration(line.seconds)})" if line.seconds is not None else ""
    text = Text.assemble((f"{line.verdict:<11}", _STYLES[line.verdict]), f"{line.name}: {line.found}{took}")
    console.print(text, soft_wrap=True, highlight=False)
    if line.remedy:
        console.print(f"{'':<11}  {line.remedy}", markup=False, highlight=False, soft_wrap=True)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
