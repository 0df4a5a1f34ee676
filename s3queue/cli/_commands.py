"""Handlers that the command line names: an importable function, or a command that runs as a process of its own."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

import anyio
from anyio.abc import ByteReceiveStream, Process

from s3queue._errors import ConfigurationError, HandlerError
from s3queue._handlers import Handler, current_item
from s3queue._model import WorkItem
from s3queue._progress import RESULT_LIMIT
from s3queue._tasks import task_group

__all__ = ["command_handler", "fetched_from", "import_handler"]

#: The path whose copy the calling handler works on.
fetched_from: ContextVar[str | None] = ContextVar("s3queue_fetched_from", default=None)

_TAIL = 16 * 1024
#: What a cancelled command gets between SIGTERM and SIGKILL.
_PATIENCE = 5.0


def import_handler(name: str) -> Handler:
    """The function that ``package.module:function`` names. Raises `ConfigurationError`."""
    module_name, _, attributes = name.partition(":")
    if not module_name or not attributes:
        raise ConfigurationError(f"--handler {name!r}: write package.module:function")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
        for attribute in attributes.split("."):
            found = getattr(found, attribute)
    except Exception as error:  # whatever the user's module does wrong while it is imported
        raise ConfigurationError(f"--handler {name!r}: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise ConfigurationError(f"--handler {name!r} is not a function")
    return found  # type: ignore[no-any-return]


def command_handler(command: Sequence[str], *, keep_stdout: bool = False) -> Callable[[WorkItem | str], Awaitable[Any]]:
    """A handler that runs `command` with each ``{}`` replaced by the path; of a whole group, by all its paths.

    No shell is involved. Exit code 0 is success. The command finds the group's name and epoch in ``S3QUEUE_HASH`` and
    ``S3QUEUE_EPOCH``, and its path, as it was populated, in ``S3QUEUE_PATH``.

    With `keep_stdout` its standard output is the result: as JSON if it is that, else as text. Raises
    `ConfigurationError` if there is no ``{}``, or no such command: it would fail on every path until all are dead.
    """
    if not any("{}" in part for part in command[1:]):
        raise ConfigurationError("the command has no {}: write it where the path belongs, as in -- wc -w {}")

    if "{}" not in command[0] and shutil.which(command[0]) is None:
        raise ConfigurationError(f"the command {command[0]!r} is not found here: install it, or write its whole path")

    async def run_command(work: WorkItem | str) -> Any:
        item = current_item()
        environment = {**os.environ, "S3QUEUE_HASH": item.hash, "S3QUEUE_EPOCH": str(item.epoch)}
        if isinstance(work, str):
            environment["S3QUEUE_PATH"] = fetched_from.get() or work
        output = await _run(_filled(command, work), environment, keep_stdout)
        return _parsed(output) if keep_stdout else None

    run_command.__qualname__ = command[0]
    return run_command


def _filled(command: Sequence[str], work: WorkItem | str) -> list[str]:
    if isinstance(work, str):
        return [part.replace("{}", work) for part in command]
    filled: list[str] = []
    for part in command:
        if part == "{}":
            filled += work.work_paths
        else:
            filled.append(part.replace("{}", " ".join(work.work_paths)))
    return filled


async def _run(command: list[str], environment: dict[str, str], keep_stdout: bool) -> bytes:
    """Its standard output, if that is wanted. Raises `HandlerError` unless it ends with exit code 0."""
    try:
        # A session of its own: the terminal's Ctrl-C is for us to handle, and a kill reaches what the command started.
        process = await anyio.open_process(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if keep_stdout else None,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        raise HandlerError(f"{command[0]} cannot be started: {error}", detail="") from error
    output, errors = _Collected(RESULT_LIMIT + 1, tail=False), _Collected(_TAIL, tail=True)
    try:
        async with task_group() as tasks:
            tasks.start_soon(output.read, process.stdout)
            tasks.start_soon(errors.read, process.stderr)
        code = await process.wait()
    finally:
        await _end(process)
    told = errors.data.decode("utf-8", "replace")
    if code != 0:
        what = f"exit code {code}" if code > 0 else f"killed by {signal.Signals(-code).name}"
        last = told.strip().splitlines()[-1:] or [""]
        raise HandlerError(f"{command[0]}: {what}: {last[0]}".rstrip(": "), detail=told)
    if len(output.data) > RESULT_LIMIT:
        raise HandlerError(
            f"{command[0]}: its output is more than {RESULT_LIMIT:,} bytes: write it to the store and print a reference"
        )
    return output.data


class _Collected:
    """What a command writes: the first bytes, or the last ones; the rest is read and dropped."""

    def __init__(self, limit: int, *, tail: bool) -> None:
        self.data = b""
        self._limit = limit
        self._tail = tail

    async def read(self, stream: ByteReceiveStream | None) -> None:
        if stream is None:
            return
        async for chunk in stream:
            both = self.data + chunk
            self.data = both[-self._limit :] if self._tail else both[: self._limit]


def _parsed(output: bytes) -> Any:
    text = output.decode("utf-8", "replace").strip()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


async def _end(process: Process) -> None:
    """Leave no process behind, whatever happened."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            _signal(process, signal.SIGTERM)
            with anyio.move_on_after(_PATIENCE):
                await process.wait()
        if process.returncode is None:
            _signal(process, signal.SIGKILL)
        await process.aclose()


def _signal(process: Process, number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return
