"""Progress inside a group, as values and as the bytes that a store keeps: which of its paths are finished.

While a group is leased, its lock carries a `Progress`: a bitmap over the group's paths and a few numbers, at most 2 KB
for 10,000 paths. What does not fit there is in the pieces under ``results/``, which are written once, by the owner of
their epoch, before the lock that counts on them: results of finished paths, and now and then the `Ledger` of those that
failed. A released lock has no room at all; piece 0 of its epoch says what its owner left.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from s3queue._errors import DamagedWorkspace, HandlerError

__all__ = ["Json", "Ledger", "Piece", "PieceName", "Progress", "Spans", "compact", "names_in", "result_json"]

#: A value as JSON, as short as it gets. Raises `TypeError` and `ValueError` for what JSON has no words for.
compact = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode

#: The most JSON that one result may be, and all results of one group together, in bytes.
RESULT_LIMIT = 64 * 1024
RESULTS_LIMIT = 4 * 1024 * 1024
#: The most paths that a lock may claim its group to have: a lock that lies shall not make us allocate gigabytes.
_SIZES = 10**8
#: The same for the pieces of one epoch: at one in five seconds, two months.
_PIECES = 10**6

#: (epoch, number) of a piece.
PieceName = tuple[int, int]
#: Pieces by epoch: the first and the last number.
Spans = Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Json:
    """A value that is JSON text already, as it was when the handler returned it."""

    text: str


def result_json(value: Any, limit: int = RESULT_LIMIT) -> Json | None:
    """A handler's result as JSON; None for None. Raises `HandlerError` if it is not JSON, or too long."""
    if value is None or isinstance(value, Json):
        return value
    try:
        text = compact(value)
        size = len(text.encode("utf-8"))
    except (TypeError, ValueError, RecursionError) as error:
        raise HandlerError(f"the handler's result is not JSON ({error}): return JSON values, or None") from error
    if size > limit:
        raise HandlerError(
            f"the handler's result is {size:,} bytes of JSON, more than {limit:,}: "
            "write it to the store and return a reference"
        )
    return Json(text)


