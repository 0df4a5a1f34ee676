"""Leases, completions and failures, as values and as the bytes that a store keeps.

Bodies are JSON and untrusted: whatever is not understood raises `DamagedWorkspace`, and is then neither ours nor
expired nor done. An empty body is olmOCR's. Unknown fields are ignored, so that later versions can add some.
"""

from __future__ import annotations

import json
import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from functools import lru_cache
from typing import Any

from s3queue._errors import DamagedWorkspace, HandlerError
from s3queue._progress import (
    RESULTS_LIMIT,
    Progress,
    Spans,
    compact,
    result_json,
    results_of,
    spans_fields,
    spans_of,
    with_result,
    with_results,
)

__all__ = ["Failure", "Flag", "LockRecord", "LockState", "describe", "looks_released"]

#: A released lock is smaller than this and a live lease is not, so that a listing tells them apart.
RELEASED_LIMIT = 64
#: The most text of a traceback or a command's stderr that a failure record keeps.
DETAIL_LIMIT = 16 * 1024
#: What a lock's numbers stay below, since a released one has room for seven, four and five digits: no lock that lies
#: can make us write one that is too long. Taken over once a second, a group comes to this epoch after four months.
_EPOCHS, _FAILURES, _BACKOFFS = 10**7 - 1, 10**4 - 1, 10**5


