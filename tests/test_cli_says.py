"""What the command line says, to whom, and by which exit code: mistakes, logs, JSON, help."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import anyio
import pytest

from s3queue._index import Index
from s3queue.cli._app import run
from tests.command_line import configure, job_folder
from tests.conftest import client_of
from tests.servers._process import S3Server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of handlers in it."""
    return job_folder(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["nonsense"], "nonsense"),
        (["populate"], "WORKSPACE"),
        (["populate", "ws"], "no paths"),
        (["populate", "ws", "--input", "none/*.txt"], "matches nothing"),
        (["populate", "ws", "--from-file", "missing"], "missing"),
        (["populate", "ws", "--from-file", "latin1"], "line 2 is not valid UTF-8"),
        (["populate", "ws", "--from-file", "list", "--items-per-group", "0"], "--items-per-group"),
        (["populate", "gs://bucket/ws", "--from-file", "list"], "gs://"),
        (["populate", "s3://", "--from-file", "list"], "bucket"),
        (["work", "ws"], "--handler"),
        (["work", "ws", "--handler", "jobs_of_test:shout", "--", "echo", "{}"], "either"),
        (["work", "ws", "--handler", "jobs_of_test"], "package.module:function"),
        (["work", "ws", "--handler", "no_such_module:f"], "no_such_module"),
        (["work", "ws", "--handler", "jobs_of_test:missing"], "missing"),
        (["work", "ws", "--handler", "jobs_of_test:nothing"], "not a function"),
        (["work", "ws", "--", "echo"], "{}"),
        (["work", "ws", "--workers", "0", "--", "echo", "{}"], "workers"),
        (["work", "ws", "--workers", "1.5", "--", "echo", "{}"], "'--workers': write a whole number"),
        (["work", "ws", "--once", "--forever", "--", "echo", "{}"], "--forever waits for work, and --once does not"),
        (["work", "ws", "--fetch-space", "10XB", "--", "echo", "{}"], "--fetch-space '10XB'"),
        (["work", "ws", "--handler", "a:b", "--", "echo", "{}"], "--handler and a command are two things"),
        (["work", "ws", "wc", "-w", "{}"], "write -- before that command"),
        (["work", "ws", "--input", "*.txt"], "`s3queue populate` and `s3queue run` have it"),
        (["populate", "ws", "--workers", "2"], "`s3queue work` and `s3queue run` have it"),
        (
            ["work", "ws", "--retry-for", "5", "--", "echo", "{}"],
            "write S3QUEUE_RETRY_FOR=…, or retry-for = … in s3queue",
        ),
        (["failures", "ws", "0000", "1111"], "name one hash, or none"),
        (["populate", "ws", "--input"], "'--input' requires an argument\n"),
        (["populate", "ws", "--input", "a.txt", "b.txt"], "a pattern needs quotes, or else the shell expands it"),
        (["populate", "ws", "--input", "damaged/"], "for all that is in it, write 'damaged/**/*'"),
        (["populate", "ws", "--from-file", "empty"], "--from-file empty names no path: write one a line"),
        (["work", "damaged", "--timeout", "0", "--", "echo", "{}"], "--timeout must be more than 0 seconds, not 0.0"),
        (["results", "ws", "--format", "xml"], "'--format': 'xml' is not one of"),
        (["work", "ws", "--workers", "many", "--", "echo", "{}"], "--workers"),
        (["work", "ws", "--lease-ttl", "1", "--", "echo", "{}"], "--lease-ttl (1)"),
        (["work", "damaged", "--", "echo", "{}"], "zstd"),
        (["status", "damaged"], "zstd"),
        (["populate", "damaged", "--from-file", "list"], "zstd"),
        (["status", "list"], "list is a file"),
        (["work", "list", "--", "echo", "{}"], "list is a file"),
        (["populate", "list", "--from-file", "list"], "list is a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_users_mistake_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    """It names the thing, exits with 2, has no traceback, and writes nothing."""
    (folder / "list").write_text("a\n")
    (folder / "latin1").write_bytes(b"a\n\xe9\n")
    (folder / "empty").touch()
    (folder / "damaged").mkdir()
    (folder / "damaged" / "work_index_list.csv.zstd").write_bytes(b"not an index")

    code = run(arguments)

    output = capsys.readouterr()
    assert code == 2
    assert re.fullmatch(r"s3queue: [^\n]+\n", output.err), output.err
    assert complaint in output.err
    assert "Traceback" not in output.err + output.out
    assert not (folder / "ws" / "work_index_list.csv.zstd").exists()
    assert (folder / "damaged" / "work_index_list.csv.zstd").read_bytes() == b"not an index"


def test_a_full_disk(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unfinished, not a mistake: whoever starts workers again will get on once there is room."""
    (folder / "list").write_text("a\n")
    assert run(["populate", "ws", "--from-file", "list"]) == 0
    capsys.readouterr()

    def no_room(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("s3queue.stores._local.write", no_room)
    monkeypatch.setattr("s3queue._workspace._checked", set())

    for arguments in (["work", "ws", "--handler", "jobs_of_test:shout"], ["populate", "ws", "--from-file", "list"]):
        assert run(arguments) == 3
        assert (
            capsys.readouterr().err
            == f"s3queue: {folder / 'ws'}: No space left on device: make room there, and start again\n"
        )
    assert run(["doctor", "ws"]) == 2
    assert re.search("failed +write: .*No space left", capsys.readouterr().out)


def test_a_command_that_does_not_exist(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is said at once, before any path has failed because of it."""
    (folder / "list").write_text("a\n")

    assert run(["run", "ws", "--from-file", "list", "--", "no-such-command", "{}"]) == 2

    assert "'no-such-command' is not found" in capsys.readouterr().err
    assert not (folder / "ws").exists()


@pytest.mark.parametrize(
    "command",
    [
        "status", "status --watch", "results", "failures", "retry --all", "sweep", "check",
        "work --handler jobs_of_test:shout",
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_made", [False, True])
def test_a_workspace_without_groups(
    folder: Path, capsys: pytest.CaptureFixture[str], command: str, is_made: bool
) -> None:
    """Its name is misspelled, most likely: that must not look like success, nor make the folder."""
    if is_made:
        (folder / "ws").mkdir()
    name, *flags = command.split()

    assert run([name, "ws", *flags]) == 2

    told = "s3queue: no groups in ws: check its name, or add some with `s3queue populate ws …`\n"
    assert capsys.readouterr().err == told
    assert (folder / "ws").exists() == is_made


def test_what_is_done_already(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run that finds nothing to do says so, and where to look if something is dead."""
    (folder / "list").write_text("a\nb\n")
    run(["run", "ws", "--from-file", "list", "--handler", "jobs_of_test:shout"])
    (folder / "list").write_text("c\n")
    run(["run", "ws", "--from-file", "list", "--max-attempts", "1", "--handler", "jobs_of_test:fails"])
    capsys.readouterr()

    assert run(["work", "ws", "--handler", "jobs_of_test:shout"]) == 1

    assert capsys.readouterr().out.splitlines() == [
        "nothing to do: of 3 groups 2 are done already",
        "dead: 1 group: `s3queue failures ws` says why",
    ]


def test_plain_output_when_piped(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal there are plain lines, without a bar and without control characters."""
    (folder / "list").write_text("a\nb\n")

    run(["run", "ws", "--from-file", "list", "--handler", "jobs_of_test:shout"])

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 paths given, 2 new groups"
    assert lines[1].startswith("2 groups done in ")
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", "".join(lines))


def test_without_its_extra() -> None:
    """Without typer the command says in one line what to install."""
    code = (
        "import sys\n"
        "sys.modules['typer'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "import s3queue.__main__ as m\n"
        "m.find_spec = lambda name: None if name == 'typer' else find(name)\n"
        "m.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "s3queue: the command line needs an extra: pip install 's3queue[cli]'\n"


def test_a_bucket_that_is_not_there(
    folder: Path, seaweed: S3Server, prefix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before anything is written, also where the server would make one for whoever writes."""
    (folder / "list").write_text("a\n")
    configure(monkeypatch, seaweed)
    workspace = f"s3://{prefix}-misspelled/ws"

    for command in (
        ["populate", workspace, "--from-file", "list"],
        ["work", workspace, "--", "echo", "{}"],
        ["dashboard", workspace, "--port", "0"],
    ):
        assert run(command) == 2
        assert "there is no such bucket" in capsys.readouterr().err

    async def buckets() -> list[str]:
        async with client_of(seaweed) as client:
            return [bucket["Name"] for bucket in (await client.list_buckets())["Buckets"]]

    assert f"{prefix}-misspelled" not in anyio.run(buckets)


def test_a_store_that_is_not_there(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that names the endpoint and what may be wrong with it; exit code 3, since a later try may do."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # it does not listen: whoever connects is refused
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        server = S3Server("nobody", endpoint, "key", "secret", "bucket")
        for name, value in {**server.environment(), "S3QUEUE_RETRY_FOR": "0.5"}.items():
            monkeypatch.setenv(name, value)

        assert run(["status", "s3://bucket/ws"]) == 3

    complaint = capsys.readouterr().err
    assert endpoint in complaint
    assert "can be reached at that endpoint (AWS_ENDPOINT_URL_S3)" in complaint
    assert complaint.count("\n") == 1


def test_a_wrong_key(
    folder: Path, seaweed: S3Server, prefix: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused signature is a matter of configuration: a supervisor need not start the command again."""
    configure(monkeypatch, seaweed)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")

    assert run(["status", f"s3://{seaweed.bucket}/{prefix}"]) == 2

    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_missing_bucket(
    folder: Path, moto: S3Server, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named, in one line."""
    configure(monkeypatch, moto)
    (folder / "list").write_text("a\n")

    assert run(["populate", "s3://no-such-bucket/ws", "--from-file", "list"]) == 2

    line = r"s3queue: s3://no-such-bucket/ws at \S+: there is no such bucket[^\n]*\n"
    assert re.fullmatch(line, capsys.readouterr().err)


def test_json_for_scripts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json standard output holds JSON and nothing else, whatever the command."""
    (folder / "list").write_text("a\nb\n")

    def told(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert run([*arguments, "--json"]) == code
        (line,) = capsys.readouterr().out.splitlines()
        return json.loads(line)

    assert told("populate", "ws", "--from-file", "list") == {"paths": 2, "groups_added": 2}
    command = ["--max-attempts", "1", "--handler", "jobs_of_test:fails"]
    summary = told("work", "ws", *command, code=1)
    assert (summary["dead"], summary["failed"], summary["complete"]) == (2, 2, True)
    assert told("retry", "ws", "--all") == {"retried": 2}
    summary = told("run", "ws", "--from-file", "list", "--handler", "jobs_of_test:shout")
    assert (summary["paths"], summary["groups_added"], summary["done"]) == (2, 0, 2)
    assert told("sweep", "ws") == {"deleted": 0}
    group = Index.decode((folder / "ws" / "work_index_list.csv.zstd").read_bytes()).name(0)
    assert told("release", "ws", group, "--force") == {"released": False}
    assert told("reset", "ws", group)["old"] == group


def test_a_log_of_json_lines(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard error holds an object a line, with the events' names and fields."""
    (folder / "list").write_text("a\n")
    command = ["run", "ws", "--from-file", "list", "--max-attempts", "1", "--handler", "jobs_of_test:fails"]

    assert run([*command, "--log-format", "json", "--log-level", "debug"]) == 1

    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    events = {line["event"]: line for line in lines}
    assert {"index.grown", "group.claimed", "path.failed", "group.failed"} <= events.keys()
    assert events["group.failed"]["level"] == "warning"
    assert events["group.failed"]["dead"] is True
    assert len(events["group.claimed"]["hash"]) == 40
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]+\+00:00", line["time"]) for line in lines)
    assert {line["pid"] for line in lines} == {os.getpid()}


def test_the_log_goes_to_standard_error(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal; warnings alone, unless more is asked for."""
    (folder / "list").write_text("a\n")
    command = ["run", "ws", "--from-file", "list", "--max-attempts", "1", "--handler", "jobs_of_test:fails"]

    assert run(command) == 1
    output = capsys.readouterr()
    assert output.err.startswith("warning: group.failed hash=")
    assert "warning" not in output.out
    assert run(["retry", "ws", "--all"]) == 0
    assert run([*command, "--log-level", "error"]) == 1
    assert capsys.readouterr().err == ""


def test_a_log_that_nobody_reads_any_more(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs no work: both paths are tried, and the exit code says what became of them."""
    (folder / "list").write_text("a\nb\n")

    def broken(*_: object, **__: object) -> NoReturn:
        raise BrokenPipeError

    monkeypatch.setattr("typer.echo", broken)

    assert run(["run", "ws", "--from-file", "list", "--max-attempts", "1", "--handler", "jobs_of_test:fails"]) == 1

    assert len(list((folder / "ws" / "failed_flags").iterdir())) == 2


def test_what_it_says_of_itself(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a command, help; its version; a script for each shell; and the answers that the script asks for."""
    assert run([]) == 0
    assert "Usage: s3queue" in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert re.fullmatch(r"s3queue \d+\.\d+\S*\n", capsys.readouterr().out)
    for shell in ("bash", "zsh", "fish"):
        assert run(["--show-completion", shell]) == 0
        assert "_S3QUEUE_COMPLETE" in capsys.readouterr().out
    assert run(["--show-completion", "tcsh"]) == 2
    monkeypatch.setenv("_S3QUEUE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "s3queue st")
    monkeypatch.setenv("COMP_CWORD", "1")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run([])
    assert capsys.readouterr().out.split() == ["status"]


COMMANDS = (
    "populate", "work", "run", "status", "results", "failures", "retry", "release", "reset", "sweep", "check", "doctor",
    "config", "demo", "dashboard",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_help(command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command has an example that names it, and fits a terminal."""
    monkeypatch.setenv("COLUMNS", "80")

    assert run([command, "--help"]) == 0

    text = capsys.readouterr().out
    assert re.search(rf"Examples?:\s+(\S+ )?.*s3queue {command}\b", text, re.DOTALL)
    assert max(map(len, text.splitlines())) <= 80
    assert "[]" not in text.splitlines()[0]
