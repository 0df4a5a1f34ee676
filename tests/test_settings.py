"""Settings: flags before the environment before a file; mistakes are named with where they were made."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from s3queue._errors import ConfigurationError
from s3queue.cli._app import run
from s3queue.cli._settings import Settings

NAMES = {"workers", "lease-ttl", "wait"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list").write_text("a\nb\n")
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str]) -> dict[str, tuple[str, str]]:
    capsys.readouterr()
    assert run(["config", "--json"]) == 0
    rows: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {row["name"]: (row["value"], row["source"]) for row in rows}


def test_where_each_value_comes_from(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment goes before the file of the nearest folder that has one; the rest are defaults."""
    (folder / "pyproject.toml").write_text("[tool.s3queue]\nworkers = 4\nclaim_ahead = 3\nforever = true\n")
    (below := folder / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(below)
    monkeypatch.setenv("S3QUEUE_WORKERS", "5")
    monkeypatch.setenv("S3QUEUE_GRACE", "")

    rows = shown(capsys)

    file = str(folder / "pyproject.toml")
    assert rows["workers"] == ("5", "S3QUEUE_WORKERS")
    assert rows["claim-ahead"] == ("3", file)
    assert rows["forever"] == ("true", file)
    assert rows["grace"] == ("30.0", "default")
    (folder / "a" / "s3queue.toml").write_text("workers = 6\n")
    monkeypatch.delenv("S3QUEUE_WORKERS")
    assert shown(capsys)["workers"] == ("6", str(folder / "a" / "s3queue.toml"))
    assert shown(capsys)["forever"] == ("false", "default")


def test_a_file_without_a_table_of_ours_is_no_settings(folder: Path) -> None:
    """The search goes on above a pyproject.toml that is about something else."""
    (folder / "s3queue.toml").write_text("workers = 7\n")
    (below := folder / "project").mkdir()
    (below / "pyproject.toml").write_text("[project]\nname = 'x'\n")

    assert Settings.read(NAMES, {}, below).values["workers"].text == "7"


def test_what_is_set_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the command, and by the queue; and a flag goes before it."""
    (folder / "s3queue.toml").write_text("max-attempts = 1\nitems-per-group = 2\nbackoff = 0\n")

    assert run(["run", "ws", "--from-file", "list", "--", "false", "{}"]) == 1
    assert len(list((folder / "ws" / "failed_flags").iterdir())) == 1
    assert run(["run", "other", "--from-file", "list", "--max-attempts", "2", "--", "false", "{}"]) == 1
    assert len(list((folder / "other" / "failed_flags").iterdir())) == 2
    monkeypatch.setenv("S3QUEUE_ITEMS_PER_GROUP", "1")
    assert run(["populate", "third", "--from-file", "list"]) == 0


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("worker = 4\n", "s3queue.toml: 'worker' is no setting"),
        ("handler = 'a:b'\n", "s3queue.toml: 'handler' is no setting"),
        ("workers = [4]\n", "s3queue.toml: 'workers' must be a single value, not list"),
        ("workers = 2.5\n", "s3queue.toml)"),
        ("workers = 'many'\n", "'--workers'"),
        ("claim-ahead = 'many'\n", "s3queue.toml: claim-ahead must be a whole number, not 'many'"),
        ("check-store = 2\n", "s3queue.toml: check-store must be true or false"),
        ("lease-ttl = 1\n", "--lease-ttl (1) must be"),
        ("connections = 0\n", "the setting connections must be"),
        ("put-args = 4\n", "put-args must be a table"),
        ("workers =\n", "s3queue.toml cannot be read"),
    ],
)
def test_a_mistake_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str], text: str, complaint: str) -> None:
    """It names the file and the key."""
    (folder / "s3queue.toml").write_text(text)

    assert run(["run", "ws", "--from-file", "list", "--", "echo", "{}"]) == 2

    output = capsys.readouterr().err
    assert complaint in output
    assert re.fullmatch(r"s3queue: [^\n]+\n", output)


def test_a_mistake_in_the_environment(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names the variable; one that is no setting is ignored, which is said."""
    monkeypatch.setenv("S3QUEUE_WORKERS", "many")
    monkeypatch.setenv("S3QUEUE_WROKERS", "3")
    monkeypatch.setenv("S3QUEUE_HASH", "set for commands")

    assert run(["run", "ws", "--from-file", "list", "--", "echo", "{}"]) == 2
    complaint = capsys.readouterr().err
    assert "(set by S3QUEUE_WORKERS)" in complaint
    assert "s3queue: S3QUEUE_WROKERS names no setting and is ignored" in complaint
    assert run(["run", "ws", "--from-file", "list", "--workers", "many", "--", "echo", "{}"]) == 2
    assert "set by" not in capsys.readouterr().err
    assert run(["config"]) == 0
    output = capsys.readouterr().out
    assert "S3QUEUE_WROKERS names no setting" in output
    assert "S3QUEUE_HASH" not in output


def test_extra_arguments_of_writes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are for S3 alone, and no value of theirs is shown."""
    (folder / "s3queue.toml").write_text("[put-args]\nServerSideEncryption = 'AES256'\nSSECustomerKey = 'secret'\n")

    assert run(["populate", "ws", "--from-file", "list"]) == 0
    assert shown(capsys)["put-args.SSECustomerKey"] == ("(set)", str(folder / "s3queue.toml"))


def test_numbers_of_options(folder: Path) -> None:
    """What is set is converted to what the option is."""
    (folder / "s3queue.toml").write_text("connections = 8\ncheck-store = 'no'\nretry_for = 4\n")

    options = Settings.read(NAMES, {"S3QUEUE_BACKOFF": "1.5"}, folder).options(lease_ttl=60.0)

    assert (options.connections, options.check_store, options.retry_for) == (8, False, 4.0)
    assert (options.backoff, options.lease_ttl) == (1.5, 60.0)
    (folder / "s3queue.toml").write_text("connections = 'x'\n")
    with pytest.raises(ConfigurationError, match="connections"):
        Settings.read(NAMES, {}, folder).options()
