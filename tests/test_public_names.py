"""The public names, frozen: a change here is a change for users, and belongs into the changelog."""

from __future__ import annotations

import inspect
import re
from importlib.resources import files
from types import ModuleType

import pytest

import s3queue
import s3queue.stores
import s3queue.telemetry
import s3queue.testing
import s3queue.web
from s3queue import _errors

NAMES = {
    s3queue: """
        AccessDenied ActiveOwner Backend ConfigurationError CredentialsExpired DamagedWorkspace Event
        FailedAttempt FailedGroup FailedPath Finding HandlerError Hooks InvalidPath LeaseLost LocalBackend Look
        NotFound Observer OutcomeUnknown PathResult PermanentError Pool PoolStats PreconditionFailed QueueOptions
        QueueStatus RetryLater RunSummary S3Backend S3QueueError StoreError StoreFull StoreUnsuitable Throttled
        Unanswered Unsupported Watch WorkItem WorkQueue WriteConflict current_item open_client open_queue
    """,
    s3queue.stores: """
        Body CREATE Create Deleted Head Listed LocalStore MemoryBucket MemoryStore OVERWRITE Overwrite Page PutMode
        Replace Store Version Written
    """,
    s3queue.telemetry: """
        Telemetry
    """,
    s3queue.web: """
        dashboard
    """,
    s3queue.testing: """
        Fault FaultyStore MemoryBucket MemoryStore Runtime STORE_CHECKS SeededRuntime StoreCheck
    """,
}


#: Their methods are the store port's, whose docstrings say what each does.
FACES_OF_THE_PORT = {"LocalStore", "MemoryStore"}


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


@pytest.mark.parametrize("module", [s3queue, s3queue.stores], ids=lambda module: module.__name__)
def test_what_is_callable_is_documented(module: ModuleType) -> None:
    """So is every public method of the classes that are written here; the port's face is explained at the port."""
    for name in module.__all__:
        value = getattr(module, name)
        if inspect.isclass(value) and name not in FACES_OF_THE_PORT:
            for attribute, member in vars(value).items():
                if not attribute.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
                    assert inspect.getdoc(member), f"{name}.{attribute}"


def test_types_are_told() -> None:
    """Type checkers read the hints only of packages with this file."""
    assert (files(s3queue) / "py.typed").is_file()


CLASSES = [value for value in vars(_errors).values() if inspect.isclass(value)]


def drawn_parents() -> dict[str, str]:
    """Each error's parent in the tree at the top of the module; the root's is \"\"."""
    parents: dict[str, str] = {}
    above: list[str] = []
    for margin, name in re.findall(
        r"^    ((?:│   |    )*(?:├── |└── )?)([A-Z]\w+)", _errors.__doc__ or "", re.MULTILINE
    ):
        depth = len(margin) // 4
        parents[name] = above[depth - 1] if depth else ""
        above[depth:] = [name]
    return parents


def test_the_tree_of_errors_is_as_drawn() -> None:
    """Each class is there, below its parent, and all are caught as one."""
    real = {cls.__name__: cls.__mro__[1].__name__ for cls in CLASSES}

    assert drawn_parents() == {**real, "S3QueueError": ""}
    assert all(issubclass(cls, s3queue.S3QueueError) for cls in CLASSES)


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_explains_itself(cls: type[Exception]) -> None:
    """A class's docstring is its default message, a message of one's own replaces it, and all are public."""
    assert str(cls()) == inspect.getdoc(cls)
    seconds_first = (1.0,) if cls is s3queue.RetryLater else ()
    assert str(cls(*seconds_first, "another")) == "another"
    assert getattr(s3queue, cls.__name__) is cls
    assert cls.__name__ in s3queue.__all__
