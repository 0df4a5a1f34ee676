"""What all commands share: the application, the workspace argument, exit codes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio
import typer

from s3queue import _keys as keys
from s3queue._errors import ConfigurationError
from s3queue._events import Observer
from s3queue._options import QueueOptions
from s3queue._queue import WorkQueue, open_queue
from s3queue.cli._settings import current, options
from s3queue.cli._words import no_groups
from s3queue.stores._open import is_s3

__all__ = [
    "COMPLETE",
    "SOME_DEAD",
    "UNFINISHED",
    "USAGE",
    "AsJson",
    "Workspace",
    "app",
    "has_groups",
    "looking_at",
    "put_args_of",
    "require_folder",
    "require_groups",
    "run_async",
    "working_on",
]

T = TypeVar("T")

COMPLETE, SOME_DEAD, USAGE, UNFINISHED = range(4)

app = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False,
    help="A work queue whose only server is an object store. A WORKSPACE is s3://bucket/prefix or a folder.",
    epilog="For completion in bash: eval \"$(s3queue --show-completion bash)\". Settings also come from S3QUEUE_… "
    "variables and from a file: see `s3queue config --help`. Credentials, region and endpoint come from the ordinary "
    "AWS configuration.",
)  # fmt: skip

Workspace = Annotated[str, typer.Argument(metavar="WORKSPACE", help="s3://bucket/prefix or a folder")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON, one object a line.")]


def run_async(main: Callable[[], Awaitable[T]]) -> T:
    """Run a command's coroutine, on uvloop if it is installed."""
    return anyio.run(main, backend_options={"use_uvloop": find_spec("uvloop") is not None})


def looking_at(workspace: str) -> AbstractAsyncContextManager[WorkQueue]:
    """A queue for commands that only look, or act on single objects: nothing is proved on scratch keys first."""
    return working_on(workspace, options(check_store=False))


def working_on(
    workspace: str, settings: QueueOptions, observer: Observer | None = None
) -> AbstractAsyncContextManager[WorkQueue]:
    """The workspace's queue."""
    return open_queue(workspace, options=settings, put_args=put_args_of(workspace), observer=observer)


async def has_groups(queue: WorkQueue) -> bool:
    """Whether the workspace has an index. By a listing, which also tells a bucket that does not exist."""
    return bool((await queue.backend.store.list(keys.INDEX)).objects)


async def require_groups(queue: WorkQueue, workspace: str) -> None:
    """Raises `ConfigurationError` for a workspace without groups; asked where there was nothing to do, or to show."""
    if not await has_groups(queue):
        raise ConfigurationError(no_groups(workspace))


def require_folder(workspace: str) -> None:
    """Raises `ConfigurationError` for a folder that does not exist, which the start-up check would make."""
    if not is_s3(workspace) and not Path(workspace).exists():
        raise ConfigurationError(no_groups(workspace))


def put_args_of(workspace: str) -> dict[str, Any] | None:
    """The extra arguments of PUTs that are set; a folder takes none."""
    return dict(current().put_args) or None if is_s3(workspace) else None
