"""The command line at work: in this process where that is enough, in one of its own for signals and imports."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from s3queue import ConfigurationError
from s3queue._index import Index
from s3queue.cli._app import run
from s3queue.cli._durations import parse_duration
from s3queue.stores import OVERWRITE
from tests.command_line import configure, job_folder
from tests.conftest import store_on
from tests.servers._process import S3Server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of handlers in it."""
    return job_folder(tmp_path, monkeypatch)


def files(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def counts(capsys: pytest.CaptureFixture[str], workspace: str = "ws") -> dict[str, Any]:
    capsys.readouterr()
    run(["status", workspace, "--json"])
    return dict(json.loads(capsys.readouterr().out))


def results(workspace: Path) -> list[Any]:
    output = workspace.parent / "results.jsonl"
    assert run(["results", str(workspace), "--output", str(output)]) == 0
    return [json.loads(line)["result"] for line in output.read_text().splitlines()]


def failure_records(workspace: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_bytes()) for path in (workspace / "failed_flags").iterdir()]


def test_populate_from_globs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Patterns are expanded, ``**`` into folders, and paths are absolute; known ones are not added again."""
    files(folder, "in/a.txt", "in/b.txt", "in/deep/c.txt", "in/d.pdf")

    assert run(["populate", "ws", "--input", "in/*.txt", "--items-per-group", "2"]) == 0
    assert counts(capsys)["paths"] == 2
    assert run(["populate", "ws", "--input", "in/**/*.txt", "--input", "in/*.pdf"]) == 0
    assert counts(capsys) == {
        "groups": 3, "paths": 4, "done": 0, "dead": 0, "leased": 0, "expired": 0, "released": 0, "free": 3,
        "complete": False,
    }  # fmt: skip
    assert run(["work", "ws", "--handler", "jobs_of_test:shout"]) == 0
    assert sorted(results(folder / "ws")) == sorted(
        str(folder / name).upper() for name in ("in/a.txt", "in/b.txt", "in/deep/c.txt", "in/d.pdf")
    )


def test_populate_from_a_list(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, or standard input, names one path a line, taken as it is."""
    (folder / "list").write_bytes("s3://b/a b.pdf\r\ns3://b/ü,1.pdf\n\n".encode())
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"from stdin\n")))

    assert run(["populate", "ws", "--from-file", "list"]) == 0
    assert run(["populate", "ws", "--from-file", "-"]) == 0

    run(["work", "ws", "--handler", "jobs_of_test:shout"])
    assert sorted(results(folder / "ws")) == ["FROM STDIN", "S3://B/A B.PDF", "S3://B/Ü,1.PDF"]


def test_work_per_group(folder: Path) -> None:
    """Per group the handler gets the item."""
    (folder / "list").write_text("a\nb\nc\n")

    assert run(["run", "ws", "--from-file", "list", "--items-per-group", "3", "--per", "group",
                "--handler", "jobs_of_test:size"]) == 0  # fmt: skip

    assert results(folder / "ws") == [3, 3, 3]


