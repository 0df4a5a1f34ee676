"""What others need to verify stores of their own, and to test code that uses s3queue without a server.

`STORE_CHECKS` is the contract of the store port as runnable checks; they work on asyncio and on trio. A `StoreCheck` is
an async function of one store, which raises `AssertionError` if the store breaks its part of the contract.
"""

from s3queue._runtime import Runtime, SeededRuntime
from s3queue.stores._memory import MemoryBucket, MemoryStore
from s3queue.testing._checks import STORE_CHECKS, StoreCheck
from s3queue.testing._faulty import Fault, FaultyStore

__all__ = [
    # the contract
    "STORE_CHECKS",
    "StoreCheck",
    # stores for tests
    "FaultyStore",
    "Fault",
    "MemoryBucket",
    "MemoryStore",
    # time and chance
    "Runtime",
    "SeededRuntime",
]
