"""s3queue: a work queue whose only server is an object store.

The names below are the public ones; everything in a module with an underscore may change.
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
    FailedAttempt,
    FailedGroup,
    FailedPath,
    Finding,
    PathResult,
    QueueStatus,
    RunSummary,
    WorkItem,
)
from s3queue._options import QueueOptions
from s3queue._queue import WorkQueue, open_queue

__all__ = [
    # the queue
    "WorkQueue",
    "open_queue",
    "QueueOptions",
    "current_item",
    # its values
    "WorkItem",
    "RunSummary",
    "QueueStatus",
    "PathResult",
    "FailedGroup",
    "FailedPath",
    "FailedAttempt",
    "Finding",
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
    "AccessDenied",
    "CredentialsExpired",
    "Unsupported",
]