def names_in(spans: Spans) -> Iterator[PieceName]:
    """The names of these pieces, in the order in which they were written."""
    for epoch, (first, last) in sorted(spans.items()):
        yield from ((epoch, number) for number in range(max(first, 1), last + 1))
        if first == 0:
            yield (epoch, 0)  # what the owner left at its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a held lock says of the work inside its group."""

    #: How many paths the group has; 0 while nobody has worked on it path by path.
    size: int = 0
    #: One bit a path, lowest bit first: finished, and its result written. Bits past the end are 0.
    done: bytes = b""
    #: The piece with the ledger that holds until now.
    base: PieceName | None = None
    #: The pieces written since.
    pieces: Spans = field(default_factory=dict)
    #: Bytes of all results so far.
    stored: int = 0
    #: An owner crashed: units run one at a time now, each named here before it starts.
    suspect: bool = False
    #: By unit: crashes while it was named, in a row.
    blamed: Mapping[int, int] = field(default_factory=dict)
    #: The unit that runs; see `Journal.WHOLE` for a group as a whole.
    running: int | None = None

    def fields(self) -> dict[str, Any]:
        """As JSON values, without what is not worth saying."""
        found = {
            "n": self.size,
            "done": base64.b64encode(self.done.rstrip(b"\0")).decode("ascii"),
            "base": self.base,
            "pieces": spans_fields(self.pieces),
            "bytes": self.stored,
            "suspect": self.suspect,
            "blamed": _counts_out(self.blamed),
        }
        return {name: value for name, value in found.items() if value} | (
            {} if self.running is None else {"running": self.running}
        )

    @classmethod
    def of(cls, fields: Any) -> Progress | None:
        """Read what `fields` wrote. Raises `DamagedWorkspace`."""
        if fields is None:
            return None
        if not isinstance(fields, dict):
            raise _damaged("progress")
        size = _count(fields.get("n", 0), _SIZES)
        base = fields.get("base")
        running = fields.get("running")
        return cls(
            size=size,
            done=_bitmap(fields.get("done", ""), size),
            base=None if base is None else _name(base),
            pieces=spans_of(fields.get("pieces", {})),
            stored=_count(fields.get("bytes", 0)),
            suspect=fields.get("suspect") is True,
            blamed=_counts(fields.get("blamed", {})),
            running=None if running is None else _unit(running),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The whole story of a group's paths so far."""

    progress: Progress = field(default_factory=Progress)
    #: By path: failed attempts, and the last error in a line.
    tries: Mapping[int, int] = field(default_factory=dict)
    errors: Mapping[int, str] = field(default_factory=dict)
    #: Paths that nobody shall try again.
    over: frozenset[int] = frozenset()

    def fields(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "progress": self.progress.fields(),
            "tries": _counts_out(self.tries),
            "errors": {str(unit): error for unit, error in self.errors.items()},
            "over": sorted(self.over),
        }

    @classmethod
    def of(cls, fields: Any) -> Ledger:
        """Read what `fields` wrote. Raises `DamagedWorkspace`."""
        if not isinstance(fields, dict):
            raise _damaged("ledger")
        errors, over = fields.get("errors", {}), fields.get("over", [])
        if not isinstance(errors, dict) or not isinstance(over, list):
            raise _damaged("ledger")
        return cls(
            progress=Progress.of(fields.get("progress")) or Progress(),
            tries=_counts(fields.get("tries", {})),
            errors={_unit(unit): str(error).encode("utf-8", "replace").decode() for unit, error in errors.items()},
            over=frozenset(_unit(unit) for unit in over),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Results of finished paths, by position in the group, and maybe the ledger at that time. Written once."""

    token: str
    epoch: int
    results: Mapping[int, Any] = field(default_factory=dict)
    ledger: Ledger | None = None

    def encode(self) -> bytes:
        fields: dict[str, Any] = {"v": 1, "token": self.token, "epoch": self.epoch}
        if self.ledger is not None:
            fields["ledger"] = self.ledger.fields()
        return with_results(fields, self.results)

    @classmethod
    def decode(cls, data: bytes) -> Piece:
        """Raises `DamagedWorkspace`."""
        try:
            fields = json.loads(data)
        except (ValueError, RecursionError):
            raise DamagedWorkspace("a piece of results is not JSON") from None
        if not isinstance(fields, dict) or not isinstance(fields.get("token"), str):
            raise _damaged("token")
        ledger = fields.get("ledger")
        return cls(
            token=fields["token"],
            epoch=_count(fields.get("epoch")),
            results=results_of(fields),
            ledger=None if ledger is None else Ledger.of(ledger),
        )


def with_result(fields: Mapping[str, Any], result: Json | None) -> bytes:
    """A JSON object with these fields and ``result``."""
    head = compact(fields)
    return f'{head[:-1]},"result":{"null" if result is None else result.text}}}'.encode()


def with_results(fields: Mapping[str, Any], results: Mapping[int, Any]) -> bytes:
    """A JSON object with these fields and ``results``; values that are JSON already go in as they are."""
    head = compact(fields)
    body = ",".join(f'"{unit}":{_text(value)}' for unit, value in results.items())
    return f'{head[:-1]},"results":{{{body}}}}}'.encode()


def results_of(fields: Mapping[str, Any]) -> dict[int, Any]:
    """The other direction. Raises `DamagedWorkspace`."""
    results = fields.get("results", {})
    if not isinstance(results, dict):
        raise _damaged("results")
    return {_unit(unit): value for unit, value in results.items()}


def _text(value: Any) -> str:
    if isinstance(value, Json):
        return value.text
    return compact(value)


def _damaged(what: str) -> DamagedWorkspace:
    return DamagedWorkspace(f"a record's {what!r} is not what s3queue writes")


def _count(value: Any, below: int = 1 << 53) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < below:
        raise _damaged("count")
    return value


def _unit(value: Any) -> int:
    try:
        unit = int(value)
    except (TypeError, ValueError):
        raise _damaged("unit") from None
    if not -1 <= unit < _SIZES:
        raise _damaged("unit")
    return unit


def _name(value: Any) -> PieceName:
    if not isinstance(value, list) or len(value) != 2:
        raise _damaged("base")
    return _count(value[0]), _count(value[1])


def _bitmap(value: Any, size: int) -> bytes:
    try:
        bits = base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except (ValueError, binascii.Error):
        bits = None
    if bits is None or int.from_bytes(bits, "little").bit_length() > size:
        raise _damaged("done")
    return bits


def spans_fields(spans: Spans) -> dict[str, tuple[int, int]]:
    """Spans as JSON values."""
    return {str(epoch): (first, last) for epoch, (first, last) in spans.items()}


def spans_of(value: Any) -> dict[int, tuple[int, int]]:
    """Spans as a record holds them. Raises `DamagedWorkspace`."""
    if not isinstance(value, dict):
        raise _damaged("pieces")
    spans = {_unit(epoch): _name(span) for epoch, span in value.items()}
    if any(not first <= last < _PIECES for first, last in spans.values()):
        raise _damaged("pieces")
    return spans


def _counts_out(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(unit): count for unit, count in counts.items()}


def _counts(value: Any) -> dict[int, int]:
    if not isinstance(value, dict):
        raise _damaged("counts")
    return {_unit(unit): _count(count) for unit, count in value.items()}
