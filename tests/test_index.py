"""The index codec: exact, olmOCR's, and never taking damage for emptiness."""

from __future__ import annotations

import csv
import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from s3queue import DamagedWorkspace, InvalidPath
from s3queue._index import Index, group_hash, validate_paths
from tests import olmocr

AWKWARD = [
    "s3://b/test, ab.pdf", "a b", "a+b", "a%2Bb", "100%.pdf", 'q"uote', "x\ny", "x\r\ny", "日本/é", "k=v&x=#?",
    "x" * 1024,     " leading", "trailing ", '"', '""', ",", "\t", "\u2028", "v" * 200_000,
]  # fmt: skip
#: Characters that end a line for `str.splitlines`, and so for olmOCR.
LINE_ENDS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
quick = settings(derandomize=True, deadline=None, max_examples=100)
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


@quick
@given(paths, paths, st.integers(1, 4))
def test_two_populates_lose_nothing(ours: list[str], theirs: list[str], size: int) -> None:
    """Whoever comes second adds to what it reads: all paths are there, and each is in one group (B33)."""
    first, _ = Index(b"").add(theirs, size)
    both, _ = Index.decode(first.encode()).add(ours, size)

    assert all_paths(both) == sorted({*ours, *theirs})
    assert set(first) <= set(both)
    assert Index.decode(both.encode()).lines() == both.lines()


def test_the_same_call_makes_the_same_groups() -> None:
    """In whatever order, and however often, the paths are given: a populate that is tried again adds nothing."""
    given_paths = ["b", "a", "c", "a"]
    one, added = Index(b"").add(given_paths, 2)

    assert added == 2
    assert one.count_paths() == 3
    assert Index(b"").add(reversed(given_paths), 2)[0].lines() == one.lines()
    assert one.add(given_paths, 2) == one.add(iter(given_paths), 1) == (one, 0)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n", b"\n\n\r\n"])
def test_others_records_keep_their_bytes(end: bytes) -> None:
    """Their spelling (quotes, order, line ends) may differ from ours, and stays."""
    theirs = b"b" * 40 + b',"quoted","a"\r\n' + b"a" * 40 + b",plain"
    index, added = Index(theirs + end).add(["new"], 1)

    assert added == 1
    new = f"{group_hash(['new'])},new".encode()
    assert zstandard.ZstdDecompressor().decompress(index.encode()) == theirs + b"\n" + new
    assert all_paths(index) == ["a", "new", "plain", "quoted"]


def test_groups_whose_names_collide() -> None:
    """olmOCR's rule gives `ab`,`c` and `a`,`bc` one name; the newcomer gets another, and both are kept."""
    assert group_hash(["ab", "c"]) == group_hash(["a", "bc"])
    first, _ = Index(b"").add(["ab", "c"], 2)

    second, added = first.add(["a", "bc"], 2)

    assert added == 1
    assert len({name for name, _ in second}) == 2
    assert all_paths(Index.decode(second.encode())) == ["a", "ab", "bc", "c"]
    assert second.add(["a", "bc", "ab", "c"], 2) == (second, 0)


def test_names_that_collide_in_one_call() -> None:
    """Also within one populate, and again when the second choice is taken as well."""
    taken = [group_hash(["ab", "c"], salt=salt) for salt in range(3)]
    index = Index("\n".join(f"{name},old {i}" for i, name in enumerate(taken)).encode())

    grown, added = index.add(["ab", "c"], 2)

    assert added == 1
    assert len(set(taken)) == 3
    assert dict(grown)[group_hash(["ab", "c"], salt=3)] == ("ab", "c")
    assert group_hash(["b", "bac"]) == group_hash(["bba", "c"])
    both, added = Index(b"").add(["b", "bac", "bba", "c"], 2)
    assert added == len(both) == 2
    assert all_paths(both) == ["b", "bac", "bba", "c"]


@quick
@given(st.lists(st.text(min_size=1), min_size=1, max_size=5), st.integers(1, 9))
def test_salted_names_are_told_apart(group: list[str], salt: int) -> None:
    """The other names have a separator: moving a character from path to path changes them."""
    shifted = [*group[:-1], group[-1] + "x"], [*group[:-1], group[-1], "x"]
    assert group_hash(shifted[0], salt=salt) != group_hash(shifted[1], salt=salt)
    assert group_hash(group, salt=salt) == group_hash(group[::-1], salt=salt) != group_hash(group)


