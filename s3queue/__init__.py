"""s3queue: a work queue whose only server is an object store.

The names below are the public ones; everything in a module with an underscore may change. Start with `open_queue`. An
`Observer` is a plain function of one `Event`. All times are seconds; all errors are `S3QueueError`s. How to run fleets,
and on which stores, is in `s3queue.guide`.
"""

from s3queue._backend import Backend, LocalBackend, S3Backend
from s3queue._errors import (
    AccessDenied,
    ConfigurationError,
    CredentialsExpired,
    DamagedWorkspace,
    HandlerError,
    InvalidPath,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    PermanentError,
    PreconditionFailed,
    RetryLater,
    S3QueueError,
    StoreError,
    StoreFull,
    StoreUnsuitable,
    Throttled,
    Unanswered,
    Unsupported,
    WriteConflict,
)
from s3queue._events import Event, Observer
from s3queue._handlers import current_item
from s3queue._hooks import Hooks
from s3queue._model import (
    ActiveOwner,
    FailedAttempt,
    FailedGroup,
    FailedPath,
    Finding,
    Look,
    PathResult,
    PoolStats,
    QueueStatus,
    RunSummary,
    WorkItem,
)
from s3queue._options import QueueOptions
from s3queue._pool import Pool
from s3queue._queue import WorkQueue, open_queue
from s3queue._watch import Watch
from s3queue.stores._open import open_client

__all__ = [
    # the queue
    "WorkQueue",
    "open_queue",
    "open_client",
    "QueueOptions",
    "current_item",
    "Pool",
    # its values
    "WorkItem",
    "RunSummary",
    "PoolStats",
    "QueueStatus",
    "PathResult",
    "FailedGroup",
    "FailedPath",
    "FailedAttempt",
    "Finding",
    "Watch",
    "Look",
    "ActiveOwner",
    # olmOCR's operations
    "Backend",
    "LocalBackend",
    "S3Backend",
    # what happens
    "Event",
    "Observer",
    "Hooks",
    # what can go wrong
    "S3QueueError",
    "ConfigurationError",
    "StoreUnsuitable",
    "InvalidPath",
    "DamagedWorkspace",
    "HandlerError",
    "PermanentError",
    "RetryLater",
    "LeaseLost",
    "OutcomeUnknown",
    "StoreError",
    "NotFound",
    "PreconditionFailed",
    "WriteConflict",
    "Throttled",
    "Unanswered",
    "StoreFull",
    "AccessDenied",
    "CredentialsExpired",
    "Unsupported",
]
