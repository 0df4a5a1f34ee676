"""``--processes``: real processes that share the work, are restarted when they die, and do not outlive their parent."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from s3queue import QueueStatus, open_queue
from s3queue.cli._app import run
from tests.conftest import client_of
from tests.servers._process import S3Server

HANDLERS = """
import os, pathlib, time

def pids():
    return pathlib.Path("pids")

def began(path):
    (pids() / str(os.getpid())).touch()
    pathlib.Path(f"{path}.began").touch()

def meets(path):
    began(path)
    while len(list(pids().iterdir())) < 3:
        time.sleep(0.01)
    print(f"output of {path}\\n", end="", flush=True)  # one write: two threads print
    return os.getpid()

def kills(path):
    began(path)
    if path.startswith("killer"):
        while len(list(pathlib.Path().glob("p*.began"))) < 20:
            time.sleep(0.01)
        time.sleep(1)  # a process tells its parent four times a second what it completed
        os._exit(9)
    return path

def dies(path):
    began(path)
    os._exit(0)

def slow(path):
    began(path)
    time.sleep(0.2 if path.startswith("quick") else 600)
"""


class Command:
    """A command with processes of its own, in a folder."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self._out = (folder / "out").open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "s3queue", *arguments], cwd=folder, stdout=self._out, stderr=subprocess.STDOUT
        )

    def until(self, what: Callable[[], bool]) -> None:
        """Wait for something that must happen; the test's own time limit ends it otherwise."""
        while not what():
            time.sleep(0.05)

    def wait(self, within: float = 90) -> int:
        return self.process.wait(within)

    def began(self, count: int) -> None:
        """Wait until so many calls of the handler have begun."""
        self.until(lambda: self.process.poll() is None and len(list(self.folder.glob("*.began"))) >= count)

    def children(self) -> list[int]:
        """Those of its processes that are there still, and ran a handler."""
        return [pid for pid in (int(path.name) for path in (self.folder / "pids").iterdir()) if alive(pid)]

    def said(self) -> str:
        return (self.folder / "out").read_text()

    def end(self) -> None:
        for pid in [self.process.pid, *self.children()]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self._out.close()


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


Start = Callable[..., Command]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder with a module of handlers in it."""
    (tmp_path / "jobs_of_processes.py").write_text(HANDLERS)
    (tmp_path / "pids").mkdir()
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts a `run` over these paths with a handler; whatever happens, nothing of it is left."""
    started = []

    def launch(handler: str, paths: list[str], *more: str, workspace: str = "ws") -> Command:
        (folder / "list").write_text("\n".join(paths))
        arguments = ["run", workspace, "--from-file", "list", "--handler", f"jobs_of_processes:{handler}", *more]
        started.append(Command(folder, *arguments))
        return started[-1]

    yield launch
    for command in started:
        command.end()


def status(workspace: str | Path) -> QueueStatus:
    async def main() -> QueueStatus:
        async with open_queue(str(workspace)) as queue:
            return await queue.status()

    return anyio.run(main)


def results(workspace: str | Path) -> dict[str, object]:
    async def main() -> dict[str, object]:
        async with open_queue(str(workspace)) as queue:
            return {result.path: result.result async for result in queue.results()}

    return anyio.run(main)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["folder", pytest.param("seaweed", marks=pytest.mark.server)])
