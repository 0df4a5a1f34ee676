"""The memory store stands for every other one in the simulations: it answers any sequence of requests as they do."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from s3queue._errors import NotFound, PreconditionFailed
from s3queue._runtime import Runtime
from s3queue.stores import CREATE, OVERWRITE, LocalStore, MemoryStore, PutMode, Replace, Version

#: Few, so that operations meet; none below another, which a folder cannot hold.
KEYS = ("a!", "a/b", "a/c/d", "a/c!", "a0", "b", "é", "\U0001f600", "\uffee")
keys = st.sampled_from(KEYS)


class Stores(RuleBasedStateMachine):
    """Each rule sends one request to both stores and compares the answers."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.portal = self.stack.enter_context(start_blocking_portal())
        self.stores = (MemoryStore(Runtime()), LocalStore(folder / "workspace", Runtime()))
        self.writes = 0
        #: Of each key, the versions that one write has in each store.
        self.versions: defaultdict[str, list[tuple[Version, ...]]] = defaultdict(list)

    def teardown(self) -> None:
        self.stack.close()

    def ask(self, verb: str, *args: Any, modes: tuple[PutMode, ...] = ()) -> list[Any]:
        """What the two stores answer: a value, or the type of an error."""
        answers: list[Any] = []
        for i, store in enumerate(self.stores):
            request = partial(getattr(store, verb), *args, *modes[i : i + 1])
            try:
                answers.append(self.portal.call(request))
            except (NotFound, PreconditionFailed) as error:
                answers.append(type(error))
        return answers

    def put(self, key: str, modes: tuple[PutMode, ...]) -> None:
        self.writes += 1  # no two states of an object have equal bytes, in which stores may differ
        one, two = self.ask("put", key, b"%d" % self.writes, modes=modes)
        if isinstance(one, type) or isinstance(two, type):
            assert one is two
            return
        self.versions[key].append((one.version, two.version))

    @rule(key=keys)
    def create(self, key: str) -> None:
        self.put(key, (CREATE, CREATE))

    @rule(key=keys)
    def overwrite(self, key: str) -> None:
        self.put(key, (OVERWRITE, OVERWRITE))

    @rule(key=keys, age=st.integers(1, 3))
    def replace(self, key: str, age: int) -> None:
        versions = self.versions[key]
        if len(versions) >= age:
            self.put(key, tuple(Replace(version) for version in versions[-age]))

    @rule(gone=st.lists(keys, max_size=3))
    def delete(self, gone: list[str]) -> None:
        self.ask("delete_many", gone)

    @rule(key=keys)
    def get(self, key: str) -> None:
        one, two = self.ask("get", key)
        if isinstance(one, type) or isinstance(two, type):
            assert one is two
            return
        assert (one.data, one.size) == (two.data, two.size)
        assert (one.version, two.version) == self.versions[key][-1]

    @rule(
        prefix=st.sampled_from(("", "a", "a/", "a/c", "a/c/", "b", "none")),
        after=st.none() | st.sampled_from((*KEYS, "a", "a/", "a/c", "a/c/")),
        limit=st.integers(1, 4),
    )
    def list(self, prefix: str, after: str | None, limit: int) -> None:
        seen: tuple[list[tuple[str, int]], ...] = ([], [])
        for store, found in zip(self.stores, seen, strict=True):
            resume = None
            while True:
                page = self.portal.call(self._page, store, prefix, after, resume, limit)
                found += [(item.key, item.size) for item in page.objects]
                resume = page.next
                if resume is None:
                    break
        assert seen[0] == seen[1]

    @staticmethod
    async def _page(store: Any, prefix: str, after: str | None, resume: str | None, limit: int) -> Any:
        return await store.list(prefix, start_after=after, resume=resume, limit=limit)


Stores.TestCase.settings = settings(max_examples=20, stateful_step_count=30, deadline=None, derandomize=True)
TestStores = Stores.TestCase
