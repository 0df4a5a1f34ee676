"""The blocks of our documents, and running them as a reader would: pasted, in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
SCRIPTS = Path(sys.executable).parent


@dataclass(frozen=True, slots=True)
class Block:
    """A block of code: its language (empty for an indented one), its text, and the line it starts at."""

    language: str
    text: str
    line: int
    heading: str

    @property
    def commands(self) -> list[str]:
        """Its lines that are commands."""
        return [line for line in self.text.splitlines() if line and not line.startswith("#")]


def blocks_of(document: Path) -> list[Block]:
    """Every fenced and every indented block, in order."""
    return list(_blocks(document.read_text()))


def _blocks(text: str) -> Iterator[Block]:
    heading, language, fenced = "", "", False
    lines: list[str] = []
    start, before = 0, ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("```"):
            if fenced:
                yield Block(language, "\n".join(lines) + "\n", start, heading)
            fenced, language, lines, start = not fenced, line[3:].strip(), [], number + 1
        elif fenced or (line.startswith("    ") and (lines or not before)):
            # An indented block follows an empty line; what is indented in the midst of a list does not.
            start = start if lines else number
            lines.append(line if fenced else line[4:])
        elif lines:
            yield Block("", "\n".join(lines) + "\n", start, heading)
            lines = []
        if not fenced and line.startswith("#"):
            heading = line.lstrip("# ")
        before = line
    assert not fenced, "a fence is not closed"


def pasted(
    code: str, folder: Path, *, python: bool = False, environment: Mapping[str, str] | None = None, timeout: float = 100
) -> subprocess.CompletedProcess[str]:
    """Run a block in `folder`, with `s3queue` on the path: by bash, or as a file by this Python."""
    command = ["bash", "-euo", "pipefail", "-c", code]
    if python:
        (folder / "pasted.py").write_text(code)
        command = [sys.executable, "-W", "error", "pasted.py"]
    return subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PATH": f"{SCRIPTS}:{os.environ['PATH']}", "COLUMNS": "200", **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def links_of(document: Path) -> list[str]:
    """Targets of its links to files beside it."""
    found = re.findall(r"\]\(([^)#\s]+)\)", document.read_text())
    return [target for target in found if not re.match(r"[a-z]+:", target)]
