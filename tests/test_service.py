"""Pools inside a service: a FastAPI application in a real uvicorn process, other hosts, and one client for them all."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp.web
import anyio
import pytest
from aiobotocore.session import AioSession

from s3queue import DamagedWorkspace, QueueStatus, open_client, open_queue
from s3queue import _keys as keys
from tests.conftest import client_of
from tests.servers._process import HOST, S3Server, free_port

ROOT = Path(__file__).parent.parent


class Service:
    """A uvicorn process, and its two workspaces."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, workspaces: list[str], folder: Path) -> None:
        self.process = process
        self.workspaces = workspaces
        self._url = f"http://{HOST}:{port}"
        self._folder = folder

    def ask(self, path: str, body: Any = None, *, post: bool = False) -> Any:
        request = urllib.request.Request(
            self._url + path, None if body is None and not post else json.dumps(body).encode()
        )
        request.add_header("content-type", "application/json")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def until(self, what: Callable[[], bool]) -> None:
        """Wait for something that must happen; the test's own time limit ends it otherwise."""
        while not what():
            assert self.process.poll() is None, self.log()
            time.sleep(0.05)

    def said(self, event: str) -> list[str]:
        """The paths of which the service said so."""
        ledger = self._folder / "ledger"
        facts = [json.loads(line) for line in ledger.read_text().splitlines()] if ledger.exists() else []
        return [fact["path"] for fact in facts if fact["event"] == event]

    def log(self) -> str:
        return (self._folder / "log").read_text()

    def statuses(self) -> list[QueueStatus]:
        async def main() -> list[QueueStatus]:
            found = []
            for workspace in self.workspaces:
                async with open_queue(workspace) as queue:
                    found.append(await queue.status())
            return found

        return anyio.run(main)


