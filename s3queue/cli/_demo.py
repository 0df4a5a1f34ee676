"""`s3queue demo`: the main job, on files that every installation has."""

from __future__ import annotations

import csv
import re
import sysconfig
from collections.abc import AsyncIterator
from pathlib import Path

from s3queue._errors import DamagedWorkspace
from s3queue._model import PathResult

__all__ = ["count_words", "sources", "write_table"]

_WORD = re.compile(r"[^\W\d_]+")


def sources() -> list[str]:
    """The Python sources of this installation's standard library, without its packages."""
    return sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))


def count_words(path: str) -> dict[str, int]:
    """How many words a file has, and how many different ones."""
    words = _WORD.findall(Path(path).read_text(encoding="utf-8", errors="replace"))
    return {"words": len(words), "different": len({word.lower() for word in words})}


async def write_table(results: AsyncIterator[PathResult], table: Path) -> tuple[int, int]:
    """Write the results as a table; returns the number of files, and of words."""
    files = words = 0
    with table.open("w", newline="", encoding="utf-8") as output:
        rows = csv.writer(output)
        rows.writerow(["path", "words", "different"])
        async for one in results:
            if not isinstance(one.result, dict) or not isinstance(one.result.get("words"), int):
                raise DamagedWorkspace(f"{table.parent} holds completions that are not this demo's")
            rows.writerow([one.path, one.result["words"], one.result.get("different")])
            files, words = files + 1, words + one.result["words"]
    return files, words
