"""How the command line says things: numbers with their nouns, and messages of other layers in the words of flags."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

__all__ = ["about_option", "counted", "in_flags", "no_groups", "plain_usage"]

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


def no_groups(workspace: str) -> str:
    """Of a workspace without groups: most likely its name is misspelled."""
    return f"no groups in {workspace}: check its name, or add some with `s3queue populate {workspace} …`"


def in_flags(message: str, flags: Container[str]) -> str:
    """The message with what it says of the Python interface called by its flag, or as the setting that it is."""

    def name(match: re.Match[str]) -> str:
        setting = match[1].replace("_", "-")
        return f"--{setting}" if setting in flags else f"the setting {setting}"

    argument = message.partition(" must be ")[0].replace("_", "-")
    if argument in flags:
        message = f"--{argument}{message[len(argument) :]}"
    return _OPTION.sub(name, message)


def plain_usage(message: str) -> str:
    """A usage error in plain words."""
    for theirs, ours in _USAGE:
        message = message.replace(theirs, ours)
    return message


def about_option(option: str, *, takers: Sequence[str], is_setting: bool, is_before_dashes: bool) -> str:
    """What to say of an option that a command does not have, and the commands `takers` have."""
    name = option.lstrip("-")
    if takers:
        have = "has" if len(takers) == 1 else "have"
        return f": {' and '.join(f'`s3queue {taker}`' for taker in takers)} {have} it"
    if is_setting:
        variable = "S3QUEUE_" + name.upper().replace("-", "_")
        return f": it is a setting without a flag: write {variable}=…, or {name} = … in s3queue.toml"
    return "" if is_before_dashes else ": if it belongs to the command to run, write -- before that command"