def test_a_command_gets_its_path_unchanged(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Arguments are a vector: no shell sees a path, whatever is in it."""
    odd = ["a b", "q'uo\"te", "; echo pwned", "$(echo pwned)", "`id`", "--help", "*"]
    (folder / "list").write_text("\n".join(odd) + "\n")
    script = "import sys, pathlib; pathlib.Path('seen').open('a').write(repr(sys.argv[1:]) + '\\n')"

    assert run(["run", "ws", "--from-file", "list", "--", sys.executable, "-c", script, "{}", "x{}y"]) == 0

    seen = sorted((folder / "seen").read_text().splitlines())
    assert seen == sorted(repr([path, f"x{path}y"]) for path in odd)


def test_a_failing_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A non-zero exit code is a failure; its record has the code, the path, and the end of standard error; exit 1."""
    (folder / "list").write_text("a\nb\n")
    script = "import sys; sys.stderr.write('x' * 50000 + '\\nthe reason\\n'); sys.exit(7 if sys.argv[1] == 'a' else 0)"

    code = run(["run", "ws", "--from-file", "list", "--max-attempts", "1", "--", sys.executable, "-c", script, "{}"])

    assert code == 1
    (record,) = failure_records(folder / "ws")
    assert record["error"].endswith("exit code 7: the reason · path: a")
    assert record["detail"].endswith("the reason\n")
    assert len(record["detail"]) <= 16 * 1024


def test_failures_and_retry(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An operator sees what failed and why, in full on request, and sends it round again."""
    (folder / "list").write_text("a\nb\n")
    run(["run", "ws", "--from-file", "list", "--max-attempts", "1", "--handler", "jobs_of_test:fails"])
    capsys.readouterr()

    assert run(["failures", "ws"]) == 0
    table = capsys.readouterr().out
    assert table.count("dead    1 path, 0 done, 1 failed attempt, 0 s ago") == 2
    assert table.count("ValueError: no such luck · path: ") == 2
    assert table.count("(1 attempt): ValueError: no such luck") == 2
    assert run(["failures", "ws", "--json"]) == 0
    groups = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {tuple(group["work_paths"]) for group in groups} == {("a",), ("b",)}
    for show in (["failures", "ws", groups[0]["hash"]], ["failures", "ws", "show", groups[0]["hash"]]):
        assert run(show) == 0
        assert "Traceback (most recent call last)" in capsys.readouterr().out
    for wrong in (["retry", "ws"], ["retry", "ws", "--all", "--error", "x"], ["retry", "ws", "--error", "("]):
        assert run(wrong) == 2
    capsys.readouterr()
    assert run(["retry", "ws", "--error", "nothing like it"]) == 0
    assert run(["retry", "ws", groups[0]["hash"]]) == 0
    assert run(["retry", "ws", "--error", "such.luck"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["0", "1", "1"]
    assert run(["work", "ws", "--handler", "jobs_of_test:shout"]) == 0


def test_a_command_that_goes_away(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can no longer be started fails the attempt, with a line that names it."""
    (folder / "list").write_text("a\n")
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}")

    assert run(["run", "ws", "--from-file", "list", "--max-attempts", "1", "--", "no-such-command", "{}"]) == 1

    assert "no-such-command cannot be started" in failure_records(folder / "ws")[0]["error"]


def test_unfinished(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What others hold leaves a run that does not wait unfinished: exit 3."""
    (folder / "list").write_text("a\nb\n")
    run(["populate", "ws", "--from-file", "list"])
    (locks := folder / "ws" / "worker_locks").mkdir()
    group = Index.decode((folder / "ws" / "work_index_list.csv.zstd").read_bytes()).name(0)
    (locks / f"worker_{group}.lock").touch()

    assert run(["work", "ws", "--once", "--handler", "jobs_of_test:shout"]) == 3
    assert "unfinished: 1 group, 1 of them leased or waiting for their next attempt" in capsys.readouterr().out
    assert run(["status", "ws"]) == 3


def test_demo(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The demo counts the words of the standard library, says where the results are, and can be run again."""
    for _ in range(2):
        assert run(["demo"]) == 0
        assert "results: s3queue-demo/word-counts.csv" in capsys.readouterr().out

    rows = (folder / "s3queue-demo" / "word-counts.csv").read_text().splitlines()
    assert rows[0] == "path,words,different"
    assert len(rows) > 100


def wait_for(condition: Any, process: subprocess.Popen[bytes]) -> None:
    while not condition():
        assert process.poll() is None, "it ended too early"
        time.sleep(0.02)


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "s3queue", *arguments], cwd=folder, stdout=subprocess.DEVNULL)


