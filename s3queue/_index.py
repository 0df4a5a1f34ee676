"""The index: which groups there are, and their paths.

One zstd frame of CSV records joined by ``\\n``: group name, path, path, … A path that holds a comma, a quote or a line
end is quoted as in RFC 4180. Read, several frames, frames without a size, and skippable frames are all understood;
anything that is not wholly an index raises `DamagedWorkspace`, so that damage is never taken for emptiness.

In memory an index is its raw text, the sorted names (20 bytes each, and their first 8 again, to search in) and each
record's place: a million groups cost some 44 MB beyond the text, and up to 80 MB while they are read.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import zstandard

from s3queue._errors import ConfigurationError, DamagedWorkspace, InvalidPath

__all__ = ["Index", "decompress", "group_hash", "successor", "validate_paths"]

#: What an index is read from. A bytearray is what a frame of unknown size grows in; it is never changed afterwards.
Text = bytes | bytearray

_NAME = 20
#: Digits of a name that stand for it, if no other one begins with them.
_DIGITS_LEAST = 4
_RECORD = re.compile(rb"[0-9a-f]{40}(?:,|$)")
#: Most records: a line without a quote.
_PLAIN = re.compile(rb"([0-9a-f]{2})[0-9a-f]{38}(?:,[^\"\n]*)?\n")
_FIELD = re.compile(r'(?:"((?:[^"]|"")*)"|([^,"]*))(,|$)')
_CHUNK = 1 << 20


def group_hash(paths: Sequence[str], *, salt: int = 0) -> str:
    """A group's name: olmOCR's SHA-1 over its sorted, concatenated paths.

    That rule has no separator, so different groups can share a name (``ab``, ``c`` and ``a``, ``bc``). `salt` > 0 gives
    the other names that populate then turns to: the same over NUL-terminated paths and the salt.
    """
    end = "\0" if salt else ""
    text = "".join(path + end for path in sorted(paths)) + (str(salt) if salt else "")
    return hashlib.sha1(text.encode("utf-8"), usedforsecurity=False).hexdigest()


def validate_paths(paths: Iterable[str]) -> list[str]:
    """The paths as a list. Raises `InvalidPath` for whatever could not be stored and read back exactly."""
    if isinstance(paths, (str, bytes)):
        raise InvalidPath(f"paths must be a list of paths, not one string: write [{paths!r}]")
    checked = []
    for path in paths:
        if not isinstance(path, str):
            raise InvalidPath(f"a path must be a string, not {type(path).__name__}: {path!r}")
        if not path:
            raise InvalidPath("a path is empty: leave it out")
        try:
            path.encode("utf-8")
        except UnicodeEncodeError:
            raise InvalidPath(f"this path is not valid UTF-8: {path!r}") from None
        checked.append(path)
    return checked


class Index:
    """The groups of a workspace, in the order of their names. Immutable; `add` makes a new one."""

    __slots__ = ("_ends", "_heads", "_names", "_starts", "_text")

    def __init__(self, text: Text) -> None:
        self._text = text
        self._names = bytearray()
        self._starts = array("Q")
        self._ends = array("Q")
        #: The first bytes of the names, as numbers, so that a name is found without leaving C.
        self._heads = array("Q")
        for share in _in_order(text):
            records = _distinct(text, share)
            self._names += b"".join([name for name, _, _ in records])
            self._starts.extend([start for _, start, _ in records])
            self._ends.extend([end for _, _, end in records])
            self._heads.extend([int.from_bytes(name[:8], "big") for name, _, _ in records])

    @classmethod
    def decode(cls, data: bytes) -> Index:
        """Read the bytes of an index object. Raises `DamagedWorkspace`."""
        return cls(decompress(data))

    def encode(self) -> bytes:
        """One zstd frame with content size and checksum, so that damage shows."""
        return zstandard.ZstdCompressor(write_checksum=True, write_content_size=True).compress(self._text)

    def __len__(self) -> int:
        return len(self._starts)

    def name(self, i: int) -> str:
        """The `i`-th group's name."""
        return self._names[i * _NAME : (i + 1) * _NAME].hex()

    def paths(self, i: int) -> tuple[str, ...]:
        """The `i`-th group's paths, in the order of the record. Raises `DamagedWorkspace` on a broken record."""
        return _split(self._text, self._starts[i], self._ends[i])

    def find(self, group: str) -> int | None:
        """The position of a group, or None."""
        i = self.position(group)
        return i if i < len(self) and self.name(i) == group else None

    def position(self, group: str) -> int:
        """The position of the first group whose name is not before this one."""
        try:
            head = int(group[:16].ljust(16, "0"), 16)
        except ValueError:
            return bisect_left(range(len(self)), group, key=self.name)
        first = bisect_left(self._heads, head)
        if first == len(self) or self.name(first) >= group:
            return first
        last = bisect_right(self._heads, head, first)
        return bisect_left(range(last), group, first, key=self.name)

    def resolve(self, start: str) -> str:
        """The name of the one group whose name is this, or begins with it. Raises `ConfigurationError`."""
        first = last = self.position(start)
        if len(start) >= _DIGITS_LEAST:
            # "g" comes after every digit of a name.
            last = bisect_left(range(len(self)), start + "g", first, key=self.name)
        if last - first > 1:
            raise ConfigurationError(f"the hashes of {last - first} groups begin with {start!r}: give more of it")
        if last == first:
            raise ConfigurationError(
                f"{start!r} is no group of this workspace: `failures` and `results` show the hashes of those that "
                "failed and of those that are done"
            )
        return self.name(first)

    def names(self) -> set[str]:
        """The names of all groups."""
        return {self.name(i) for i in range(len(self))}

    def lines(self) -> list[str]:
        """The records as olmOCR's lines of CSV. Raises `DamagedWorkspace` if one is not UTF-8."""
        try:
            return [self._text[s - 40 : e].decode("utf-8") for s, e in zip(self._starts, self._ends, strict=True)]
        except UnicodeDecodeError as error:
            raise DamagedWorkspace(f"the index is damaged: a record is not UTF-8 ({error.reason})") from None

    def __iter__(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        return ((self.name(i), self.paths(i)) for i in range(len(self)))

    def count_paths(self) -> int:
        """How many paths the groups hold together."""
        return sum(len(self.paths(i)) for i in range(len(self)))

    def add(self, paths: Iterable[str], items_per_group: int) -> tuple[Index, int]:
        """An index with the paths that this one lacks, in new groups, and the number of those.

        Existing records keep their bytes. New paths are sorted, so that the same call makes the same groups.
        """
        known = {path for i in range(len(self)) for path in self.paths(i)}
        new = iter(sorted(set(paths) - known))
        names = self.names()
        lines = []
        while group := list(islice(new, items_per_group)):
            name = _free_name(group, names)
            names.add(name)
            lines.append(",".join([name, *map(_quote, group)]).encode("utf-8"))
        if not lines:
            return self, 0
        old = self._text.rstrip(b"\r\n")
        return Index(b"\n".join([old, *lines] if old else lines)), len(lines)

    def renamed(self, names: Mapping[str, str]) -> Index:
        """An index in which these groups have new names; those that it does not have are passed over."""
        text = bytearray(self._text)
        for old, new in names.items():
            i = self.find(old)
            if i is not None:
                text[self._starts[i] - 40 : self._starts[i]] = new.encode("ascii")
        return Index(bytes(text))


def successor(name: str) -> str:
    """The name of a group that is run once more under a new name, so that what its old name did stays history."""
    return hashlib.sha1(b"again" + bytes.fromhex(name), usedforsecurity=False).hexdigest()


def _free_name(group: list[str], taken: set[str]) -> str:
    salt = 0
    while (name := group_hash(group, salt=salt)) in taken:
        salt += 1
    return name


def _quote(path: str) -> str:
    if any(c in path for c in ',"\r\n') or path != path.strip():
        return '"' + path.replace('"', '""') + '"'
    return path


def _in_order(text: Text) -> Iterator[list[tuple[bytes, int, int]]]:
    """(name, end of the name, end) of each record, in the order of the names, one share of them at a time.

    Shared out by their first digits as they are read, and sorted a share at a time: as objects, a million records would
    take ten times the room that their places do."""
    shares: defaultdict[bytes, array[int]] = defaultdict(lambda: array("Q"))
    for digits, start, end in _records(text):
        shares[digits].extend((start, end))
    for digits in sorted(shares):
        places = shares.pop(digits)
        yield sorted(
            (bytes.fromhex(text[start - 40 : start].decode("ascii")), start, end)
            for start, end in zip(places[::2], places[1::2], strict=True)
        )


def _records(text: Text) -> Iterator[tuple[bytes, int, int]]:
    """(first digits of its name, end of its name, end) of each record. An open quote goes on in the next line."""
    start = position = 0
    while position < len(text):
        if start == position and (plain := _PLAIN.match(text, position)):
            yield plain[1], start + 40, (end := plain.end()) - 1
            start = position = end
            continue
        end = text.find(b"\n", position)
        end = len(text) if end < 0 else end
        position = end + 1
        if text.count(b'"', start, end) % 2:
            continue
        if text[start:end].strip():
            if not _RECORD.match(text, start, end):
                raise DamagedWorkspace(f"the index is foreign or damaged at byte {start}: no group name there")
            yield bytes(text[start : start + 2]), start + 40, end
        start = position
    if start < len(text):
        raise DamagedWorkspace(f"the index is damaged at byte {start}: a quoted path has no end")


def _distinct(text: Text, records: Iterable[tuple[bytes, int, int]]) -> list[tuple[bytes, int, int]]:
    """Sorted records without those that say again what the one before says, as in an index joined from copies."""
    found: list[tuple[bytes, int, int]] = []
    for name, start, end in records:
        if not found or name != found[-1][0]:
            found.append((name, start, end))
        elif _split(text, start, end) != _split(text, *found[-1][1:]):
            raise DamagedWorkspace(f"the index names two different groups {name.hex()}: restore it from a copy")
    return found


def _split(text: Text, start: int, end: int) -> tuple[str, ...]:
    return tuple(filter(None, _fields(text[start + 1 : end])))  # a comma is between the name and the paths


def _fields(record: Text) -> Iterator[str]:
    try:
        text = record.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DamagedWorkspace(f"the index is damaged: a record is not UTF-8 ({error.reason})") from None
    text = text.removesuffix("\r")
    if '"' not in text:
        yield from text.split(",")
        return
    position = 0
    while True:
        match = _FIELD.match(text, position)
        if match is None:
            raise DamagedWorkspace(f"the index is damaged: a record is not CSV ({text[position : position + 40]!r})")
        yield match[1].replace('""', '"') if match[1] is not None else match[2]
        if not match[3]:
            return
        position = match.end()


def decompress(data: bytes) -> bytearray:
    """The text of an index object. Raises `DamagedWorkspace`."""
    if not data:
        raise DamagedWorkspace("the index is an object of no bytes: restore it from a copy, or delete it")
    out = bytearray()
    rest = data
    try:
        while rest:
            frame = zstandard.ZstdDecompressor().decompressobj()
            for at in range(0, len(rest), _CHUNK):
                out += frame.decompress(rest[at : at + _CHUNK])
                if frame.eof:
                    rest = frame.unused_data + rest[at + _CHUNK :]
                    break
            else:
                raise DamagedWorkspace("the index is cut off in the middle: restore it from a copy")
    except zstandard.ZstdError as error:
        raise DamagedWorkspace(f"the index is not zstd, or damaged ({error}): restore it from a copy") from error
    return out
