"""What the tests of the command line share: a folder to be in, with handlers to name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers._process import S3Server

HANDLERS = """
import os, pathlib, time

def shout(path):
    return path.upper()

def size(item):
    return len(item.work_paths)

def fails(path):
    raise ValueError("no such luck")

def slow(path):
    pathlib.Path(path + ".began").touch()
    time.sleep(0.2 if path.endswith("quick") else 60)

async def slow_async(path):
    import anyio
    pathlib.Path(path + ".began").touch()
    await anyio.sleep(0.2 if path.endswith("quick") else 60)

nothing = 3
"""


def job_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make this the current folder, and put a module of handlers into it."""
    (path / "jobs_of_test.py").write_text(HANDLERS)
    monkeypatch.chdir(path)
    monkeypatch.syspath_prepend(str(path))
    return path


def configure(monkeypatch: pytest.MonkeyPatch, server: S3Server) -> None:
    """Let commands find this server."""
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
