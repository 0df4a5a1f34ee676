"""Events and hooks: every name is on the list, and whoever listens cannot do harm."""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import s3queue
from s3queue import Backend, ConfigurationError, Event, Hooks, LeaseLost, PermanentError, QueueOptions, WorkQueue
from s3queue._events import EVENTS, Events, together
from s3queue.stores import MemoryBucket, MemoryStore
from s3queue.testing import SeededRuntime
from tests.virtual import virtual

PACKAGE = Path(s3queue.__file__).parent


def emitted() -> Iterator[tuple[str, str, set[str]]]:
    """(where, name, fields) of each call of an `emit` that says its name."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "emit":
                name = node.args[0]
                assert isinstance(name, ast.Constant), f"{path}:{node.lineno}: the name of an event is written out"
                fields = {keyword.arg or "**" for keyword in node.keywords} - {"level"}
                yield f"{path.name}:{node.lineno}", str(name.value), fields


def test_every_event_is_on_the_list() -> None:
    """Nothing is emitted that is not documented with its fields, and nothing documented that is never emitted."""
    for where, name, fields in emitted():
        assert name in EVENTS, f"{where}: {name}"
        assert fields <= set(EVENTS[name].fields), f"{where}: {name} has {fields}"
    used: dict[str, set[str]] = {}
    for _, name, fields in emitted():
        used.setdefault(name, set()).update(fields)
    assert used == {name: set(kind.fields) for name, kind in EVENTS.items()}


def test_a_log_record_names_the_event(caplog: pytest.LogCaptureFixture) -> None:
    """A log handler finds the name and the fields, and need not read the text."""
    with caplog.at_level(logging.DEBUG, "s3queue"):
        Events().emit("group.done", hash="ab", epoch=2)
    (record,) = caplog.records

    assert record.getMessage() == "group.done hash=ab epoch=2"
    assert vars(record)["action"] == "group.done"
    assert vars(record)["fields"] == {"hash": "ab", "epoch": 2}


def test_observers_do_not_disturb_each_other(caplog: pytest.LogCaptureFixture) -> None:
    """What one raises is logged, and the next one hears the event all the same."""
    heard: list[Event] = []

    def fails(event: Event) -> None:
        raise ValueError(event.name)

    Events(together(fails, heard.append)).emit("index.grown", groups=1)

    assert [event.name for event in heard] == ["index.grown"]
    assert "the observer failed on index.grown" in caplog.text


class Diary:
    """Hooks that write down what they are told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.hooks = Hooks(
            on_claim=lambda item: self.told.append(("claim", *item.work_paths)),
            on_done=lambda item: self.told.append(("done", *item.work_paths)),
            on_failed=lambda item, error, dead: self.told.append(("failed", *item.work_paths, str(error), dead)),
            on_lease_lost=lambda item, why: self.told.append(("lost", item.epoch, why)),
        )


def queue_on(bucket: MemoryBucket, seed: int, hooks: Hooks, **options: Any) -> WorkQueue:
    settings = QueueOptions(check_store=False, **options)
    runtime = SeededRuntime(seed)
    return WorkQueue(Backend(MemoryStore(runtime, bucket)), options=settings, runtime=runtime, hooks=hooks)


@virtual
async def test_hooks_are_told_of_each_group() -> None:
    """A claim, then how it ended; with the group's paths and the error that the handler raised."""
    diary = Diary()
    queue = queue_on(MemoryBucket(), 1, diary.hooks, backoff=1)
    tries: list[str] = []

    async def handle(path: str) -> None:
        tries.append(path)
        if path == "b" and tries.count("b") == 1:
            raise ValueError("not yet")
        if path == "c":
            raise PermanentError("never")

    await queue.populate_queue(["a", "b", "c"])
    await queue.run(handle, per="path", handle_signals=False)

    assert [entry for entry in diary.told if entry[1] == "a"] == [("claim", "a"), ("done", "a")]
    assert [entry for entry in diary.told if entry[1] == "b"] == [
        ("claim", "b"), ("failed", "b", "not yet", False), ("claim", "b"), ("done", "b"),
    ]  # fmt: skip
    assert [entry for entry in diary.told if entry[1] == "c"] == [("claim", "c"), ("failed", "c", "never", True)]


@virtual
async def test_a_lost_lease_is_told_once() -> None:
    """Whoever notices first, the keeper or the work whose time is over, it is said once."""
    diary, bucket = Diary(), MemoryBucket()
    queue = queue_on(bucket, 1, diary.hooks, lease_ttl=30)
    other = queue_on(bucket, 2, Hooks())

    async def handle(item: Any) -> None:
        if item.epoch == 1:
            await other.break_lease(item.hash)
            assert await other.get_work() is not None
        await SeededRuntime(3).sleep(1000)

    await queue.populate_queue(["a"])
    await queue.run(handle, wait=False, handle_signals=False)

    assert [entry[:2] for entry in diary.told] == [("claim", "a"), ("lost", 1)]


@virtual
async def test_by_hand_a_lost_lease_is_told_too() -> None:
    """`mark_done` raises, and the hook hears of it."""
    diary, bucket = Diary(), MemoryBucket()
    queue, other = queue_on(bucket, 1, diary.hooks), queue_on(bucket, 2, Hooks())
    await queue.populate_queue(["a"])
    item = await queue.get_work()
    assert item is not None
    await other.break_lease(item.hash)
    await other.get_work()
    await SeededRuntime(3).sleep(1000)

    with pytest.raises(LeaseLost):
        await queue.mark_done(item)

    assert [entry[0] for entry in diary.told] == ["claim", "lost"]


@virtual
async def test_a_hook_that_raises_changes_nothing() -> None:
    """The group is completed, and the log says what is wrong with the hook."""
    records: list[logging.LogRecord] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    def fails(*told: object) -> None:
        raise ValueError("a hook's own fault")

    queue = queue_on(MemoryBucket(), 1, Hooks(on_claim=fails, on_done=fails, on_failed=fails, on_lease_lost=fails))
    await queue.populate_queue(["a"])
    logger, keep = logging.getLogger("s3queue"), Keep()
    logger.addHandler(keep)
    try:
        summary = await queue.run(lambda path: None, per="path", handle_signals=False)
    finally:
        logger.removeHandler(keep)

    assert summary.done == 1
    assert [record.getMessage() for record in records] == ["the hook on_claim failed", "the hook on_done failed"]


@pytest.mark.parametrize("value", [3, "print"])
def test_a_hook_is_a_plain_function(value: Any) -> None:
    """Anything else is refused when it is given, not when it would be called."""
    with pytest.raises(ConfigurationError, match="on_done must be a plain function"):
        Hooks(on_done=value)


def test_a_coroutine_function_is_no_hook() -> None:
    """Nobody would wait for it."""

    async def hook(item: object) -> None: ...

    with pytest.raises(ConfigurationError, match="on_claim must be a plain function"):
        Hooks(on_claim=hook)