def began(folder: Path, count: int) -> Any:
    return lambda: len(list(folder.glob("*.began"))) == count


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("handler", ["slow_async", "slow"])
def test_a_signal_drains(folder: Path, number: int, handler: str) -> None:
    """What ends within the grace is done, the rest is handed back at once, and the exit code says unfinished (B28)."""
    paths = [str(folder / name) for name in ("a-quick", "b", "c")]
    (folder / "list").write_text("\n".join(paths))
    process = start(folder, "run", "ws", "--from-file", "list", "--grace", "1", "--handler", f"jobs_of_test:{handler}")
    wait_for(began(folder, 3), process)

    process.send_signal(number)

    assert process.wait(30) == 3
    assert len(results(folder / "ws")) == 1
    locks = [json.loads(lock.read_bytes()) for lock in (folder / "ws" / "worker_locks").iterdir()]
    assert sorted(lock.get("s", "left over") for lock in locks) == ["f", "f", "left over"]
    assert run(["work", "ws", "--handler", "jobs_of_test:shout"]) == 0


def test_limits(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """So many groups, or so much time: the rest stays claimable, and the exit code says that there is one."""
    (folder / "list").write_text("\n".join(f"p{i}-quick" for i in range(10)))

    assert run(["run", "ws", "--from-file", "list", "--max-groups", "4", "--handler", "jobs_of_test:shout"]) == 3
    assert "unfinished: 6 groups" in (said := capsys.readouterr().out)
    assert "(--max-groups)" in said
    assert counts(capsys, "ws")["done"] == 4

    slow = ["--workers", "1", "--handler", "jobs_of_test:slow_async"]
    assert run(["work", "ws", "--max-runtime", "0.05s", *slow]) == 3
    assert "(--max-runtime)" in capsys.readouterr().out
    assert counts(capsys, "ws")["done"] < 10
    assert run(["work", "ws", "--max-runtime", "1h30m", "--once", "--handler", "jobs_of_test:shout"]) == 0

    assert run(["work", "ws", "--max-runtime", "soon", "--handler", "jobs_of_test:shout"]) == 2
    assert "3h50m" in capsys.readouterr().err
    assert run(["work", "ws", "--forever", "--once", "--handler", "jobs_of_test:shout"]) == 2


@pytest.mark.slow
def test_forever_waits_for_groups(folder: Path) -> None:
    """A worker may be there before the workspace is, says so, and works once it is populated."""
    command = [sys.executable, "-m", "s3queue", "work", "ws", "--forever", "--handler", "jobs_of_test:slow_async"]
    environment = {**os.environ, "S3QUEUE_INDEX_REFRESH": "0.2"}
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        assert "no groups in ws" in process.stderr.readline()
        (folder / "list").write_text(f"{folder / 'a-quick'}\n")
        assert run(["populate", "ws", "--from-file", "list"]) == 0
        wait_for(lambda: list(folder.glob("ws/done_flags/*")), process)

        process.send_signal(signal.SIGTERM)

        assert process.wait(30) == 0
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3h50m", 13_800), ("90", 90), ("1.5h", 5400), ("2d", 172_800), (" 1m30s ", 90), ("0.5", 0.5)],
)
def test_durations(text: str, seconds: float) -> None:
    """As people write them."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "3 h", "h", "3h-5m", "1h30", "-5", "5x", "inf", "nan"])
def test_no_durations(text: str) -> None:
    """What is none is refused, not half understood."""
    with pytest.raises(ConfigurationError, match="3h50m"):
        parse_duration(text)


@pytest.mark.slow
def test_a_second_signal_leaves_at_once(folder: Path) -> None:
    """The second signal ends the process as if nobody had handled it."""
    (folder / "list").write_text(str(folder / "a"))
    process = start(folder, "run", "ws", "--from-file", "list", "--handler", "jobs_of_test:slow_async")
    wait_for(began(folder, 1), process)

    process.send_signal(signal.SIGTERM)
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)

    assert process.wait(30) == -signal.SIGTERM


@pytest.mark.slow
def test_a_drained_command_is_ended_with_its_children(folder: Path) -> None:
    """A command that outlasts the grace is killed, and nothing of it is left."""
    (folder / "list").write_text(str(folder / "a"))
    script = (
        "import os, sys, time, pathlib\n"
        "pathlib.Path(sys.argv[1] + '.began').write_text(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    process = start(
        folder, "run", "ws", "--from-file", "list", "--grace", "0", "--", sys.executable, "-c", script, "{}"
    )
    wait_for(lambda: any(path.read_text() for path in folder.glob("*.began")), process)
    child = int((folder / "a.began").read_text())

    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 3
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_globs_on_s3(
    folder: Path, seaweed: S3Server, prefix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``*`` stays within a folder of keys, ``**`` does not; a workspace on S3 works like a folder."""

    async def fill() -> None:
        async with store_on(seaweed, f"{prefix}/in") as store:
            for key in ("a.pdf", "b c.pdf", "deep/d.pdf", "e.txt"):
                await store.put(key, b"x", OVERWRITE)

    anyio.run(fill)
    configure(monkeypatch, seaweed)
    source, workspace = f"s3://{seaweed.bucket}/{prefix}/in", f"s3://{seaweed.bucket}/{prefix}/ws"

    assert run(["populate", workspace, "--input", f"{source}/*.pdf"]) == 0
    assert counts(capsys, workspace)["paths"] == 2
    assert run(["populate", workspace, "--input", f"{source}/**/*.pdf"]) == 0
    assert counts(capsys, workspace)["paths"] == 3
    assert run(["work", workspace, "--handler", "jobs_of_test:shout"]) == 0
    assert counts(capsys, workspace)["complete"] is True


