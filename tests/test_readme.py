"""The README is true: whatever it shows is run here as it stands, and must do what it says."""

from __future__ import annotations

import csv
import itertools
import json
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import pytest

from s3queue import _keys as keys
from tests.conftest import client_of
from tests.documents import README, ROOT, Block, blocks_of, links_of, pasted
from tests.servers._process import S3Server

BLOCKS = blocks_of(README)
FENCED = [block for block in BLOCKS if block.language]
PYTHON = [block for block in FENCED if block.language == "python"]
COMMANDS = [block for block in BLOCKS if not block.language and block.text.startswith("s3queue ")]
LAYOUT = [block for block in BLOCKS if not block.language and block.text.startswith(keys.INDEX)]
BENCHMARKS = [block for block in BLOCKS if not block.language and block.text.startswith("python -m benchmarks")]

_buckets = itertools.count(1)


def test_every_block_is_run_by_a_test() -> None:
    """A block that none of these tests knows is a block that nobody has tried."""
    known = [*FENCED[:2], *PYTHON, *COMMANDS, *LAYOUT, *BENCHMARKS]

    assert [block for block in BLOCKS if block not in known] == []
    assert [block.language for block in FENCED[:2]] == ["sh", "sh"]
    assert len(COMMANDS) == len(LAYOUT) == 1
    assert len(PYTHON) >= 2


def test_links_lead_somewhere() -> None:
    """Files that the README points to are there."""
    assert [target for target in links_of(README) if not (ROOT / target).exists()] == []


def rows_of(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


# The front door.


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_block_installs_and_runs_the_demo(tmp_path: Path) -> None:
    """In a fresh copy, from the package index, pasted as it stands. The index is the server that this test needs."""
    for name in ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "s3queue", tmp_path / "s3queue", ignore=shutil.ignore_patterns("__pycache__"))

    done = pasted(FENCED[0].text, tmp_path, timeout=590)

    assert done.returncode == 0, done.stderr
    assert re.search(r"[1-9]\d+ words in [1-9]\d* files", done.stdout)
    table = rows_of(tmp_path / "s3queue-demo" / "word-counts.csv")
    assert len(table) > 100
    assert all(int(row["words"]) >= int(row["different"]) for row in table)
    (installed,) = tmp_path.glob(".venv/lib/python3*/site-packages/s3queue")
    assert [target for target in links_of(README) if not (installed.parent / target).exists()] == []


def test_the_second_block_is_what_ci_runs() -> None:
    """It would run this test again; so: CI takes it from the README, and each part of it is what it seems."""
    command = FENCED[1].text.strip()
    taken = subprocess.run(
        ["awk", "/^```/ { fence++; next } fence == 3", str(README)], capture_output=True, text=True, check=True
    )

    assert "fence == 3" in (ROOT / ".ci" / "run").read_text()
    assert taken.stdout.strip() == command
    venv, install, tests = command.split(" && ")
    assert venv == "python3 -m venv .venv"
    assert install == ".venv/bin/pip install -q -e '.[test]'"
    assert tests == ".venv/bin/python -m pytest -q -n 2"


def test_the_short_test_run_leaves_out_what_it_says() -> None:
    """The marks in the README are marks of ours, and select tests."""
    (expression,) = re.findall(r"pytest -q -n 2 -m '([^']+)'", README.read_text())
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", expression, "tests/test_keys.py"]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert collected.returncode == 0, collected.stdout


# The command line.


def prepared(folder: Path) -> None:
    """What the commands speak of: 30 files in folders, and a module with a handler: the README's own."""
    for number in range(30):
        path = folder / "scans" / f"box {number % 3}" / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("word " * number)
    (folder / "mypackage").mkdir()
    (folder / "mypackage" / "__init__.py").touch()
    handler = PYTHON[0].text.partition("async def main")[0]
    assert "def convert(" in handler
    (folder / "mypackage" / "jobs.py").write_text(handler)


def with_bucket(server: S3Server) -> tuple[str, dict[str, str]]:
    """A new bucket, and the environment in which it is reached."""
    bucket = f"readme-{next(_buckets)}"

    async def make() -> None:
        async with client_of(server) as client:
            await client.create_bucket(Bucket=bucket)

    anyio.run(make)
    return bucket, server.environment()


@pytest.fixture(params=["folder", "seaweed"])
def place(request: pytest.FixtureRequest) -> Iterator[tuple[Callable[[str], str], dict[str, str]]]:
    """Where the README says ``s3://bucket``: a bucket of a real server, or a folder. How to say it, and with what."""
    if request.param == "folder":
        yield lambda text: text.replace("s3://bucket/", ""), {}
        return
    bucket, environment = with_bucket(request.getfixturevalue("seaweed"))
    yield lambda text: text.replace("s3://bucket/", f"s3://{bucket}/"), environment