def test_a_record_that_is_there_twice_counts_once() -> None:
    """An index joined from copies names the same groups; nobody would ever finish the second."""
    once = Index(b"").add(["one", "t,wo"], 1)[0]
    text = "\n".join(once.lines()).encode()

    twice = Index.decode(frame(text + b"\n") + frame(text))

    assert len(twice) == 2
    assert twice.lines() == once.lines()
    assert twice.add(["one", "t,wo"], 1) == (twice, 0)


def test_olmocr_reads_what_we_write(tmp_path: Path) -> None:
    """One frame with its size, records joined by line ends, CSV: the same groups by olmOCR's own reading."""
    index, _ = Index(b"").add([f"s3://b/{i}, {i % 7}.pdf" for i in range(1000)], 5)
    (tmp_path / "work_index_list.csv.zstd").write_bytes(index.encode())

    assert olmocr.read_index(tmp_path) == {name: list(group) for name, group in index}


@quick
@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_characters=LINE_ENDS), min_size=1), min_size=1, unique=True),
    st.integers(1, 5),
)
def test_olmocr_reads_any_path_without_line_ends(
    tmp_path_factory: pytest.TempPathFactory, given_paths: list[str], size: int
) -> None:
    """Spaces at the ends, quotes, commas and controls included; a line end is what olmOCR itself cannot store."""
    index, _ = Index(b"").add(given_paths, size)
    workspace = tmp_path_factory.getbasetemp() / "any-path"
    workspace.mkdir(exist_ok=True)
    (workspace / "work_index_list.csv.zstd").write_bytes(index.encode())

    assert olmocr.read_index(workspace) == {name: list(group) for name, group in index}


def test_we_read_what_olmocr_writes() -> None:
    """Fields as Python's `csv` quotes them, lines joined by line ends."""
    groups = [["plain"], ['q"uote', "com,ma"], ["a b", " x"], ['"', ","]]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([olmocr.group_hash(group), *group] for group in groups)

    index = Index.decode(frame(text.getvalue().encode()))

    assert {name: list(group) for name, group in index} == {olmocr.group_hash(group): group for group in groups}


def test_every_kind_of_frame_is_read() -> None:
    """Concatenated frames, frames without a size, skippable ones, other line ends (B34)."""
    a, b = (Index(b"").add([name], 1)[0].lines()[0].encode() for name in ("one", "two"))
    skippable = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"

    for data in (
        frame(a + b"\n") + frame(b),
        frame(a + b"\n" + b, size=False),
        skippable + frame(a + b"\r\n" + b + b"\r\n"),
        frame(a) + skippable + frame(b"\n" + b) + skippable,
        frame(b"\n" + a + b"\n\n" + b + b"\n"),
    ):
        assert all_paths(Index.decode(data)) == ["one", "two"]


@pytest.mark.parametrize("size", [True, False])
def test_a_frame_of_many_chunks_is_read(size: bool) -> None:
    """Compressed or not, an index may be larger than what is decompressed at a time."""
    noise = "".join(hashlib.sha256(str(i).encode()).hexdigest() for i in range(50_000))
    text = b"a" * 40 + b"," + noise.encode()

    small = b"b" * 40 + b",last"
    assert len(frame(text, size=size)) > 1 << 20

    for data in (frame(text, size=size) + frame(b"\n" + small), frame(small + b"\n") + frame(text, size=size)):
        index = Index.decode(data)
        assert list(index) == [("a" * 40, (noise,)), ("b" * 40, ("last",))]


