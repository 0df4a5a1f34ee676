"""How the command line says things: numbers with their nouns, and messages of other layers in the words of flags."""

from __future__ import annotations

import re
from collections.abc import Container

import typer

__all__ = ["counted", "in_flags", "plain_usage", "say_no_groups"]

_OPTION = re.compile(r"QueueOptions\.(\w+)")
#: What the library below typer says, which means little to whoever typed a flag.
_USAGE = (
    ("Value error, ", ""),
    ("Input should be a valid integer, unable to parse string as an integer", "write a whole number"),
    ("Input should be a valid number, unable to parse string as a number", "write a number"),
)


def counted(count: int, noun: str) -> str:
    """``1 group``, ``2 groups``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def say_no_groups(workspace: str) -> None:
    """Of a workspace without groups, on standard error: most likely its name is misspelled."""
    remedy = f"check its name, or add some with `s3queue populate {workspace} …`"
    typer.echo(f"s3queue: no groups in {workspace}: {remedy}", err=True)


def in_flags(message: str, flags: Container[str]) -> str:
    """The message with options of the Python interface called by their flags; those without one are settings."""

    def name(match: re.Match[str]) -> str:
        setting = match[1].replace("_", "-")
        return f"--{setting}" if setting in flags else f"the setting {setting}"

    return _OPTION.sub(name, message)


def plain_usage(message: str, *, missing_dashes: bool) -> str:
    """A usage error in plain words; `missing_dashes` says that a command may stand where ``--`` was forgotten."""
    for theirs, ours in _USAGE:
        message = message.replace(theirs, ours)
    if missing_dashes and message.startswith("No such option"):
        message = message.rstrip(".") + ": if it belongs to the command to run, write -- before that command"
    return message
