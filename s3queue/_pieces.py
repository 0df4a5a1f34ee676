"""The pieces under ``results/``: written before the lock that counts on them, read by whoever goes on."""

from __future__ import annotations

import logging

from s3queue import _keys as keys
from s3queue._errors import DamagedWorkspace, NotFound
from s3queue._events import Events
from s3queue._intent import Intent, Lost, Won, settle
from s3queue._journal import Journal
from s3queue._outcomes import Lease, PendingPiece
from s3queue._progress import Piece, PieceName
from s3queue._records import LockRecord, LockState
from s3queue._runtime import Runtime
from s3queue.stores._port import CREATE, Store

__all__ = ["Pieces", "read_journal", "read_piece"]


class Pieces:
    """Writes the pieces of one owner's leases."""

    def __init__(self, store: Store, runtime: Runtime, events: Events) -> None:
        self._store = store
        self._runtime = runtime
        self._events = events

    async def save(self, lease: Lease, *, until: float, leaving: bool = False) -> bool:
        """Write what the lease's journal has to say beyond its lock. False if it is not known yet whether that worked.

        Raises the store's errors that are not about this object."""
        if lease.pending_piece is None or leaving:
            lease.pending_piece = self._next(lease, leaving)
        pending = lease.pending_piece
        outcome = await settle(self._store, self._runtime, pending.intent, until=until)
        # Lost: an earlier try of ours to leave stands there, or an operator's; it says what the lock said then.
        if isinstance(outcome, Won) or (leaving and isinstance(outcome, Lost)):
            lease.journal.wrote(pending.piece, pending.name)
        lease.pending_piece = None if isinstance(outcome, (Won, Lost)) else pending
        return lease.pending_piece is None

    def _next(self, lease: Lease, leaving: bool) -> PendingPiece:
        piece, name = lease.journal.piece(self._runtime.token(), lease.epoch, leaving=leaving)
        return PendingPiece(piece_intent(lease.group, piece, name), piece, name)


def piece_intent(group: str, piece: Piece, name: PieceName) -> Intent:
    """The write of a piece."""
    return Intent(
        key=keys.piece(group, *name),
        data=piece.encode(),
        mode=CREATE,
        ours=lambda body: _token(body) == piece.token,
    )


async def read_journal(store: Store, group: str, lock: LockRecord, events: Events) -> Journal:
    """What the owners until now left of the work inside a group, by its lock."""
    if lock.state is LockState.HELD:
        if lock.progress is None:
            return Journal()
        base = lock.progress.base
        return Journal.resumed(lock.progress, base and await read_piece(store, group, base, events))
    if not lock.saved:
        return Journal()
    name = (lock.epoch, 0)
    piece = await read_piece(store, group, name, events)
    journal = Journal() if piece is None else Journal(piece.ledger, base=name)
    if lock.forgiven:
        journal.forgiven()
    return journal


async def read_piece(store: Store, group: str, name: PieceName, events: Events) -> Piece | None:
    """A piece; None, and an event, if it is gone or damaged: what only it knew runs again."""
    key = keys.piece(group, *name)
    try:
        return Piece.decode((await store.get(key)).data)
    except (NotFound, DamagedWorkspace) as error:
        events.emit("progress.lost", logging.WARNING, hash=group, key=key, error=str(error))
        return None


def _token(body: bytes) -> str | None:
    try:
        return Piece.decode(body).token
    except DamagedWorkspace:
        return None
