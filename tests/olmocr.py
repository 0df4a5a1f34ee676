"""olmOCR's own rules for reading a folder workspace (`olmocr/work_queue.py`), written from its documented behaviour."""

from __future__ import annotations

import csv
import hashlib
import time
from pathlib import Path

import zstandard


def read_index(workspace: Path) -> dict[str, list[str]]:
    """Group name → paths: one zstd frame with its size, lines, one CSV record each."""
    text = (
        zstandard.ZstdDecompressor().decompress((workspace / "work_index_list.csv.zstd").read_bytes()).decode("utf-8")
    )
    records = [next(csv.reader([line.strip()])) for line in text.splitlines() if line.strip()]
    return {record[0]: record[1:] for record in records}


def group_hash(paths: list[str]) -> str:
    """The name of a group."""
    return hashlib.sha1("".join(sorted(paths)).encode()).hexdigest()


def is_completed(workspace: Path, group: str) -> bool:
    """A flag is there."""
    return (workspace / "done_flags" / f"done_{group}.flag").exists()


def is_taken(workspace: Path, group: str, timeout: float = 1800) -> bool:
    """A lock is there, and not older than the timeout."""
    lock = workspace / "worker_locks" / f"worker_{group}.lock"
    return lock.exists() and time.time() - lock.stat().st_mtime <= timeout
