"""What all commands share: the application, the workspace argument, exit codes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Annotated, TypeVar

import anyio
import typer

from s3queue._options import QueueOptions

__all__ = ["COMPLETE", "LOOK", "SOME_DEAD", "UNFINISHED", "USAGE", "AsJson", "Workspace", "app", "run_async"]

T = TypeVar("T")

COMPLETE, SOME_DEAD, USAGE, UNFINISHED = range(4)

#: For commands that only look, or act on single objects: nothing is proved on scratch keys first.
LOOK = QueueOptions(check_store=False)

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="A work queue whose only server is an object store. A WORKSPACE is s3://bucket/prefix or a folder.",
)  # fmt: skip

Workspace = Annotated[str, typer.Argument(metavar="WORKSPACE", help="s3://bucket/prefix or a folder")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, one line each.")]


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """Run a command's coroutine, on uvloop if it is installed."""
    return anyio.run(main, backend_options={"use_uvloop": find_spec("uvloop") is not None})