def test_results_and_the_operators_commands(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Export in both formats, and each command that acts on groups, on what it is for and on what it is not."""
    (folder / "list").write_text("a\nb,c\n")
    assert run(["run", "ws", "--from-file", "list", "--result", "stdout", "--", "echo", '["{}"]']) == 0
    capsys.readouterr()

    assert run(["results", "ws"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert sorted((row["path"], row["result"]) for row in rows) == [("a", ["a"]), ("b,c", ["b,c"])]
    assert run(["results", "ws", "--format", "csv", "--output", "out.csv"]) == 0
    assert capsys.readouterr().out == "2 results: out.csv\n"
    table = list(csv.DictReader(io.StringIO((folder / "out.csv").read_text(encoding="utf-8"))))
    assert sorted((row["path"], row["result"]) for row in table) == [("a", '["a"]'), ("b,c", '["b,c"]')]
    assert run(["results", "ws", "--output", "no/such/folder"]) == 2

    group = rows[0]["hash"]
    assert run(["check", "ws"]) == 0
    assert run(["release", "ws", group]) == 2
    assert "--force" in capsys.readouterr().err
    assert run(["release", "ws", group, "--force"]) == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert run(["sweep", "ws"]) == 0
    assert run(["reset", "ws", "0" * 40]) == 2
    assert run(["reset", "ws", group]) == 0
    new = capsys.readouterr().out.split()[-1]
    assert run(["status", "ws"]) == 3
    (folder / "ws" / "worker_locks" / f"worker_{new}.lock").write_bytes(b"?")
    capsys.readouterr()
    assert run(["check", "ws", "--json"]) == 1
    assert [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()] == ["unreadable"]
    assert run(["release", "ws", new, "--force"]) == 0
    assert run(["work", "ws", "--handler", "jobs_of_test:shout"]) == 0
    assert run(["work", "ws", "--handler", "jobs_of_test:shout", "--result", "stdout"]) == 2


def test_output_that_is_too_long(folder: Path) -> None:
    """Is an error that says what to do, not a cut result."""
    (folder / "list").write_text("70000\n")
    command = [sys.executable, "-c", "import sys; print('x' * int(sys.argv[1]))", "{}"]

    assert run(["run", "ws", "--from-file", "list", "--max-attempts", "1", "--result", "stdout", "--", *command]) == 1

    assert "print a reference" in failure_records(folder / "ws")[0]["error"]
