"""The few XML documents of S3 that the lean request path reads and writes. They are untrusted: no entities, no DTD."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import unquote
from xml.parsers import expat
from xml.sax.saxutils import escape

from s3queue._errors import Unanswered

__all__ = ["Entry", "Listing", "delete_body", "read_errors", "read_listing"]


@dataclass(slots=True)
class Entry:
    """One object in a listing."""

    key: str
    etag: str
    size: int
    modified: float


class Listing:
    """One page, as it is read."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._fields: dict[str, str] = {}
        self._item: dict[str, str] = {}

    @property
    def truncated(self) -> bool:
        """Whether there are more pages."""
        return self._fields["IsTruncated"] == "true"

    @property
    def next(self) -> str | None:
        """Where the next one begins."""
        return self._fields.get("NextContinuationToken")

    def ended(self, depth: int, name: str, text: str) -> None:
        """An element has ended."""
        if depth == 2:
            self._item[name] = text
        elif name == "Contents":
            item = self._item
            self.entries.append(Entry(item["Key"], item["ETag"], int(item["Size"]), _timestamp(item["LastModified"])))
            self._item = {}
        else:
            self._fields[name] = text

    def finish(self) -> None:
        """All is read. Raises `KeyError` if it was no listing."""
        assert self.truncated is not None
        if self._fields.get("EncodingType") == "url":
            for entry in self.entries:
                if "%" in entry.key or "+" in entry.key:
                    entry.key = unquote(entry.key.replace("+", " "))


def read_listing(data: bytes) -> Listing:
    """A ListObjectsV2 answer. Raises `Unanswered` for whatever is none."""
    page = Listing()
    try:
        _walk(data, "ListBucketResult", page.ended)
        page.finish()
    except (KeyError, ValueError) as error:
        what = f"{type(error).__name__}: {error}"
        raise Unanswered(f"a listing cannot be read ({what}): is something before the store?") from error
    return page


def read_errors(data: bytes, root: str = "DeleteResult") -> list[dict[str, str]]:
    """What a DeleteObjects answer (or, with root ``Error``, any refusal) says of errors. Raises `Unanswered`."""
    errors: list[dict[str, str]] = []
    item: dict[str, str] = {}

    def ended(depth: int, name: str, text: str) -> None:
        if depth == (2 if root == "DeleteResult" else 1):
            item[name] = text
        elif name == "Error":
            errors.append(dict(item))
            item.clear()
        else:
            item.clear()

    _walk(data, root, ended)
    if root == "Error":
        errors.append(item)
    return errors


def delete_body(keys: Iterable[str]) -> bytes:
    """A DeleteObjects request that answers with errors only."""
    objects = "".join(f"<Object><Key>{escape(key, {chr(13): '&#13;'})}</Key></Object>" for key in keys)
    return (
        '<?xml version="1.0" encoding="UTF-8"?><Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"{objects}<Quiet>true</Quiet></Delete>"
    ).encode()


def _walk(data: bytes, root: str, ended: Callable[[int, str, str], None]) -> None:
    """Call `ended(depth, name, text)` at the end of every element below the root (depth 1: its children)."""
    depth = -1
    text: list[str] = []

    def start(name: str, _attributes: object) -> None:
        nonlocal depth
        depth += 1
        if depth == 0 and name.rpartition(":")[2] != root:
            raise Unanswered(f"the answer is a {name[:40]!r} and not a {root}: is something before the store?")
        text.clear()

    def end(name: str) -> None:
        nonlocal depth
        if depth > 0:
            ended(depth, name.rpartition(":")[2], "".join(text))
        text.clear()
        depth -= 1

    def refuse(*_: object) -> None:
        raise Unanswered("the answer has a DTD, which no S3 sends")

    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.CharacterDataHandler = text.append
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        raise Unanswered(f"the answer is not XML ({error}): it broke off, or something is before the store") from error


def _timestamp(text: str) -> float:
    date = datetime.fromisoformat(text)
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()
