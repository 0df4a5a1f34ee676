"""The store port: what s3queue needs of an object store, and nothing more.

Keys are relative to the workspace, ``/``-separated, and may hold any character that encodes as UTF-8. A version is an
opaque string that changes with every change of an object's bytes; only a store makes one and only that store reads it.
Dates are POSIX seconds by *the store's* clock, of one-second resolution or finer.

Every method is safe to cancel, takes a bounded time, and raises only the errors named here and these common ones:
`Throttled`, `Unanswered`, `AccessDenied`, `CredentialsExpired`, `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NewType, Protocol

__all__ = [
    "CREATE",
    "OVERWRITE",
    "Body",
    "Create",
    "Deleted",
    "Head",
    "Listed",
    "Overwrite",
    "Page",
    "PutMode",
    "Replace",
    "Store",
    "Version",
    "Written",
]

Version = NewType("Version", str)
"""Names one state of one object; opaque outside the store that made it."""


@dataclass(frozen=True, slots=True)
class Overwrite:
    """Write whatever is there."""


@dataclass(frozen=True, slots=True)
class Create:
    """Write only if there is no such object (``If-None-Match: *``)."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Write only if the object is still this version (``If-Match``)."""

    version: Version
    """The version that is to be replaced."""


PutMode = Overwrite | Create | Replace
"""On which condition a put writes."""
OVERWRITE = Overwrite()
"""The only `Overwrite` that is needed."""
CREATE = Create()
"""The only `Create` that is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The answer to a put that was applied."""

    version: Version
    """What was written."""
    date: float
    """The store's clock when it answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a store says of an object without its bytes."""

    version: Version
    """The object's current version."""
    size: int
    """Bytes."""
    modified: float
    """When the object last changed, by the store's clock."""
    date: float
    """The store's clock when it answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Body(Head):
    """An object with its bytes."""

    data: bytes = field(repr=False)
    """All of the object's bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One object in a listing."""

    key: str
    """Relative to the workspace."""
    version: Version
    """Its current version."""
    size: int
    """Bytes."""
    modified: float
    """When it last changed, by the store's clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One page of a listing, its keys in order of their UTF-8 bytes (if the store's `lists_in_order` is true)."""

    objects: Sequence[Listed]
    """At most as many as were asked for."""
    next: str | None
    """Give it to the next `list` call to go on; None after the last page. A page may be empty and yet not be the last.
    """
    date: float
    """The store's clock when it answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deleted:
    """The answer to a deletion; that there was nothing to delete is no error."""

    date: float
    """The store's clock when it answered."""


class Store(Protocol):
    """An object store, seen from one workspace. Verify an implementation with `s3queue.testing.STORE_CHECKS`."""

    @property
    def name(self) -> str:
        """Where this is, for people and error messages; no secrets."""

    @property
    def lists_in_order(self) -> bool:
        """Whether `list` returns keys in order and honours `start_after` (S3 Express does neither)."""

    async def get(self, key: str) -> Body:
        """The object's current bytes. Raises `NotFound`."""

    async def head(self, key: str) -> Head:
        """What is known of the object without its bytes. Raises `NotFound`."""

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        """Write `data` atomically; readers see the old object or the new one.

        Raises `PreconditionFailed` when `mode` forbade the write, `NotFound` when there is no object to replace (some
        stores say `PreconditionFailed` for that too), `WriteConflict` when a concurrent write was in the way.
        """

    async def delete(self, key: str) -> Deleted:
        """Remove the object, if it is there."""

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        """Remove any number of objects; raises the first error after having tried them all."""

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        """One page of at most `limit` (1 to 1000) objects whose keys start with `prefix`.

        The listing shows every write and delete that was acknowledged before it began. `start_after` leaves out all
        keys up to and including it; `resume` is the `next` of the page before, and goes with the same `prefix`.
        """