def test_the_commands_run_as_given(tmp_path: Path, place: tuple[Callable[[str], str], dict[str, str]]) -> None:
    """One after the other, on a folder and on a bucket; and the table at the end holds what `wc` counted."""
    spelled, environment = place
    prepared(tmp_path)
    said = {}
    for line in COMMANDS[0].commands:
        done = pasted(spelled(line), tmp_path, environment=environment)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        assert done.stderr == ""
        said[line.split()[1]] = done.stdout

    assert "30 paths given, 2 new groups" in said["populate"]
    assert "30 results" in said["results"]
    table = rows_of(tmp_path / "out.csv")
    assert {row["path"]: row["result"].split()[0] for row in table} == {
        str(tmp_path / "scans" / f"box {number % 3}" / f"{number}.txt"): str(number) for number in range(30)
    }


def test_the_handler_of_the_commands_runs(tmp_path: Path) -> None:
    """In the block above the command before it has done all the work; here it has it to itself."""
    prepared(tmp_path)
    lines = {line.split()[1] + (" --handler" if "--handler" in line else ""): line for line in COMMANDS[0].commands}

    for name in ("populate", "work --handler", "results"):
        done = pasted(lines[name].replace("s3://bucket/ws", "ws"), tmp_path)
        assert done.returncode == 0, done.stderr

    table = rows_of(tmp_path / "out.csv")
    assert [json.loads(row["result"]) for row in table] == [{"letters": len(row["path"])} for row in table]
    assert len(table) == 30


# Python.


def test_the_first_example_runs(tmp_path: Path, place: tuple[Callable[[str], str], dict[str, str]]) -> None:
    """Populate, run, and read the results, on a folder and on a bucket."""
    spelled, environment = place

    done = pasted(spelled(PYTHON[0].text), tmp_path, python=True, environment=environment)

    assert (done.returncode, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    assert first == "2 groups done, 0 dead"
    assert sorted(rest) == [f"{name}.pdf {{'letters': 5}}" for name in "abc"]


def test_the_second_example_runs(tmp_path: Path, seaweed: S3Server) -> None:
    """By hand, on a bucket whose queue the command line has filled."""
    bucket, environment = with_bucket(seaweed)
    (tmp_path / "list").write_text("a\nb\nc\n")
    workspace = f"s3://{bucket}/ws"
    filled = pasted(
        f"s3queue populate {workspace} --from-file list --items-per-group 2", tmp_path, environment=environment
    )
    assert filled.returncode == 0, filled.stderr

    code = PYTHON[1].text.replace("s3://bucket/", f"s3://{bucket}/")
    done = pasted(code, tmp_path, python=True, environment=environment)

    assert (done.returncode, done.stderr) == (0, "")
    first, *rest = done.stdout.splitlines()
    assert first == "2 groups are not done"
    assert sorted(rest) == [f"working on {name}" for name in "abc"]
    status = pasted(f"s3queue status {workspace}", tmp_path, environment=environment)
    assert status.returncode == 0


def test_the_watched_example_runs(tmp_path: Path, place: tuple[Callable[[str], str], dict[str, str]]) -> None:
    """A hook is told of the failure; telemetry is taken, whether or not an SDK is set up."""
    spelled, environment = place
    (block,) = [block for block in PYTHON if block.heading == "Watching"]

    done = pasted(spelled(block.text), tmp_path, python=True, environment=environment)

    assert done.returncode == 0, done.stderr
    assert done.stdout == "failed: b.txt for good\n"


# The rest.


def test_the_layout_is_the_code_s() -> None:
    """The objects of a workspace, as the module that names them builds them."""
    shown = [line.split()[0] for line in LAYOUT[0].text.splitlines()]
    names = [
        keys.INDEX,
        keys.lock("<hash>"),
        keys.flag("<hash>"),
        keys.failure("<hash>", 7).replace("7", "<epoch>"),
        keys.piece("<hash>", 7, 8).replace("7", "<epoch>").replace("8", "<n>"),
    ]

    assert shown == names


def test_the_benchmarks_are_there() -> None:
    """Each line names one that exists. They are run by hand: they take minutes, and a quiet machine."""
    known = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for line in BENCHMARKS[0].commands:
        name = line.split()[3]
        assert re.search(rf"\b{name}\b", known), line


def test_the_ci_script_can_be_run() -> None:
    """It is executable, and bash can read it."""
    script = ROOT / ".ci" / "run"

    assert script.stat().st_mode & stat.S_IXUSR
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_blocks_are_found() -> None:
    """The reader of documents sees fenced and indented blocks, and takes no list for one."""
    block = Block("sh", "a\n", 2, "")

    assert block.commands == ["a"]
    assert all(block.text.strip() for block in BLOCKS)
