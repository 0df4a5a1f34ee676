"""Every exception that s3queue raises, in one shallow tree.

::

    S3QueueError
    ├── ConfigurationError      the user's settings, address, permissions or clock; also a ValueError
    │   └── StoreUnsuitable     the start-up check found that the store cannot carry the protocol
    ├── InvalidPath             a work path that cannot be stored; also a ValueError
    ├── DamagedWorkspace        an index, lock or flag that cannot be what it should be
    ├── HandlerError            what a user's handler did wrong (its result, its command's exit code)
    │   ├── PermanentError      raised by a handler: no further attempt will help
    │   └── RetryLater          raised by a handler: not now; counts as no attempt
    ├── LeaseLost               the group is not ours any more; the handler's result was dropped
    ├── OutcomeUnknown          a write may or may not have been applied, and it could not be found out in time
    └── StoreError              what a store's answer (or silence) meant; the only ones that cross the store port
        ├── NotFound            there is no such object
        ├── PreconditionFailed  a conditional write was refused; that proves nothing until the object is read
        ├── WriteConflict       another write was in flight; nothing is known to have landed
        ├── Throttled           the store asks for fewer requests; nothing was applied
        ├── Unanswered          no usable answer; a write may have been applied
        ├── StoreFull           there is no room for the write; nothing was applied
        ├── AccessDenied        the credentials may not do this
        ├── CredentialsExpired  the credentials are out of date
        └── Unsupported         the store does not have this operation or condition

A class's docstring is its default message and says what to do. A foreign exception is kept as ``__cause__``.
"""

from __future__ import annotations

import inspect


class S3QueueError(Exception):
    """s3queue could not do what was asked."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else inspect.getdoc(type(self)))


class ConfigurationError(S3QueueError, ValueError):
    """A setting is wrong: correct it and start again."""


class StoreUnsuitable(ConfigurationError):
    """This store cannot carry the lease protocol: use one that honours conditional writes."""


class InvalidPath(S3QueueError, ValueError):
    """A work path must be a non-empty string that encodes as UTF-8."""


class DamagedWorkspace(S3QueueError):
    """An object of the workspace is damaged: restore it from a copy; s3queue will not write over it."""


class HandlerError(S3QueueError):
    """The handler failed.

    ``detail`` is what a person needs to see why (a command's standard error), kept in the failure record.
    """

    def __init__(self, message: str | None = None, *, detail: str | None = None) -> None:
        super().__init__(message)
        self.detail = detail


class PermanentError(HandlerError):
    """Raise this in a handler when no further attempt will help: the group is dead at once."""


class RetryLater(HandlerError):
    """Raise this in a handler when it is too early: the group is free again after `seconds`, and no attempt counts."""

    def __init__(self, seconds: float = 60.0, message: str | None = None) -> None:
        # Checked here, where it is the handler's own failure, and not where its lock is written.
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds < float("inf"):
            raise TypeError(f"RetryLater takes a number of seconds, not {seconds!r}")
        super().__init__(message)
        self.seconds = seconds


class LeaseLost(S3QueueError):
    """The lease on this group is lost and its result was dropped: whoever holds the lease now will finish the group."""


class OutcomeUnknown(S3QueueError):
    """The store did not say whether a write was applied: the group stays leased until its lease runs out."""


class StoreError(S3QueueError):
    """The object store refused a request.

    ``date`` is the store's clock when it answered (POSIX seconds), or None if it did not answer.
    """

    def __init__(self, message: str | None = None, *, date: float | None = None) -> None:
        super().__init__(message)
        self.date = date


class NotFound(StoreError):
    """There is no such object."""


class PreconditionFailed(StoreError):
    """The condition of a write did not hold (or a resend of it met its own effect): read the object to know."""


class WriteConflict(StoreError):
    """Another write to the same object was in flight: try again, then read the object."""


class Throttled(StoreError):
    """The store asks for fewer requests: slow down."""


class Unanswered(StoreError):
    """The store gave no usable answer in time: a write may have been applied all the same."""


class StoreFull(StoreError):
    """The store has no room for this: make some and start again; what is there is not harmed."""


class AccessDenied(StoreError):
    """The store refused these credentials: check them, and the permissions that they carry."""


class CredentialsExpired(StoreError):
    """The credentials are out of date and could not be refreshed: renew them and start again."""


class Unsupported(StoreError):
    """The store does not support this operation or this condition."""
