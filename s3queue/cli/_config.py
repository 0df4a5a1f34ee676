"""Which settings there are, what they are for the commands, and `s3queue config`, which says where each comes from."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from s3queue._options import QueueOptions
from s3queue.cli._base import COMPLETE, AsJson, app
from s3queue.cli._settings import Settings, current

__all__ = ["WORKING", "defaults_for", "names_of_flags", "read_settings", "source_of", "takers_of"]

#: The commands whose flags are settings, and those of their flags that are not: what to do, and for this time only.
WORKING = ("populate", "work", "run")
_NOT_SET = {"input", "from-file", "handler", "result", "once", "max-groups", "json", "help"}


def read_settings(group: Any) -> Settings:
    """The settings for this application's commands. Raises `ConfigurationError`."""
    return Settings.read(names_of_flags(group), os.environ, Path.cwd())


def names_of_flags(group: Any) -> frozenset[str]:
    """The flags that are settings, without their dashes."""
    return frozenset(_name(flag) for command in WORKING for flag in _flags(group.commands[command]))


def defaults_for(group: Any, settings: Settings) -> dict[str, Any]:
    """What is set, as defaults of each command's flags."""
    return {
        command: {
            flag.name: settings.values[_name(flag)].text
            for flag in _flags(group.commands[command])
            if _name(flag) in settings.values
        }
        for command in WORKING
    }


def source_of(error: Any) -> str:
    """Where the value that a usage error complains about was set; "" if it was a flag's."""
    flag, context = getattr(error, "param", None), getattr(error, "ctx", None)
    if flag is None or context is None or not getattr(flag, "opts", None):
        return ""
    given = context.get_parameter_source(flag.name)
    setting = current().values.get(_name(flag))
    return f" (set by {setting.source})" if setting and getattr(given, "name", "") == "DEFAULT_MAP" else ""


def takers_of(group: Any, option: str) -> list[str]:
    """The commands that have this option; not asked of ``-w``, which may be that of any program."""
    commands = group.commands.items() if option.startswith("--") else ()
    return [name for name, command in commands if any(option in param.opts for param in command.params)]


def _flags(command: Any) -> Iterator[Any]:
    return (
        param
        for param in command.params
        if getattr(param, "param_type_name", "") == "option" and _name(param) not in _NOT_SET
    )


def _name(flag: Any) -> str:
    return str(flag.opts[0]).lstrip("-")


@app.command()
def config(context: typer.Context, as_json: AsJson = False) -> int:
    """Show every setting, and where its value comes from.

    A flag goes before an environment variable, and that before a file. The variable is S3QUEUE_ and the flag's name in
    capitals, such as S3QUEUE_LEASE_TTL. The file is s3queue.toml, or pyproject.toml with [tool.s3queue], in the current
    folder or the nearest one above that has either; its keys are the flags' names. The options of the Python interface
    that have no flag (claim-ahead, connections, …) can be set as well. What to run and for how long this time (--input,
    --from-file, --handler, --result, --once, --max-groups) is never a setting. In a file, the table put-args holds
    extra arguments of every write to S3, such as ServerSideEncryption.

    Example: S3QUEUE_WORKERS=32 s3queue config
    """
    settings = current()
    rows = _rows(context.find_root().command, settings)
    if as_json:
        for name, value, source in rows:
            typer.echo(json.dumps({"name": name, "value": value, "source": source}))
        return COMPLETE
    console = Console()
    wide, wider = (max(len(row[column]) for row in rows) + 2 for column in (0, 1))
    for name, value, source in rows:
        console.print(f"{name:<{wide}}{value:<{wider}}{source}", markup=False, highlight=False, soft_wrap=True)
    for variable in settings.strays:
        console.print(f"{variable} names no setting", markup=False, highlight=False, soft_wrap=True)
    return COMPLETE


def _rows(group: Any, settings: Settings) -> list[tuple[str, str, str]]:
    defaults = {f.name.replace("_", "-"): f.default for f in dataclasses.fields(QueueOptions)}
    defaults |= {_name(flag): flag.default for command in WORKING for flag in _flags(group.commands[command])}
    rows = [_row(name, default, settings.values) for name, default in sorted(defaults.items())]
    # Names alone: a value may be a secret (SSECustomerKey is one).
    return rows + [(f"put-args.{name}", "(set)", str(settings.file)) for name in sorted(settings.put_args)]


def _row(name: str, default: Any, values: Mapping[str, Any]) -> tuple[str, str, str]:
    setting = values.get(name)
    if setting is not None:
        return name, setting.text, setting.source
    text = str(default).lower() if isinstance(default, bool) else "" if default is None else str(default)
    return name, text, "default"
