"""What a claim ends in: a lease, or the reason why there is none. Whoever claims handles each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import anyio

from s3queue import _lease_rules as rules
from s3queue._intent import Intent
from s3queue._journal import Journal
from s3queue._progress import Piece, PieceName
from s3queue._records import LockRecord
from s3queue.stores._port import Version

__all__ = ["Busy", "Completed", "GroupDead", "Lease", "Refused", "Unsettled"]


@dataclass(frozen=True, slots=True)
class PendingPiece:
    """A piece on its way."""

    intent: Intent
    piece: Piece
    name: PieceName


@dataclass(eq=False, slots=True)
class Lease:
    """A lease that this process holds, or held. Its fields change as it is renewed; one write at a time."""

    group: str
    record: LockRecord
    version: Version
    #: When the last acknowledged lock write was sent, by our monotonic clock.
    sent: float
    #: When we give it up without a newer acknowledgement.
    deadline: float
    #: The work inside the group.
    journal: Journal = field(default_factory=Journal, repr=False)
    #: When the work on the group began, by our monotonic clock.
    began: float = 0.0
    #: Set once the lease is known to be somebody else's, or given back.
    ended: bool = False
    #: Set once its loss was said.
    told_lost: bool = False
    #: A lock write whose outcome is not known yet; it is settled before any other is sent.
    pending: Intent | None = field(default=None, repr=False)
    pending_record: LockRecord | None = field(default=None, repr=False)
    #: When that was first sent: it may have been applied as early as then, however often it is sent again.
    pending_since: float = 0.0
    #: The completion, once it was tried: trying again is the same intent, with the same result.
    completion: Intent | None = field(default=None, repr=False)
    #: A piece of the journal whose outcome is not known yet, with what it holds: the next one has the next number.
    pending_piece: PendingPiece | None = field(default=None, repr=False)
    #: Held for each write; without a checkpoint, since nearly nobody ever waits for it.
    writing: anyio.Lock = field(default_factory=partial(anyio.Lock, fast_acquire=True), repr=False)

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def renew_at(self) -> float:
        """When the lock is to be written again whatever happens."""
        return rules.renew_at(self.sent, self.record.ttl or 0.0)

    def valid(self, now: float) -> bool:
        """Whether we may still act as the owner."""
        return not self.ended and now < self.deadline


@dataclass(frozen=True, slots=True)
class Busy:
    """Not claimable for about `seconds` (None: unknown). `version` is the lock's, if it was seen."""

    seconds: float | None
    version: Version | None = None


@dataclass(frozen=True, slots=True)
class Completed:
    """The group is done."""


@dataclass(frozen=True, slots=True)
class GroupDead:
    """The group is dead; `version` is its lock's."""

    version: Version | None


@dataclass(frozen=True, slots=True)
class Unsettled:
    """It is not known whether we hold the group, so we do not."""


Refused = Busy | Completed | GroupDead | Unsettled
