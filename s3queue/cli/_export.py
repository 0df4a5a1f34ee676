"""Results as files: JSON lines or CSV."""

from __future__ import annotations

import csv
import dataclasses
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

from s3queue._errors import ConfigurationError
from s3queue._model import PathResult

__all__ = ["export"]

_COLUMNS = [field.name for field in dataclasses.fields(PathResult)]


async def export(results: AsyncIterator[PathResult], form: Literal["jsonl", "csv"], output: Path | None) -> int:
    """Write the results to a file, which appears only once it is whole, or to standard output; returns how many."""
    count = 0
    with _opened(output) as file:
        write = (_csv_writer if form == "csv" else _jsonl_writer)(file)
        async for result in results:
            write(result)
            count += 1
    return count


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
        return
    partial = output.with_name(output.name + ".partial")
    try:
        with partial.open("w", newline="", encoding="utf-8") as file:
            yield file
        os.replace(partial, output)
    except OSError as error:
        raise ConfigurationError(f"--output {output}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _jsonl_writer(file: TextIO) -> Callable[[PathResult], Any]:
    def write(result: PathResult) -> None:
        file.write(json.dumps(dataclasses.asdict(result), ensure_ascii=False) + "\n")

    return write


def _csv_writer(file: TextIO) -> Callable[[PathResult], Any]:
    rows = csv.writer(file, lineterminator="\n")
    rows.writerow(_COLUMNS)

    def write(result: PathResult) -> None:
        rows.writerow([*dataclasses.astuple(result)[:-1], _cell(result.result)])

    return write


def _cell(value: Any) -> str:
    """Text as it is, nothing for nothing, and JSON for everything else."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
