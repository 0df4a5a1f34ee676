"""Which paths a populate is about: globs on folders and on buckets, and lists from files."""

from __future__ import annotations

import glob
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import anyio.to_thread

from s3queue._errors import ConfigurationError, InvalidPath
from s3queue._runtime import Runtime
from s3queue.cli._settings import options
from s3queue.stores._listing import list_pages
from s3queue.stores._open import is_s3, open_store, parse_s3

__all__ = ["collect"]

_WILD = re.compile(r"[*?\[]")


async def collect(patterns: Iterable[str], list_file: str | None) -> list[str]:
    """All paths that the patterns match and the file lists. Raises `ConfigurationError` for what matches nothing."""
    paths: list[str] = []
    for pattern in patterns:
        found = await (_on_s3(pattern) if is_s3(pattern) else anyio.to_thread.run_sync(_in_folders, pattern))
        if not found:
            raise ConfigurationError(f"--input {pattern!r} matches nothing{_about(pattern)}")
        paths += found
    if list_file is not None:
        paths += await anyio.to_thread.run_sync(_from_file, list_file)
    if not paths:
        raise ConfigurationError(
            "no paths were given: use --input GLOB or --from-file FILE" if list_file is None
            else f"--from-file {list_file} names no path: write one a line"
        )  # fmt: skip
    return paths


def _about(pattern: str) -> str:
    """A folder is no pattern, on S3 as little as here."""
    return "" if _WILD.search(pattern) else f": for all that is in it, write '{pattern.rstrip('/')}/**/*'"


def _in_folders(pattern: str) -> list[str]:
    """Absolute paths of files, since workers may start in other folders."""
    found = glob.glob(pattern, recursive=True, include_hidden=False)
    return sorted(str(Path(path).absolute()) for path in found if Path(path).is_file())


async def _on_s3(pattern: str) -> list[str]:
    wild = _WILD.search(pattern)
    fixed = pattern[: wild.start()] if wild else pattern
    bucket = parse_s3(fixed if "/" in fixed.removeprefix("s3://") else fixed + "/").bucket
    root = f"s3://{bucket}"
    prefix = fixed.removeprefix(root).lstrip("/")
    matches = _regex(pattern.removeprefix(root).lstrip("/"))
    found = []
    async with open_store(root, options=options(), runtime=Runtime()) as store:
        async for page in list_pages(store, prefix):
            found += [f"{root}/{item.key}" for item in page.objects if matches.fullmatch(item.key)]
    return found


def _regex(pattern: str) -> re.Pattern[str]:
    """A shell's pattern: ``*`` and ``?`` stay within a folder, ``**`` does not."""
    regex = []
    for part in re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", pattern, re.DOTALL):
        if part == "**/":
            regex.append("(?:.*/)?")
        elif part == "**":
            regex.append(".*")
        elif part == "*":
            regex.append("[^/]*")
        elif part == "?":
            regex.append("[^/]")
        elif part.startswith("[") and part.endswith("]") and len(part) > 2:
            inner = part[1:-1].replace("\\", "\\\\")
            regex.append("[^" + inner[1:] + "]" if inner.startswith("!") else "[" + inner + "]")
        else:
            regex.append(re.escape(part))
    return re.compile("".join(regex), re.DOTALL)


def _from_file(name: str) -> list[str]:
    try:
        data = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"--from-file {name}: {error.strerror}") from error
    paths = []
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            path = line.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidPath(f"--from-file {name}: line {number} is not valid UTF-8: {line[:80]!r}") from None
        if path:
            paths.append(path)
    return paths
