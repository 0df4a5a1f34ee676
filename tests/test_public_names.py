"""The public names, frozen: a change here is a change for users, and belongs into the changelog."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import pytest

import s3queue
import s3queue.stores
import s3queue.testing
from s3queue import _errors

NAMES = {
    s3queue: """
        AccessDenied Backend ConfigurationError CredentialsExpired DamagedWorkspace Event FailedAttempt FailedGroup
        HandlerError InvalidPath LeaseLost LocalBackend NotFound Observer OutcomeUnknown PermanentError
        PreconditionFailed QueueOptions QueueStatus RetryLater RunSummary S3Backend S3QueueError StoreError
        StoreUnsuitable Throttled Unanswered Unsupported WorkItem WorkQueue WriteConflict current_item open_queue
    """,
    s3queue.stores: """
        Body CREATE Create Deleted Head Listed LocalStore MemoryBucket MemoryStore OVERWRITE Overwrite Page PutMode
        Replace Store Version Written
    """,
    s3queue.testing: """
        Fault FaultyStore MemoryBucket MemoryStore Runtime STORE_CHECKS SeededRuntime StoreCheck
    """,
}


@pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
def test_the_names_are_these(module: ModuleType) -> None:
    """Nothing public comes or goes unnoticed."""
    assert sorted(module.__all__) == NAMES[module].split()
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("module", NAMES, ids=lambda module: module.__name__)
def test_what_is_public_is_documented(module: ModuleType) -> None:
    """Every public class and function says what it guarantees."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert inspect.getdoc(value), name


def test_an_error_explains_itself() -> None:
    """A class's docstring is its default message, and the tree at the top of the module is the real one."""
    classes = [value for value in vars(_errors).values() if inspect.isclass(value)]
    drawn = re.findall(r"(?:├──|└──|^    )\s*([A-Z]\w+)", _errors.__doc__ or "", re.MULTILINE)

    assert sorted(drawn) == sorted(cls.__name__ for cls in classes)
    for cls in classes:
        assert str(cls()) == inspect.getdoc(cls)
