"""What the folder store does to the disk, step by step."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from s3queue._errors import AccessDenied, PreconditionFailed, StoreError, StoreFull, Throttled, Unanswered
from s3queue.stores._files import link, mapped


def test_olmocr_may_be_quicker(tmp_path: Path) -> None:
    """The last step of a create is refused if a file has come into its place since the check."""
    (tmp_path / "temporary").write_bytes(b"ours")
    (tmp_path / "lock").write_bytes(b"theirs")
    with pytest.raises(PreconditionFailed):
        link(tmp_path / "temporary", tmp_path / "lock")

    assert (tmp_path / "lock").read_bytes() == b"theirs"


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EACCES, AccessDenied),
        (errno.EROFS, AccessDenied),
        (errno.EMFILE, Throttled),
        (errno.EIO, Unanswered),
        (errno.ENOSPC, StoreFull),
        (errno.EDQUOT, StoreFull),
    ],
)
def test_errors_of_the_system(number: int, kind: type[StoreError]) -> None:
    """They are told apart by what a caller can do about them; the message says where, what and on which file."""
    with pytest.raises(StoreError) as caught, mapped("/workspace"):
        raise OSError(number, os.strerror(number), "/workspace/a")

    assert type(caught.value) is kind
    remedy = ": make room there, and start again" if kind is StoreFull else ""
    assert str(caught.value) == f"/workspace: {os.strerror(number)}: /workspace/a{remedy}"