def test_damage_is_never_emptiness() -> None:
    """Cut at any byte, or with any byte changed, an index is refused, or read exactly as it was."""
    whole = Index(b"").add(["one", "two", "three"], 1)[0]
    data = whole.encode()

    for cut in range(len(data)):
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
        b"0123456789abcdef0123456789abcdef01234567 ,path",
        b" 0123456789abcdef0123456789abcdef01234567,path",
        b"0123456789abcdef0123456789abcdef0123456,path",
        "٠123456789abcdef0123456789abcdef01234567,path".encode(),
        b"[]",
        b"{}",
        b"\x00" * 100,
        b"a" * 40 + b",one\n" + b"a" * 40 + b",two",
    ],
)
def test_foreign_text_is_refused(text: bytes) -> None:
    """What is no index, or says two things of one group, is an error that names the place."""
    with pytest.raises(DamagedWorkspace, match="index"):
        Index.decode(frame(text))


@pytest.mark.parametrize("fields", [b'"x"y,z', b'x"y"z', b'"a""', b"\xff", b'"\xff"', b"a,\xed\xa0\x80"])
def test_a_broken_record_is_refused_where_it_is_read(fields: bytes) -> None:
    """Also by a populate, which must not write it on."""
    text = b"a" * 40 + b"," + fields + b"\n"
    with pytest.raises(DamagedWorkspace, match="the index is damaged"):
        Index(text).add(["new"], 1)


@quick
@given(st.one_of(st.binary(max_size=200), st.binary(max_size=200).map(frame), st.tuples(
    st.text('0af,"\r\n ', max_size=60), st.sampled_from(["", "a" * 40, "a" * 40 + ",", "\n" + "b" * 40 + ',"'])
).map(lambda parts: frame((parts[1] + parts[0]).encode()))))  # fmt: skip
def test_any_bytes_are_an_index_or_damage(data: bytes) -> None:
    """Nothing else comes out of foreign bytes, and what is read can be written and read again."""
    try:
        index = Index.decode(data)
        groups = list(index)
    except DamagedWorkspace:
        return
    assert list(Index.decode(index.encode())) == groups
    assert Index("\n".join(index.lines()).encode()).names() == index.names()


def test_not_even_compressed() -> None:
    """Plain text is no index."""
    with pytest.raises(DamagedWorkspace, match="zstd"):
        Index.decode(b"a" * 40 + b",one")


def test_an_object_of_no_bytes_is_damage() -> None:
    """It is what a crash leaves of a file; an index without groups is a frame, if an empty one."""
    with pytest.raises(DamagedWorkspace, match="no bytes"):
        Index.decode(b"")
    assert len(Index.decode(frame(b""))) == len(Index.decode(Index(b"").encode())) == 0


def test_a_group_without_paths_is_read() -> None:
    """Nothing of ours, but whole: it is kept, and has nothing to do."""
    text = b"b" * 40 + b"\n" + b"a" * 40 + b",,\n" + b"c" * 40 + b',"",""'
    index = Index(text)

    assert list(index) == [("a" * 40, ()), ("b" * 40, ()), ("c" * 40, ())]
    assert index.lines() == ["a" * 40 + ",,", "b" * 40, "c" * 40 + ',"",""']


def test_a_large_index_finds_its_groups() -> None:
    """By name, and by the place where a name would be."""
    count = 100_000
    text = "\n".join(f"{2 * i:040x},path {i}" for i in range(count)).encode()

    index = Index.decode(frame(text))

    assert len(index) == index.count_paths() == len(index.names()) == count
    for i in (0, 1, 777, count - 1):
        assert index.find(f"{2 * i:040x}") == index.position(f"{2 * i:040x}") == i
        assert index.find(f"{2 * i + 1:040x}") is None
        assert index.position(f"{2 * i + 1:040x}") == i + 1
        assert index.paths(i) == (f"path {i}",)
    assert (index.position("0"), index.position(""), index.position("f" * 40)) == (0, 0, count)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("one string", "not one string"),
        (b"bytes", "not one string"),
        (["a", ""], "empty"),
        (["a", 1], "not int"),
        ([b"a"], "not bytes"),
        ([None], "not NoneType"),
        (["\udcff"], "UTF-8"),
    ],
)
def test_what_cannot_be_stored_is_refused(bad: Any, why: str) -> None:
    """The error shows the path, and says what is wrong with it."""
    with pytest.raises(InvalidPath, match=why):
        validate_paths(bad)


def test_good_paths_are_taken_as_they_are() -> None:
    """From any iterable, in their order, and none is tidied up."""
    assert validate_paths(iter(AWKWARD)) == AWKWARD