class LockState(Enum):
    """What a lock says of its group."""

    HELD = "held"
    FREE = "free"
    DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRecord:
    """The lease on a group."""

    state: LockState
    #: The name of the intent that wrote it; empty in olmOCR's locks.
    token: str
    epoch: int
    #: Failed attempts so far; travels from owner to owner.
    failures: int = 0
    #: Seconds that must pass after a release before the group is taken over.
    backoff: int = 0
    #: Seconds without a renewal after which the lease is past; None in olmOCR's locks.
    ttl: float | None = None
    owner: str = ""
    #: Renewals so far.
    beat: int = 0
    #: When this epoch began, by the owner's wall clock: for people.
    since: str = ""
    #: The work inside the group, of a held lock.
    progress: Progress | None = None
    #: Of a released or dead lock: whether its epoch's piece 0 tells what its owner left, and whether the failures in
    #: there are forgiven.
    saved: bool = False
    forgiven: bool = False

    @property
    def done(self) -> int:
        """How many of the group's paths it says are done."""
        return 0 if self.progress is None else int.from_bytes(self.progress.done, "little").bit_count()

    def encode(self) -> bytes:
        if self.state is not LockState.HELD:
            return _released(self)
        return _dump(
            {
                "v": 1,
                "state": self.state.value,
                "owner": self.owner,
                "token": self.token,
                "epoch": self.epoch,
                "ttl": self.ttl,
                "beat": self.beat,
                "failures": self.failures,
                "since": self.since,
                **({} if self.progress is None else {"progress": self.progress.fields()}),
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> LockRecord:
        """Raises `DamagedWorkspace`."""
        if not data:
            return cls(state=LockState.HELD, token="", epoch=0)
        fields = _load(data, "lock")
        short = "s" in fields
        state, saved, forgiven = _letter(fields["s"]) if short else (_state(fields.get("state")), False, False)
        return cls(
            state=state,
            saved=saved,
            forgiven=forgiven,
            token=_text(fields, "t" if short else "token"),
            epoch=_number(fields, "e" if short else "epoch", below=_EPOCHS),
            failures=_number(fields, "f" if short else "failures", 0, below=_FAILURES),
            backoff=_number(fields, "b", 0, below=_BACKOFFS),
            ttl=None if short else _seconds(fields, "ttl"),
            owner=_text(fields, "owner", ""),
            beat=_number(fields, "beat", 0),
            since=_text(fields, "since", ""),
            progress=Progress.of(fields.get("progress")),
        )


def looks_released(size: int) -> bool:
    """Whether a lock of this size is a released (or dead) one."""
    return 0 < size < RELEASED_LIMIT


def _released(lock: LockRecord) -> bytes:
    # 47 bytes and the digits of three numbers; what decoding lets pass leaves room for one more take-over and failure.
    data = _dump(
        {
            "s": _LETTERS[lock.state, lock.saved, lock.forgiven],
            "e": lock.epoch,
            "f": lock.failures,
            "b": lock.backoff,
            "t": lock.token,
        }
    )
    assert looks_released(len(data)), data
    return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """The completion of a group; never changed once written."""

    token: str
    epoch: int
    owner: str = ""
    #: When, by the owner's wall clock: for people.
    at: str = ""
    #: What the handler of the whole group returned.
    result: Any = None
    #: Worked on path by path: how many there are, results by position (those that are not None), and the pieces under
    #: ``results/`` that hold more of them.
    size: int = 0
    results: Mapping[int, Any] = field(default_factory=dict)
    pieces: Spans = field(default_factory=dict)

    def encode(self) -> bytes:
        """Raises `HandlerError` when the result is not JSON, or too much of it."""
        fields = {"v": 1, "state": "done", "owner": self.owner, "token": self.token, "epoch": self.epoch, "at": self.at}
        if self.size:
            return with_results({**fields, "n": self.size, "pieces": spans_fields(self.pieces)}, self.results)
        result = result_json(self.result, RESULTS_LIMIT)
        return with_result(fields, result)

    @classmethod
    def decode(cls, data: bytes) -> Flag:
        """Raises `DamagedWorkspace`."""
        if not data:
            return cls(token="", epoch=0)
        fields = _load(data, "done flag")
        return cls(
            token=_text(fields, "token"),
            epoch=_number(fields, "epoch"),
            owner=_text(fields, "owner", ""),
            at=_text(fields, "at", ""),
            result=fields.get("result"),
            size=_number(fields, "n", 0),
            results=results_of(fields),
            pieces=spans_of(fields.get("pieces", {})),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt at a group."""

    token: str
    epoch: int
    #: The how-manieth failure of the group this is, from 1.
    attempt: int
    owner: str
    #: When, by the writer's wall clock.
    at: str
    #: What went wrong, in a line.
    error: str
    #: The kind of thing it was: an exception's class, or ``lease expired``.
    kind: str
    #: A traceback or the tail of a command's stderr, bounded.
    detail: str = ""
    #: The machine that it failed on, and how many seconds the attempt took; empty and None if that is not known.
    host: str = ""
    seconds: float | None = None
    #: The paths that failed, as far as that is known, bounded.
    paths: tuple[str, ...] = ()

    def encode(self) -> bytes:
        return _dump(
            {
                "v": 1,
                "token": self.token,
                "epoch": self.epoch,
                "attempt": self.attempt,
                "owner": self.owner,
                "at": self.at,
                "kind": self.kind,
                "error": self.error,
                "detail": self.detail,
                "host": self.host,
                "seconds": self.seconds,
                "paths": self.paths,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Failure:
        """Raises `DamagedWorkspace`."""
        fields = _load(data, "failure record")
        return cls(
            token=_text(fields, "token"),
            epoch=_number(fields, "epoch"),
            attempt=_number(fields, "attempt", 0),
            owner=_text(fields, "owner", ""),
            at=_text(fields, "at", ""),
            kind=_text(fields, "kind", ""),
            error=_text(fields, "error", ""),
            detail=_text(fields, "detail", ""),
            host=_text(fields, "host", ""),
            seconds=_seconds(fields, "seconds") if fields.get("seconds") else None,
            paths=_texts(fields, "paths"),
        )


def describe(error: BaseException | str) -> tuple[str, str, str]:
    """(kind, one line, bounded detail) of an error, with credentials that show in it blotted out."""
    if isinstance(error, str):
        return "error", _clean(error)[:1000], ""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    told = error.detail if isinstance(error, HandlerError) else None
    detail = told if told is not None else "".join(traceback.format_exception(error))
    return type(error).__name__, _clean(_line(error))[:1000], _clean(detail)[-DETAIL_LIMIT:]


def _line(error: BaseException) -> str:
    try:
        return " · ".join(map(str, [str(error) or type(error).__name__, *getattr(error, "__notes__", [])]))
    except Exception:  # a handler's own exception may not even be able to say what it is
        return type(error).__name__


def timestamp(wall: float) -> str:
    """ISO 8601, UTC, to the millisecond."""
    seconds, rest = divmod(int(wall * 1000), 1000)
    return f"{_second(seconds)}.{rest:03d}+00:00"


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


_SECRETS = re.compile(
    r"(?i)((?:signature|credential)=|security-token\W{1,4}|secret_?(?:access_?)?key\W{1,4}|session_?token\W{1,4}"
    r"|password\W{1,4}|authorization['\"]?\s*[:=]\s*['\"]?(?:(?:bearer|basic|token|aws4-hmac-sha256)\s+)?)[^\s&'\"]+"
    r"|(://[^\s/:@]*:)(?!\d+[/?])\S{1,999}(?=@)"
)
#: Half a character, which JSON can spell but no record of ours could be written with.
_LONE = re.compile("[\ud800-\udfff]")


def _clean(text: str) -> str:
    text = text.encode("utf-8", "replace").decode("utf-8")
    return _SECRETS.sub(r"\1\2***", text)


def _dump(fields: dict[str, Any]) -> bytes:
    return compact(fields).encode("utf-8")


def _load(data: bytes, what: str) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise DamagedWorkspace(f"a {what} is not JSON") from None
    if not isinstance(fields, dict):
        raise DamagedWorkspace(f"a {what} is not a JSON object")
    return fields


#: One letter says what a released lock has to say: (state, saved, forgiven).
_LETTERS = {
    (LockState.FREE, False, False): "f",
    (LockState.DEAD, False, False): "d",
    (LockState.FREE, True, False): "F",
    (LockState.DEAD, True, False): "D",
    (LockState.FREE, True, True): "R",
}
_SAYS = {letter: says for says, letter in _LETTERS.items()}


def _letter(value: Any) -> tuple[LockState, bool, bool]:
    try:
        return _SAYS[value]
    except (KeyError, TypeError):
        raise _unknown_state(value) from None


def _state(value: Any) -> LockState:
    try:
        return LockState(value)
    except ValueError:
        raise _unknown_state(value) from None


def _unknown_state(value: Any) -> DamagedWorkspace:
    return DamagedWorkspace(f"a lock has an unknown state: {str(value)[:40]!r}")


def _text(fields: dict[str, Any], name: str, default: str | None = None) -> str:
    value = fields.get(name, default)
    if not isinstance(value, str) or _LONE.search(value):
        raise DamagedWorkspace(f"a record's {name!r} is not a string")
    return value


def _texts(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    values = fields.get(name, [])
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise DamagedWorkspace(f"a record's {name!r} is not a list of strings")
    return tuple(values)


def _number(fields: dict[str, Any], name: str, default: int | None = None, *, below: int = 1 << 53) -> int:
    value = fields.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < below:
        raise DamagedWorkspace(f"a record's {name!r} is not a count")
    return value


def _seconds(fields: dict[str, Any], name: str) -> float:
    value = fields.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value <= 1e9:
        raise DamagedWorkspace(f"a record's {name!r} is not a number of seconds")
    return float(value)
