"""`--fetch`: local copies, whole or not at all, within their space, gone afterwards."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from s3queue._errors import ConfigurationError, HandlerError, Unanswered
from s3queue._options import QueueOptions
from s3queue.cli._app import run
from s3queue.cli._fetch import Space, local_name, parse_size
from s3queue.stores import OVERWRITE
from s3queue.stores._s3_download import open_downloads
from tests.conftest import store_on
from tests.servers._process import S3Server
from tests.servers.fault import FaultServer, Reply, Request
from tests.virtual import virtual

HANDLERS = """
import pathlib, s3queue

def read(path):
    local = pathlib.Path(path)
    (local.parent / "made beside it").touch()
    return [local.name, local.read_text()[:20], local.stat().st_size]

def read_all(item):
    whole = s3queue.current_item().work_paths
    return {path: pathlib.Path(local).read_text() for path, local in zip(whole, item.work_paths, strict=True)}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with a module of handlers, and a place for copies that must be empty at the end."""
    (tmp_path / "fetch_jobs.py").write_text(HANDLERS)
    (copies := tmp_path / "copies").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(copies))
    yield tmp_path
    assert not list(copies.iterdir())


@pytest.fixture
def source(seaweed: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of some objects on a real server."""

    async def fill() -> None:
        async with store_on(seaweed, prefix) as store:
            for key, text in {"a b.txt": "first", "deep/ü.pdf": "second", "large.bin": "x" * 3_000_000}.items():
                await store.put(key, text.encode(), OVERWRITE)

    anyio.run(fill)
    for name, value in seaweed.environment().items():
        monkeypatch.setenv(name, value)
    return f"s3://{seaweed.bucket}/{prefix}"


