"""The names of a workspace's objects: built and parsed here and nowhere else. Each pair is the other's inverse.

The first three are olmOCR's (``olmocr/work_queue.py``); it ignores the rest.
"""

from __future__ import annotations

import re

INDEX = "work_index_list.csv.zstd"
LOCKS = "worker_locks/"
FLAGS = "done_flags/"
FAILURES = "failed_flags/"
RESULTS = "results/"
#: The start-up check's scratch keys: below a prefix that nothing else reads.
SCRATCH = "store_check/"

_LOCK = re.compile(r"worker_locks/worker_([0-9a-f]{40})\.lock")
_FLAG = re.compile(r"done_flags/done_([0-9a-f]{40})\.flag")
_PIECE = re.compile(r"results/result_([0-9a-f]{40})\.(0|[1-9][0-9]{0,17})\.(0|[1-9][0-9]{0,17})\.json")
_FAILURE = re.compile(r"failed_flags/failed_([0-9a-f]{40})\.(0|[1-9][0-9]{0,17})\.json")


def lock(group: str) -> str:
    """The key of the lease on a group."""
    return f"worker_locks/worker_{group}.lock"


def parse_lock(key: str) -> str | None:
    """The group whose lease this key is; None for a key that is no lease (it is somebody else's object)."""
    match = _LOCK.fullmatch(key)
    return match[1] if match else None


def flag(group: str) -> str:
    """The key of a group's completion."""
    return f"done_flags/done_{group}.flag"


def flag_prefix(digits: str) -> str:
    """What the keys of all completions whose group's name starts with `digits` start with."""
    return f"done_flags/done_{digits}"


def parse_flag(key: str) -> str | None:
    """The group whose completion this key is, or None."""
    match = _FLAG.fullmatch(key)
    return match[1] if match else None


def failure(group: str, epoch: int) -> str:
    """The key of the record of one failed attempt."""
    return f"failed_flags/failed_{group}.{epoch}.json"


def failure_prefix(group: str) -> str:
    """What the keys of all records of a group's failed attempts start with."""
    return f"failed_flags/failed_{group}."


def parse_failure(key: str) -> tuple[str, int] | None:
    """The group and the epoch of a failure record, or None."""
    match = _FAILURE.fullmatch(key)
    return (match[1], int(match[2])) if match else None


def piece(group: str, epoch: int, number: int) -> str:
    """The key of one piece of an epoch's results."""
    return f"results/result_{group}.{epoch}.{number}.json"


def parse_piece(key: str) -> tuple[str, int, int] | None:
    """The group, the epoch and the number of a piece, or None."""
    match = _PIECE.fullmatch(key)
    return (match[1], int(match[2]), int(match[3])) if match else None