def test_they_share_the_work(
    where: str, folder: Path, start: Start, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of three does a part; what handlers print is seen; the summary counts it all; nothing is left."""
    workspace = str(folder / "ws")
    if where == "seaweed":
        server: S3Server = request.getfixturevalue("seaweed")
        workspace = f"s3://{server.bucket}/{request.getfixturevalue('prefix')}"
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)

        async def make_bucket() -> None:
            async with client_of(server):
                pass

        anyio.run(make_bucket)
    paths = [f"p{i}" for i in range(90)]

    command = start("meets", paths, "--processes", "3", "--workers", "2", workspace=workspace)

    assert command.wait() == 0, command.said()
    found = results(workspace)
    assert sorted(found) == sorted(paths)
    assert len(set(found.values())) == 3
    assert {line for line in command.said().splitlines() if line.startswith("output of")} == {
        f"output of {path}" for path in paths
    }
    assert "90 groups done" in command.said()
    assert command.children() == []


@pytest.mark.slow
def test_who_dies_is_restarted(folder: Path, start: Start) -> None:
    """A path that kills its process is dead after its crashes were counted, by whoever took over; all else is done."""
    paths = [*(f"p{i}" for i in range(20)), "killer"]

    command = start("kills", paths, "--processes", "2", "--lease-ttl", "5", "--max-crashes", "2")

    assert command.wait() == 1, command.said()
    assert sorted(results(folder / "ws")) == sorted(paths[:-1])
    assert status(folder / "ws").dead == 1
    assert command.said().count("process.died") == 2
    assert "exit code 9" in command.said()
    # What a process had completed, and not yet told when it died, is done all the same, and not counted.
    assert re.search(r"(18|19|20) groups done", command.said())


@pytest.mark.slow
def test_who_dies_at_once_is_given_up(folder: Path, start: Start) -> None:
    """With an error that says so; also where the process ends itself with the exit code of success."""
    command = start("dies", [f"p{i}" for i in range(500)], "--processes", "2", "--workers", "1")

    assert command.wait() == 3
    assert "5 times in a row as soon as it was started" in command.said()
    assert command.children() == []


@pytest.mark.slow
def test_a_signal_drains_all(folder: Path, start: Start) -> None:
    """What ends within the grace is done, and the rest is handed back, in every process."""
    paths = ["slow-a", "slow-b", "slow-c", "slow-d", "quick-a", "quick-b"]
    command = start("slow", paths, "--processes", "2", "--workers", "3", "--grace", "2")
    command.began(6)

    command.process.send_signal(signal.SIGTERM)

    assert command.wait() == 3
    left = status(folder / "ws")
    assert (left.done, left.leased, left.expired, left.released) == (2, 0, 0, 4)
    assert "(stopped)" in command.said()
    assert command.children() == []


@pytest.mark.slow
def test_a_second_signal_ends_all_at_once(folder: Path, start: Start) -> None:
    """Nobody waits for anything, and nobody is left."""
    command = start("slow", ["slow-a", "slow-b"], "--processes", "2", "--workers", "1", "--grace", "500")
    command.began(2)
    children = command.children()
    assert len(children) == 2

    while command.process.poll() is None:
        command.process.send_signal(signal.SIGINT)
        time.sleep(0.1)

    assert command.wait() == -signal.SIGINT
    command.until(lambda: not any(alive(pid) for pid in children))


@pytest.mark.slow
def test_no_orphans(folder: Path, start: Start) -> None:
    """Children whose parent was killed drain and end."""
    command = start("slow", ["slow-a", "slow-b"], "--processes", "2", "--workers", "1", "--grace", "1")
    command.began(2)
    children = command.children()

    command.process.kill()

    command.until(lambda: not any(alive(pid) for pid in children))
    assert (status(folder / "ws").leased, status(folder / "ws").released) == (0, 2)


@pytest.mark.slow
def test_limits_are_for_all_of_them(folder: Path, start: Start) -> None:
    """So many groups together, and so much time, from the start of the command."""
    command = start("kills", [f"p{i}" for i in range(60)], "--processes", "3", "--max-groups", "7")
    assert command.wait() == 3, command.said()
    assert status(folder / "ws").done == 7
    assert "(--max-groups)" in command.said()
    assert "7 groups done" in command.said()

    command = start("kills", ["p0"], "--processes", "2", "--forever", "--max-runtime", "6s")
    assert command.wait() == 0, command.said()
    assert status(folder / "ws").complete


def test_nonsense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No processes are too few."""
    assert run(["work", str(tmp_path), "--processes", "0", "--handler", "json:loads"]) == 2
    assert "--processes" in capsys.readouterr().err
