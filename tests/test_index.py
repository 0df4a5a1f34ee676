"""The index codec: exact, olmOCR's, and never taking damage for emptiness."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from s3queue import DamagedWorkspace
from s3queue._index import Index, group_hash
from tests import olmocr

AWKWARD = [
    "s3://b/test, ab.pdf", "a b", "a+b", "a%2Bb", "100%.pdf", 'q"uote', "x\ny", "x\r\ny", "日本/é", "k=v&x=#?",
    "x" * 1024,     " leading", "trailing ", '"', '""', ",", "\t", "\u2028", "v" * 200_000,
]  # fmt: skip
paths = st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=20, unique=True)


def frame(text: bytes, *, size: bool = True) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=size).compress(text)


def all_paths(index: Index) -> list[str]:
    return sorted(path for _, group in index for path in group)


def test_awkward_paths_come_back_exactly() -> None:
    """Any path is read as it was written, and its group has olmOCR's name (B24)."""
    index, added = Index(b"").add(AWKWARD, 3)
    again = Index.decode(index.encode())

    assert added == -(-len(AWKWARD) // 3)
    assert all_paths(again) == sorted(AWKWARD)
    assert all(name == olmocr.group_hash(list(group)) for name, group in again)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(paths, st.integers(1, 7))
def test_any_paths_come_back_exactly(given_paths: list[str], size: int) -> None:
    """Populate, encode and decode lose and change nothing; populating again adds nothing."""
    index, _ = Index(b"").add(given_paths, size)
    again = Index.decode(index.encode())

    assert all_paths(again) == sorted(given_paths)
    assert again.add(given_paths, size) == (again, 0)
    assert [again.find(name) for name, _ in again] == list(range(len(again)))


def test_growth_keeps_what_is_there() -> None:
    """Existing records keep their bytes; known paths are not added again."""
    first, _ = Index(b"").add([f"a{i}" for i in range(10)], 3)
    second, added = first.add([f"a{i}" for i in range(20)], 4)

    assert added == 3
    assert set(first.lines()) < set(second.lines())
    assert all_paths(second) == sorted(f"a{i}" for i in range(20))


def test_groups_whose_names_collide() -> None:
    """olmOCR's rule gives `ab`,`c` and `a`,`bc` one name; the newcomer gets another, and both are kept."""
    assert group_hash(["ab", "c"]) == group_hash(["a", "bc"])
    first, _ = Index(b"").add(["ab", "c"], 2)

    second, added = first.add(["a", "bc"], 2)

    assert added == 1
    assert len({name for name, _ in second}) == 2
    assert all_paths(Index.decode(second.encode())) == ["a", "ab", "bc", "c"]


def test_olmocr_reads_what_we_write(tmp_path: Path) -> None:
    """One frame with its size, records joined by line ends, CSV: the same groups by olmOCR's own reading."""
    index, _ = Index(b"").add([f"s3://b/{i}, {i % 7}.pdf" for i in range(1000)], 5)
    (tmp_path / "work_index_list.csv.zstd").write_bytes(index.encode())

    assert olmocr.read_index(tmp_path) == {name: list(group) for name, group in index}


def test_every_kind_of_frame_is_read() -> None:
    """Concatenated frames, frames without a size, skippable ones, other line ends (B34)."""
    a, b = (Index(b"").add([name], 1)[0].lines()[0].encode() for name in ("one", "two"))
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"

    for data in (
        frame(a + b"\n") + frame(b),
        frame(a + b"\n" + b, size=False),
        skippable + frame(a + b"\r\n" + b + b"\r\n"),
        frame(b"\n" + a + b"\n\n" + b + b"\n"),
    ):
        assert all_paths(Index.decode(data)) == ["one", "two"]


def test_damage_is_never_emptiness() -> None:
    """Cut at any byte, or with any byte changed, an index is refused, or read exactly as it was."""
    whole = Index(b"").add(["one", "two", "three"], 1)[0]
    data = whole.encode()

    for cut in range(1, len(data)):
        with pytest.raises(DamagedWorkspace):
            Index.decode(data[:cut])
    for at in range(len(data)):
        try:
            index = Index.decode(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        except DamagedWorkspace:
            continue
        assert index.lines() == whole.lines()


@pytest.mark.parametrize(
    "text",
    [
        b"hello world",
        b"path,path",
        b"0123456789abcdef0123456789abcdef01234567extra,path",
        b"0123456789ABCDEF0123456789abcdef01234567,path",
        b'0123456789abcdef0123456789abcdef01234567,"open',
        b"a" * 40 + b",one\n" + b"a" * 40 + b",two",
    ],
)
def test_foreign_text_is_refused(text: bytes) -> None:
    """What is no index, or says two things of one group, is an error that names the place."""
    with pytest.raises(DamagedWorkspace, match="index"):
        Index.decode(frame(text))


def test_not_even_compressed() -> None:
    """Plain text is no index."""
    with pytest.raises(DamagedWorkspace, match="zstd"):
        Index.decode(b"a" * 40 + b",one")


def test_no_object_and_an_empty_one() -> None:
    """An empty object is an index without groups, as an absent one is."""
    assert len(Index.decode(b"")) == len(Index.decode(frame(b""))) == 0
