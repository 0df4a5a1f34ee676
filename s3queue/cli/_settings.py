"""Settings that are not given as flags: from the environment, then from a file.

A setting is a flag of the commands that work, or a field of `QueueOptions`; its name is the flag's without the dashes.
In the environment it is ``S3QUEUE_`` and the name in capitals; in a file it is a key of ``s3queue.toml``, or of
``[tool.s3queue]`` in ``pyproject.toml``, in the current folder or the nearest one above that has either. What is to be
run (``--handler``, the command) is never a setting: who says it is who runs it.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from s3queue._errors import ConfigurationError
from s3queue._options import QueueOptions

__all__ = ["Setting", "Settings", "current", "is_setting", "options", "use"]

PREFIX = "S3QUEUE_"
_FILES = ("s3queue.toml", "pyproject.toml")
#: The one setting that is a table: extra arguments of every PUT, by their names in the SDK. Only a file has it.
_PUT_ARGS = "put-args"
#: Set for commands that we run, by ourselves.
_OURS = {"S3QUEUE_HASH", "S3QUEUE_EPOCH", "S3QUEUE_PATH", "S3QUEUE_DASHBOARD_TOKEN"}


@dataclass(frozen=True, slots=True)
class Setting:
    """A value as it was written, and where."""

    text: str
    #: The variable's name, or the file's and its table's.
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What environment and file say, by the settings' names; flags go before all of it."""

    values: Mapping[str, Setting] = field(default_factory=dict)
    put_args: Mapping[str, Any] = field(default_factory=dict)
    #: The file that was read, if there is one, and variables that look like ours but name no setting.
    file: Path | None = None
    strays: tuple[str, ...] = ()

    @classmethod
    def read(cls, names: Iterable[str], environment: Mapping[str, str], folder: Path) -> Settings:
        """Raises `ConfigurationError` for a file that cannot be read, and for what it has that is no setting."""
        known = {*names, *_option_types()}
        file, table = _find(folder)
        put_args = table.pop(_PUT_ARGS, table.pop(_PUT_ARGS.replace("-", "_"), {}))
        if not isinstance(put_args, dict):
            raise ConfigurationError(f"{file}: {_PUT_ARGS} must be a table of arguments, as ServerSideEncryption")
        values = _of_file(table, known, str(file))
        strays = []
        for variable, text in sorted(environment.items()):
            name = variable.removeprefix(PREFIX).lower().replace("_", "-")
            if variable.startswith(PREFIX) and name in known and text:
                values[name] = Setting(text, variable)
            elif variable.startswith(PREFIX) and name not in known and variable not in _OURS:
                strays.append(variable)
        return cls(values, put_args, file, tuple(strays))

    def options(self, **flags: Any) -> QueueOptions:
        """The queue's options: flags, then what is set, then the defaults. Raises `ConfigurationError`."""
        found: dict[str, Any] = {}
        for name, kind in _option_types().items():
            setting = self.values.get(name)
            key = name.replace("-", "_")
            if key not in flags and setting is not None:
                found[key] = _converted(name, setting, kind)
        return QueueOptions(**found, **flags)


_current: ContextVar[Settings | None] = ContextVar("s3queue_settings", default=None)


def use(settings: Settings) -> None:
    """Make these the settings of the command that runs."""
    _current.set(settings)


def current() -> Settings:
    """The settings of the command that runs."""
    return _current.get() or Settings()


def options(**flags: Any) -> QueueOptions:
    """The options of the command that runs. Raises `ConfigurationError`."""
    return current().options(**flags)


def is_setting(option: str) -> bool:
    """Whether a setting has the name of this flag, ``--claim-ahead`` for one; not each has a flag of its own."""
    return option.lstrip("-") in _option_types()


def _option_types() -> dict[str, type]:
    return {f.name.replace("_", "-"): type(f.default) for f in dataclasses.fields(QueueOptions)}


def _find(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    for above in (folder, *folder.parents):
        for name in _FILES:
            table = _read(above / name)
            if table is not None:
                return above / name, table
    return None, {}


def _read(file: Path) -> dict[str, Any] | None:
    """The file's settings; None if there are none."""
    try:
        data = tomllib.loads(file.read_bytes().decode("utf-8"))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    if file.name == _FILES[0]:
        return data
    tools = data.get("tool", {})
    table = tools.get("s3queue") if isinstance(tools, dict) else None
    if table is not None and not isinstance(table, dict):
        raise ConfigurationError(f"{file}: [tool.s3queue] must be a table")
    return table


def _of_file(table: Mapping[str, Any], known: Iterable[str], file: str) -> dict[str, Setting]:
    values = {}
    for key, value in table.items():
        name = key.replace("_", "-")
        if name not in known:
            raise ConfigurationError(f"{file}: {key!r} is no setting of s3queue: `s3queue config` lists them")
        if not isinstance(value, (str, int, float, bool)):
            raise ConfigurationError(f"{file}: {key!r} must be a single value, not {type(value).__name__}")
        values[name] = Setting(str(value).lower() if isinstance(value, bool) else str(value), file)
    return values


_TRUE, _FALSE = {"1", "true", "t", "yes", "y", "on"}, {"0", "false", "f", "no", "n", "off"}


def _converted(name: str, setting: Setting, kind: type) -> Any:
    try:
        if kind is bool:
            return _boolean(setting.text)
        return kind(setting.text)
    except ValueError:
        raise ConfigurationError(
            f"{setting.source}: {name} must be {_WORDS.get(kind, 'a number')}, not {setting.text!r}"
        ) from None


_WORDS = {bool: "true or false", int: "a whole number"}


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE | _FALSE:
        return text.lower() in _TRUE
    raise ValueError(text)
