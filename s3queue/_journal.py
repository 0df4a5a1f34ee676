"""What an owner knows of the work inside its group, and which of it no lock has on record yet. No I/O.

A *unit* is what a handler is called with: a path, by its position in the group, or `WHOLE`, the group.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from s3queue._errors import HandlerError
from s3queue._progress import RESULTS_LIMIT, Json, Ledger, Piece, PieceName, Progress, Spans, result_json

__all__ = ["WHOLE", "Journal"]

#: The unit of a handler of whole groups.
WHOLE = -1
#: More entries than this beside the bitmap move from the lock to a ledger, so that the lock stays small.
_ENTRIES_MOST = 16
#: How much of a path's last error a ledger keeps.
_ERROR_LIMIT = 200


class Journal:
    """The work inside one group, as its owner sees it. Starts from what earlier owners left."""

    def __init__(
        self, left: Ledger | None = None, *, base: PieceName | None = None, pieces: Spans | None = None
    ) -> None:
        left = left or Ledger()
        self.size = left.progress.size
        self._done = bytearray(left.progress.done.ljust(_bytes(self.size), b"\0"))
        self.tries = dict(left.tries)
        self.errors = dict(left.errors)
        self._over = set(left.over)
        self.suspect = left.progress.suspect
        self.blamed = dict(left.progress.blamed)
        self.running: int | None = None
        self._stored = left.progress.stored
        #: All pieces so far; the one with the last ledger; those since, and the crashes that it knew of.
        self._pieces = _joined(left.progress.pieces, pieces or {})
        self._base = base
        self._since_base = dict(pieces or {})
        self._base_blamed = dict(left.progress.blamed) if base else {}
        self._unsaved: dict[int, Json] = {}
        #: When the oldest thing happened that no lock has on record, by our monotonic clock.
        self.news_at: float | None = None
        #: Changes so far, and at the last snapshot for a lock.
        self._changes = self._changes_sent = 0
        #: Changes of the ledger so far; those in the last one that was made; in the last one written.
        self._ledger_changes = self._ledger_made = self._ledger_written = 0

    @classmethod
    def resumed(cls, held: Progress, base: Piece | None) -> Journal:
        """From a held lock that says `held`, whose base is this piece (None: there is none, or it is gone)."""
        ledger = (base.ledger if base is not None else None) or Ledger()
        before = ledger.progress
        journal = cls(
            replace(ledger, progress=replace(held, pieces=before.pieces, blamed=before.blamed)),
            base=held.base if base is not None else None,
            pieces=held.pieces,
        )
        journal.blamed = {unit: count for unit, count in (journal.blamed | dict(held.blamed)).items() if count}
        return journal

    # What happens.

    def fits(self, size: int) -> bool:
        """Whether what is on record can be about a group of `size` paths."""
        return self.size in (0, size)

    def begin(self, size: int) -> None:
        """Work path by path, on a group of `size` paths."""
        self.size = size
        self._done.extend(bytes(_bytes(size) - len(self._done)))

    def finished(self, unit: int, result: Any, now: float) -> bool:
        """A path is done; whether this is the first news that no lock has on record.

        Raises `HandlerError` for a result that cannot be kept: then the path is not done.
        """
        kept = result_json(result)
        if kept is not None:
            stored = self._stored + len(kept.text.encode("utf-8"))
            if stored > RESULTS_LIMIT:
                raise HandlerError(
                    f"the results of the group are more than {RESULTS_LIMIT:,} bytes of JSON: "
                    "write them to the store and return references, or make smaller groups"
                )
            self._stored, self._unsaved[unit] = stored, kept
        self._done[unit >> 3] |= 1 << (unit & 7)
        if self.tries or self.errors or self.blamed:
            for counts in (self.tries, self.errors, self.blamed):
                counts.pop(unit, None)
        return self._changed(now)

    def failed(self, unit: int, error: str, now: float, *, final: bool, counts: bool = True) -> bool:
        """An attempt at a path failed: for good (`final`), or not (then it may also not count). Returns as above."""
        self.tries[unit] = self.tries.get(unit, 0) + counts
        self.errors[unit] = error[:_ERROR_LIMIT]
        self.blamed.pop(unit, None)  # its process survived it
        if final:
            self._over.add(unit)
        self._ledger_changes += 1
        return self._changed(now)

    def crashed(self, named: int | None) -> None:
        """The last owner died, with this unit named in its lock. The first crash blames all units alike."""
        if self.suspect and named is not None:
            self.blamed[named] = self.blamed.get(named, 0) + 1
        self.suspect = True

    def cleared(self, max_crashes: int) -> None:
        """Every unit that is left was tried, and the process survived. Those that crashed too often were not tried."""
        crashes = {unit: self.crashes(unit) for unit in self.blamed}
        self.blamed = {unit: count for unit, count in crashes.items() if count >= max_crashes}
        self.suspect, self.running = False, None

    def forgiven(self) -> None:
        """Somebody wants all that is not done tried again, from a clean slate."""
        self.suspect, self.running = False, None
        self.tries, self.errors, self.blamed, self._over = {}, {}, {}, set()

    # What is left to do.

    def is_done(self, unit: int) -> bool:
        """Whether a path is finished."""
        return bool(self._done[unit >> 3] & 1 << (unit & 7))

    def crashes(self, unit: int) -> int:
        """Crashes that a unit may be to blame for, in a row: the first one, which names nobody, blames all."""
        return self.suspect + self.blamed.get(unit, 0)

    def exhausted(self, unit: int, max_crashes: int) -> bool:
        """Whether nobody shall try this unit again."""
        return unit in self._over or self.crashes(unit) >= max_crashes

    def left(self, max_crashes: int) -> list[int]:
        """The paths to run, the least suspicious first."""
        if self.size and not any(self._done) and not (self.suspect or self._over):
            return list(range(self.size))
        units = (i for i in range(self.size) if not self.is_done(i) and not self.exhausted(i, max_crashes))
        return sorted(units, key=self.crashes) if self.suspect else list(units)

    @property
    def complete(self) -> bool:
        """Whether every path is done."""
        return bool(self.size) and self.count_done() == self.size

    def count_done(self) -> int:
        """How many paths are done."""
        return int.from_bytes(self._done, "little").bit_count()

    # What to write.

    def progress(self) -> Progress | None:
        """What a lock may say now: only paths whose results are written count as done. None for nothing to say."""
        self._changes_sent = self._changes
        if self._is_blank:
            return None
        done = bytearray(self._done)
        for unit in self._unsaved:
            done[unit >> 3] &= ~(1 << (unit & 7))
        return Progress(
            size=self.size,
            done=bytes(done),
            base=self._base,
            pieces=dict(self._since_base),
            stored=self._stored,
            suspect=self.suspect,
            blamed=self._blamed_since_base(),
            running=self.running,
        )

    def acknowledged(self, sent: float) -> None:
        """A lock with what `progress` returned last, sent at that time, is in the store."""
        if not self.needs_piece:
            self.news_at = None if self._changes == self._changes_sent else sent

    @property
    def needs_piece(self) -> bool:
        """Whether a piece must be written before a lock can tell everything."""
        return bool(self._unsaved) or self._needs_ledger

    @property
    def worth_saving(self) -> bool:
        """Whether an owner that leaves now leaves anything for which a released lock has no room."""
        return not self._is_blank or self.needs_piece

    def piece(self, token: str, epoch: int, *, leaving: bool = False) -> tuple[Piece, PieceName]:
        """What to write next, and its name; `leaving` for the last one of an epoch, which tells all."""
        number = 0 if leaving else self._pieces.get(epoch, (1, 0))[1] + 1
        name = (epoch, number)
        ledger = None
        if leaving or self._needs_ledger:
            self._ledger_made = self._ledger_changes
            ledger = self._ledger(_with(self._pieces, name))
        return Piece(token=token, epoch=epoch, results=dict(self._unsaved), ledger=ledger), name

    def wrote(self, piece: Piece, name: PieceName) -> None:
        """This piece, the last one made, is in the store."""
        for unit in piece.results:
            self._unsaved.pop(unit, None)
        self._pieces = _with(self._pieces, name)
        if piece.ledger is None:
            self._since_base = _with(self._since_base, name)
        else:
            self._base, self._since_base = name, {}
            self._base_blamed = dict(piece.ledger.progress.blamed)
            self._ledger_written = self._ledger_made

    def results(self) -> tuple[dict[int, Json], Spans]:
        """For the completion: the results that no piece has, and all pieces."""
        return dict(self._unsaved), dict(self._pieces)

    @property
    def _is_blank(self) -> bool:
        return not (any(self._done) or self._pieces or self._base or self.suspect or self.blamed)

    @property
    def _needs_ledger(self) -> bool:
        crowded = len(self._blamed_since_base()) + len(self._since_base) > _ENTRIES_MOST
        return self._ledger_changes != self._ledger_written or crowded

    def _blamed_since_base(self) -> dict[int, int]:
        if self.blamed == self._base_blamed:
            return {}
        units = self.blamed.keys() | self._base_blamed.keys()
        now = {unit: self.blamed.get(unit, 0) for unit in sorted(units)}
        return {unit: count for unit, count in now.items() if count != self._base_blamed.get(unit, 0)}

    def _ledger(self, pieces: Spans) -> Ledger:
        return Ledger(
            progress=Progress(
                size=self.size,
                done=bytes(self._done),
                pieces=pieces,
                stored=self._stored,
                suspect=self.suspect,
                blamed=dict(self.blamed),
            ),
            tries=dict(self.tries),
            errors=dict(self.errors),
            over=frozenset(self._over),
        )

    def _changed(self, now: float) -> bool:
        self._changes += 1
        if self.news_at is not None:
            return False
        self.news_at = now
        return True


def _bytes(size: int) -> int:
    """Bytes of a bitmap over `size` paths."""
    return (size + 7) // 8


def _with(spans: Spans, name: PieceName) -> dict[int, tuple[int, int]]:
    epoch, number = name
    first, last = spans.get(epoch, (number, number))
    return {**spans, epoch: (min(first, number), max(last, number))}


def _joined(one: Spans, other: Spans) -> dict[int, tuple[int, int]]:
    joined = dict(one)
    for epoch, (first, last) in other.items():
        joined = _with(_with(joined, (epoch, first)), (epoch, last))
    return joined