def results(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    run(["results", "ws"])
    return {row["path"]: row["result"] for row in map(json.loads, capsys.readouterr().out.splitlines())}


def errors(workspace: Path) -> list[str]:
    return [json.loads(path.read_bytes())["error"] for path in (workspace / "failed_flags").iterdir()]


def test_a_handler_gets_copies(folder: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Under a name with their extension, also for a workspace in a folder; what is not on S3 stays where it is."""
    (folder / "local.txt").write_text("third")
    paths = [f"{source}/a b.txt", f"{source}/deep/ü.pdf", f"{source}/large.bin", str(folder / "local.txt")]
    (folder / "list").write_text("\n".join(paths))

    assert run(["run", "ws", "--from-file", "list", "--fetch", "--handler", "fetch_jobs:read"]) == 0

    (folder / "made beside it").unlink()
    assert results(capsys) == {
        paths[0]: ["a_b.txt", "first", 5],
        paths[1]: ["ü.pdf", "second", 6],
        paths[2]: ["large.bin", "x" * 20, 3_000_000],
        paths[3]: ["local.txt", "third", 5],
    }


def test_a_command_gets_copies(folder: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And learns from its environment which path it is about."""
    (folder / "list").write_text(f"{source}/a b.txt\n")
    command = ["sh", "-c", 'cat "$1"; printf " of %s" "$S3QUEUE_PATH"', "sh", "{}"]

    assert run(["run", "ws", "--from-file", "list", "--fetch", "--result", "stdout", "--", *command]) == 0

    assert results(capsys) == {f"{source}/a b.txt": f"first of {source}/a b.txt"}


def test_a_whole_group(folder: Path, source: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Gets all its copies, in the order of its paths."""
    (folder / "list").write_text(f"{source}/deep/ü.pdf\n{source}/a b.txt\n")

    assert run(["run", "ws", "--from-file", "list", "--items-per-group", "2", "--per", "group", "--fetch",
                "--handler", "fetch_jobs:read_all"]) == 0  # fmt: skip

    assert results(capsys)[f"{source}/a b.txt"] == {
        f"{source}/a b.txt": "first",
        f"{source}/deep/ü.pdf": "second",
    }


def test_what_cannot_be_fetched(folder: Path, source: str) -> None:
    """Fails its attempt with a line that says what and why."""
    bucket = source.split("/")[2]
    paths = [f"{source}/missing.txt", f"{source}/large.bin", f"s3://{bucket}", "s3://no-such-bucket-here/a"]
    (folder / "list").write_text("\n".join(paths))

    assert run(["run", "ws", "--from-file", "list", "--max-attempts", "1", "--fetch", "--fetch-space", "1MB",
                "--handler", "fetch_jobs:read"]) == 1  # fmt: skip

    told = "\n".join(errors(folder / "ws"))
    assert told.count("--fetch: ") == 4
    for expected in ("missing.txt: HEAD: 404", "3,000,000 bytes are more than --fetch-space, 1,000,000",
                     "names no object", "s3://no-such-bucket-here/a"):  # fmt: skip
        assert expected in told


@pytest.mark.parametrize(("fails", "code"), [(2, 0), (99, 1)])
def test_a_body_that_breaks_off(folder: Path, monkeypatch: pytest.MonkeyPatch, fails: int, code: int) -> None:
    """Is asked for again, some times; a handler never sees half a file."""
    seen = []

    def half(request: Request) -> Reply | None:
        if request.method != "GET" or request.key != "a.txt":
            return None
        seen.append(request)
        headers = {"ETag": '"e"', "Last-Modified": "Tue, 01 Dec 2026 00:00:00 GMT"}
        return Reply(200, b"all of it", headers, cut=4 if len(seen) <= fails else None)

    async def main() -> int:
        async with FaultServer() as server:
            server.objects["a.txt"] = (b"all of it", 1.8e9)
            server.intercept = lambda request: (
                Reply(200, b"all of it", {"ETag": '"e"', "Last-Modified": "Tue, 01 Dec 2026 00:00:00 GMT"})
                if request.method == "HEAD"
                else half(request)
            )
            for name, value in server.target.environment().items():
                monkeypatch.setenv(name, value)
            arguments = ["run", "ws", "--from-file", "list", "--max-attempts", "1", "--fetch", "--handler"]
            return await anyio.to_thread.run_sync(run, [*arguments, "fetch_jobs:read"])

    (folder / "list").write_text("s3://bucket/a.txt\n")

    assert anyio.run(main) == code
    assert len(seen) == (3 if code == 0 else 4)
    if code:
        assert "broke off" in errors(folder / "ws")[0]


@pytest.mark.asyncio
async def test_an_object_that_changes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is not read as if it were the one that space was taken for."""
    async with FaultServer() as server:
        server.objects["a"] = (b"x" * 100, 1.8e9)
        for name, value in server.target.environment().items():
            monkeypatch.setenv(name, value)
        async with open_downloads(QueueOptions(request_timeout=5.0)) as downloads:
            remote = await downloads.look("bucket", "a")
            assert remote.size == 100
            server.objects["a"] = (b"y" * 100, 1.8e9)
            with pytest.raises(Unanswered, match="the object changed while it was being read"):
                _ = [piece async for piece in downloads.read(remote)]


@virtual
async def test_space_is_waited_for() -> None:
    """No more is taken than there is, and who came first is served first, however much he wants."""
    space = Space(10)
    order: list[tuple[int, int]] = []

    async def use(size: int) -> None:
        async with space.taken(size):
            order.append((size, space.used))
            await anyio.sleep(1)

    async with anyio.create_task_group() as tasks:
        for size in (6, 9, 3, 7):
            tasks.start_soon(use, size)
            await anyio.lowlevel.checkpoint()
            await anyio.sleep(0.01)

    assert [size for size, _ in order] == [6, 9, 3, 7]
    assert max(used for _, used in order) <= 10
    assert space.used == 0
    with pytest.raises(HandlerError, match="--fetch-space"):
        async with space.taken(11):
            pass


@virtual
async def test_whoever_waits_for_space_can_leave() -> None:
    """A cancelled wait takes nothing, and lets the next one through."""
    space = Space(10)
    async with space.taken(8):
        with anyio.move_on_after(1):
            async with space.taken(5):
                pass
        async with space.taken(2):
            assert space.used == 10
    assert space.used == 0


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("s3://b/k/a b.pdf", "a_b.pdf"),
        ("s3://b/..", "object"),
        ("s3://b/k/", "object"),
        ("s3://b/-rf", "rf"),
        ("s3://b/a\x00\n$(x).tar.gz", "a____x_.tar.gz"),
        ("s3://b/.hidden", "hidden"),
        ("s3://b/" + "n" * 300 + ".pdf", "n" * 116 + ".pdf"),
        ("s3://b/" + "ü" * 300, "ü" * 60),
        ("s3://b/a." + "e" * 300, "a." + "e" * 118),
    ],
)
def test_local_names(path: str, name: str) -> None:
    """No key can name a file outside its folder, an option, or one that is too long."""
    assert local_name(path) == name
    assert os.path.basename(name) == name


def test_sizes() -> None:
    """As people write them."""
    assert [parse_size(text) for text in ("4096", "500MB", "1.5GiB", "2 k", "10b")] == [
        4096, 500_000_000, 1_610_612_736, 2000, 10,
    ]  # fmt: skip
    for wrong in ("", "much", "-1GB", "0", "1XB"):
        with pytest.raises(ConfigurationError, match="--fetch-space"):
            parse_size(wrong)
