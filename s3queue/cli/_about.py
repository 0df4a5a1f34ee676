"""What `s3queue` says of itself: its version, and what a shell needs to complete its commands."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import typer
import typer.completion

__all__ = ["show_completion", "show_version"]

#: typer's own `--show-completion` guesses the shell; what it prints is what we print for the shell that is named.
_completion: Any = typer.completion
# Registers the classes that answer the shells.
_completion.completion_init()


def show_version(wanted: bool) -> None:
    """Print it, if it is wanted, and exit."""
    if wanted:
        typer.echo(f"s3queue {version('s3queue')}")
        raise typer.Exit


def show_completion(shell: str | None) -> None:
    """Print the shell's script, if one is named, and exit."""
    if shell is not None:
        typer.echo(
            _completion.get_completion_script(prog_name="s3queue", complete_var="_S3QUEUE_COMPLETE", shell=shell)
        )
        raise typer.Exit