@contextmanager
def service(workspaces: list[str], folder: Path) -> Iterator[Service]:
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "tests.service_app:app", "--host", HOST, "--port", str(port)]
    environment = {
        **os.environ,
        "SERVICE_WORKSPACES": " ".join(workspaces),
        "SERVICE_LEDGER": str(folder / "ledger"),
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        made = Service(process, port, workspaces, folder)
        made.until(lambda: "Uvicorn running" in made.log())
        yield made
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=["folder", pytest.param("seaweed", marks=pytest.mark.server)])
def workspaces(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two workspaces, to which ordinary configuration leads."""
    if request.param == "folder":
        return [str(tmp_path / "one"), str(tmp_path / "other")]
    server: S3Server = request.getfixturevalue("seaweed")
    prefix: str = request.getfixturevalue("prefix")
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)

    async def make_bucket() -> None:
        async with client_of(server):
            pass

    anyio.run(make_bucket)
    return [f"s3://{server.bucket}/{prefix}/{name}" for name in ("one", "other")]


@pytest.mark.slow
def test_in_uvicorn(workspaces: list[str], tmp_path: Path) -> None:
    """Pools work beside the requests; on SIGTERM what runs ends within the grace, and the rest is handed back."""
    with service(workspaces, tmp_path) as running:
        assert [pool["state"] for pool in running.ask("/stats")] == ["running", "running"]

        for number in (0, 1):
            assert running.ask(f"/paths/{number}", [f"quick-{number}-{i}" for i in range(20)]) == 20
        running.until(lambda: [pool["done_paths"] for pool in running.ask("/stats")] == [20, 20])

        running.ask("/pause/0", post=True)
        for number in (0, 1):
            assert running.ask(f"/paths/{number}", [f"quick-{number}-more"]) == 1
        running.until(lambda: running.ask("/stats")[1]["done_paths"] == 21)
        assert (running.ask("/stats")[0]["state"], running.ask("/stats")[0]["done_paths"]) == ("paused", 20)
        running.ask("/resume/0?workers=3", post=True)
        running.until(lambda: running.ask("/stats")[0]["done_paths"] == 21)

        running.ask("/paths/0", ["while-a", "slow-a", "slow-b"])
        running.ask("/paths/1", ["while-b", "slow-c"])
        running.until(lambda: [pool["running"] for pool in running.ask("/stats")] == [3, 2])
        running.process.send_signal(signal.SIGTERM)
        code = running.process.wait(60)

        # uvicorn ends as the signal would have ended it, after an orderly shutdown.
        assert code in (0, -signal.SIGTERM)
        assert "Application shutdown complete" in running.log()
        assert "Traceback" not in running.log()
        assert sorted(set(running.said("began")) - set(running.said("ended"))) == ["slow-a", "slow-b", "slow-c"]
        left = [(status.groups - status.done, status.released) for status in running.statuses()]
    assert left == [(2, 2), (1, 1)]


@pytest.mark.slow
def test_an_error_in_uvicorn(tmp_path: Path) -> None:
    """What ends a pool comes out of the lifespan, is in the server's log, and is seen by a health check."""
    with service([str(tmp_path / "one"), str(tmp_path / "other")], tmp_path) as running:
        running.ask("/paths/0", ["quick-a"])
        running.until(lambda: running.ask("/stats")[0]["done_paths"] == 1)

        (tmp_path / "one" / keys.INDEX).write_bytes(b"garbage")

        running.until(lambda: running.ask("/stats")[0]["state"] == "failed")
        running.until(lambda: "DamagedWorkspace" in running.log())
        assert "DamagedWorkspace" in running.ask("/stats")[0]["error"]
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(60)


@pytest.mark.parametrize("ending", ["leaves", "fails"])
def test_in_aiohttp(ending: str, tmp_path: Path) -> None:
    """A pool in an application's cleanup context: it starts with the server and ends with it, whatever ends that."""
    ran: list[str] = []
    ended = anyio.Event()

    async def convert(path: str) -> None:
        ran.append(path)
        if len(ran) == 3:
            ended.set()

    async def context(app: aiohttp.web.Application) -> AsyncIterator[None]:
        async with open_queue(str(tmp_path / "ws")) as queue:
            await queue.populate_queue(["a", "b", "c"])
            async with queue.pool(convert, per="path", forever=True):
                yield

    async def main() -> None:
        app = aiohttp.web.Application()
        app.cleanup_ctx.append(context)
        runner = aiohttp.web.AppRunner(app)
        await runner.setup()
        try:
            await ended.wait()
            if ending == "fails":
                raise KeyError("mine")
        finally:
            await runner.cleanup()

    if ending == "fails":
        with pytest.raises(KeyError):
            anyio.run(main)
    else:
        anyio.run(main)

    assert sorted(ran) == ["a", "b", "c"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_in_a_task_group(backend: str, tmp_path: Path) -> None:
    """In a plain program of either kind: errors come out of the host's task group, which ends its other tasks."""
    ended = []

    async def main() -> None:
        async def other() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                ended.append("other")

        async def work() -> None:
            async with open_queue(str(tmp_path / "ws")) as queue:
                await queue.populate_queue(["a"])
                await queue.run(ended.append, per="path", handle_signals=False)
                (tmp_path / "ws" / keys.INDEX).write_bytes(b"garbage")
                async with queue.pool(print):
                    await anyio.sleep_forever()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(other)
            tasks.start_soon(work)

    with pytest.raises(ExceptionGroup) as caught:
        anyio.run(main, backend=backend)

    assert [type(error) for error in caught.value.exceptions] == [DamagedWorkspace]
    assert ended == ["a", "other"]


def test_one_client_for_all(seaweed: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that are given a client open none of their own, and leave it open; each pool gets its own work."""
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    opened = []
    create = AioSession.create_client

    def counted(self: AioSession, *args: Any, **kwargs: Any) -> Any:
        opened.append(args)
        return create(self, *args, **kwargs)

    async def main() -> None:
        async with client_of(seaweed):
            pass
        monkeypatch.setattr(AioSession, "create_client", counted)
        async with open_client() as client:
            ran: dict[str, list[str]] = {"one": [], "other": []}
            async with (
                open_queue(f"s3://{seaweed.bucket}/{prefix}/one", client=client) as one,
                open_queue(f"s3://{seaweed.bucket}/{prefix}/other", client=client) as other,
            ):
                await one.populate_queue(f"one {i}" for i in range(50))
                await other.populate_queue(f"other {i}" for i in range(50))

                async def of_one(path: str) -> None:
                    ran["one"].append(path)

                async def of_other(path: str) -> None:
                    ran["other"].append(path)

                async with one.pool(of_one, per="path") as first, other.pool(of_other, per="path") as second:
                    assert ((await first.wait()).done, (await second.wait()).done) == (50, 50)
            assert {name: sorted(paths) for name, paths in ran.items()} == {
                name: sorted(f"{name} {i}" for i in range(50)) for name in ran
            }
            assert (await client.list_objects_v2(Bucket=seaweed.bucket, Prefix=prefix))["KeyCount"] > 0

    anyio.run(main)

    assert len(opened) == 1
