"""Object stores: the port, three implementations, and what wraps them. To add one, implement `Store`.

Check an implementation with `s3queue.testing.STORE_CHECKS`. A `Version` is an opaque string that names one state of one
object. A `PutMode` is the condition on which a put writes: `OVERWRITE`, `CREATE`, or `Replace` of a version.
"""

from s3queue.stores._local import LocalStore
from s3queue.stores._memory import MemoryBucket, MemoryStore
from s3queue.stores._port import (
    CREATE,
    OVERWRITE,
    Body,
    Create,
    Deleted,
    Head,
    Listed,
    Overwrite,
    Page,
    PutMode,
    Replace,
    Store,
    Version,
    Written,
)

__all__ = [
    # the port
    "Store",
    "Version",
    "PutMode",
    "Overwrite",
    "Create",
    "Replace",
    "OVERWRITE",
    "CREATE",
    # its answers
    "Written",
    "Head",
    "Body",
    "Listed",
    "Page",
    "Deleted",
    # implementations (the S3 one is opened by `s3queue.open_queue` or `s3queue.S3Backend`)
    "LocalStore",
    "MemoryBucket",
    "MemoryStore",
]
