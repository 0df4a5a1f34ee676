"""`s3queue demo`: the main job, on files that every installation has."""

from __future__ import annotations

import csv
import re
import sysconfig
from pathlib import Path

from s3queue._errors import DamagedWorkspace
from s3queue._index import Index
from s3queue._keys import FLAGS, INDEX, flag
from s3queue._records import Flag

__all__ = ["collect_results", "count_words", "sources"]

_WORD = re.compile(r"[^\W\d_]+")


def sources() -> list[str]:
    """The Python sources of this installation's standard library, without its packages."""
    return sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))


def count_words(path: str) -> dict[str, int]:
    """How many words a file has, and how many different ones."""
    words = _WORD.findall(Path(path).read_text(encoding="utf-8", errors="replace"))
    return {"words": len(words), "different": len({word.lower() for word in words})}


def collect_results(workspace: Path) -> tuple[Path, int, int]:
    """Write the results that the done flags hold as a table; returns it, the number of files, and of words."""
    table = workspace / "word-counts.csv"
    index = Index.decode((workspace / INDEX).read_bytes())
    files = words = 0
    with table.open("w", newline="", encoding="utf-8") as output:
        rows = csv.writer(output)
        rows.writerow(["path", "words", "different"])
        for group, paths in index:
            done = workspace / flag(group)
            if not done.exists():
                continue
            result = Flag.decode(done.read_bytes()).result
            if not isinstance(result, list) or len(result) != len(paths):
                raise DamagedWorkspace(f"{workspace / FLAGS} holds completions that are not this demo's")
            for path, counts in zip(paths, result, strict=True):
                rows.writerow([path, counts["words"], counts["different"]])
                files, words = files + 1, words + counts["words"]
    return table, files, words
