"""The work queue: populate, claim, run, complete. What most users need is here."""

from __future__ import annotations

import signal
import threading
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager, nullcontext
from types import TracebackType
from typing import Any, Self

import anyio
from anyio.abc import TaskStatus

from s3queue._backend import Backend
from s3queue._claims import Claims
from s3queue._errors import ConfigurationError, LeaseLost, NotFound, OutcomeUnknown
from s3queue._events import Observer
from s3queue._handlers import Handler, Runner
from s3queue._hooks import Hooks
from s3queue._inspection import inspect
from s3queue._model import FailedAttempt, FailedGroup, Finding, PathResult, QueueStatus, RunSummary, WorkItem
from s3queue._options import QueueOptions
from s3queue._pool import Per, Pool, Terms
from s3queue._results import stream_results
from s3queue._runtime import Runtime
from s3queue._survey import count, list_failed, list_history
from s3queue._tasks import task_group
from s3queue._watch import Watch
from s3queue._watchdog import watch_loop
from s3queue._workspace import Workspace
from s3queue.stores._open import open_store

__all__ = ["WorkQueue", "open_queue"]


class WorkQueue:
    """One process's part in a workspace.

    Bare, it has no background tasks: leases that are not completed within their time to live are renewed only by
    `mark_done` (by compare-and-swap; it raises `LeaseLost` if the group was taken over). Inside ``async with`` they are
    renewed as long as they are held, and handed back at the end.

    `observer` is told of each event; `runtime` replaces clocks and chance in tests. Whatever asks the store raises what
    the store's answers mean, after retries: a `StoreError` (`AccessDenied`, `Throttled`, `Unanswered`, …); and whatever
    reads the index, `DamagedWorkspace`. The first use raises `StoreUnsuitable` if the start-up check fails.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        options: QueueOptions | None = None,
        runtime: Runtime | None = None,
        observer: Observer | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        self.backend = backend
        """The workspace, as it was given: for another queue, or a dashboard, on the same client."""
        self._workspace = Workspace(backend.store, options=options, runtime=runtime, observer=observer)
        self._claims = Claims(self._workspace, hooks)
        self._pool: Pool | None = None
        self._session: AbstractAsyncContextManager[None] | None = None
        self._keeps = False

    def __repr__(self) -> str:
        return f"<WorkQueue {self._workspace.store.name} {self._claims.scheduler!r}>"

    async def __aenter__(self) -> Self:
        session = self._keeping(hand_back=True)
        await session.__aenter__()
        self._session = session
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        session, self._session = self._session, None
        assert session is not None
        return await session.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _keeping(self, *, hand_back: bool) -> AsyncIterator[None]:
        """Renew leases inside the block; at its end release those that are held, if that is wanted."""
        if self._keeps:
            raise ConfigurationError("this queue is open already: enter it once")
        self._keeps = True
        try:
            await self._workspace.check()
            async with task_group() as tasks:
                tasks.start_soon(self._claims.run)
                try:
                    yield
                finally:
                    if hand_back:
                        await self._claims.close()
                tasks.cancel_scope.cancel()
        finally:
            self._keeps = False

    async def populate_queue(self, paths: Iterable[str], items_per_group: int = 1) -> int:
        """Add the paths that the workspace does not have yet, in groups; returns the number of new groups.

        A path is any string that is not empty and encodes as UTF-8; `items_per_group` is 1 or more.

        Raises `InvalidPath`, `ConfigurationError`, `DamagedWorkspace` (nothing is written then), `OutcomeUnknown`.
        """
        await self._workspace.check()
        added = await self._workspace.catalogue.populate(paths, items_per_group)
        if added:
            await self._claims.scheduler.refresh()
        return added

    async def initialize_queue(self) -> int:
        """Read the index and list what is done; returns the number of groups that are not. Optional: `get_work` and
        `run` look only at what they need."""
        await self._workspace.check()
        return await self._claims.scheduler.count()

    @property
    def groups(self) -> int:
        """How many groups the index had when it was read last; 0 before that. Asks nobody."""
        return len(self._claims.scheduler.plan.index)

    async def get_work(self, wait: bool = False) -> WorkItem | None:
        """Claim a group. None if nothing is claimable now; with `wait`, only once every group is done or dead.

        End each item by `mark_done`, `mark_failed` or `release`. Raises store errors that retries did not cure.
        """
        await self._workspace.check()
        while (lease := await self._claims.acquire(wait=wait)) is not None:
            try:
                await self._claims.begin(lease)
            except LeaseLost as error:
                self._claims.lose(lease, str(error))
                continue
            except OutcomeUnknown:
                self._claims.abandon(lease)
                continue
            return self._claims.item(lease)
        return None

    async def mark_done(self, item: WorkItem, result: Any = None) -> None:
        """Complete the group. `result` (JSON values) is kept with the completion.

        Raises `LeaseLost` if the group is somebody else's by now (the result is dropped), `HandlerError` for a result
        that is not JSON or too large, `OutcomeUnknown` or a store's error (then try again).
        """
        await self._claims.complete(self._claims.find(item.hash, item.epoch), result)

    async def mark_failed(self, item: WorkItem, error: BaseException | str) -> bool:
        """Record a failed attempt; the group waits for the next one, or is dead (then True).

        Raises `LeaseLost`, `OutcomeUnknown` or a store's error.
        """
        return await self._claims.fail(self._claims.find(item.hash, item.epoch), error)

    async def release(self, item: WorkItem) -> None:
        """Hand the group back; anybody may claim it at once, and it counts as no attempt.

        Raises `LeaseLost`, `OutcomeUnknown` or a store's error.
        """
        await self._claims.release(self._claims.find(item.hash, item.epoch))

    async def status(self) -> QueueStatus:
        """Count the workspace's groups. Lists every flag and lock, and reads the released locks.

        Raises `DamagedWorkspace` for an index that cannot be read, and the store's errors.
        """
        loaded = await self._workspace.catalogue.load()
        return await count(self._workspace.store, loaded.index, self._workspace.options)

    def watch(self) -> Watch:
        """For whoever counts again and again: each `Watch.look` after the first one lists little."""
        return Watch(self._workspace)

    async def failures(self) -> list[FailedGroup]:
        """The groups that are dead, or wait after a failed attempt, with the record of the last one.

        Raises `DamagedWorkspace` for an index that cannot be read, and the store's errors.
        """
        loaded = await self._workspace.catalogue.load()
        return await list_failed(self._workspace.store, loaded.index, self._workspace.events)

    async def history(self, group: str) -> list[FailedAttempt]:
        """Every failed attempt at the group of this hash that is on record, first to last; also of a finished one, and
        of one that was reset, by its old hash.

        Raises `ConfigurationError` for a hash that is no group of this workspace, and the store's errors.
        """
        found = await list_history(self._workspace.store, group)
        if found:
            return found
        (whole,) = await self._known([group])
        return [] if whole == group else await list_history(self._workspace.store, whole)

    async def results(self) -> AsyncIterator[PathResult]:
        """Every finished path of the workspace with what its handler returned, each once, in no particular order.

        Also those of groups that are not complete. Holds a few dozen groups in memory at a time. Raises
        `DamagedWorkspace` for a completion that cannot be read, and the store's errors.
        """
        loaded = await self._workspace.catalogue.load()
        results = stream_results(self._workspace.store, loaded.index, self._workspace.events)
        async with aclosing(results):
            async for result in results:
                yield result

    async def retry(self, hashes: Iterable[str] | None = None) -> int:
        """Give dead and waiting groups a clean slate, so that they are claimable now; returns how many.

        All that `failures` lists, or those with these hashes; groups that somebody holds are left alone. Paths that are
        done stay done, and the records of what failed before stay. A hash may be cut short, here and wherever one is
        asked for, to four digits or more that no other group's begins with. Raises `ConfigurationError` for a hash that
        is no group of this workspace.
        """
        wanted = [group.hash for group in await self.failures()] if hashes is None else await self._known(hashes)
        revived = 0
        for group in wanted:
            try:
                revived += await self._claims.revive(group)
            except NotFound:
                continue  # done, or never claimed
        return revived

    async def break_lease(self, group: str) -> bool:
        """Free the lock of the group of this hash, whoever holds it; its epoch and its progress stay. False if it is
        not held.

        For leases that are stuck: an owner that is alive loses its work on the group. Raises `ConfigurationError` for a
        hash that is no group of this workspace, `OutcomeUnknown` if the lock changes meanwhile.
        """
        return await self._workspace.operator.break_lease(*await self._known([group]))

    async def reset(self, hashes: Iterable[str]) -> dict[str, str]:
        """Run finished groups again; returns their new hashes, by the old ones.

        Each gets a new name, and its epochs go on. Its old completion stays in the workspace, as history; `results`
        shows the new one. Raises `ConfigurationError` for a group that is unknown or not finished, `OutcomeUnknown`.
        """
        names = await self._workspace.operator.reset(hashes)
        await self._claims.scheduler.refresh()
        return names

    async def sweep(self) -> int:
        """Delete the locks that crashed owners left behind on finished groups; returns how many. Workers do it too.

        Raises the store's errors.
        """
        return await self._workspace.operator.sweep()

    async def check(self) -> AsyncIterator[Finding]:
        """Read everything, and report what is not as it should be: paths in two groups, objects of unknown groups or
        that cannot be read, dead groups, leases past their time, missing results. Nothing, if all is consistent.

        Raises the store's errors, and `DamagedWorkspace` if the index cannot be read.
        """
        loaded = await self._workspace.catalogue.load()
        findings = inspect(self._workspace.store, loaded.index, self._workspace.options)
        async with aclosing(findings):
            async for finding in findings:
                yield finding

    async def _known(self, hashes: Iterable[str]) -> list[str]:
        """The whole hashes of the groups that these name, or begin to name. Raises `ConfigurationError`."""
        index = (await self._workspace.catalogue.load()).index
        return [index.resolve(start) for start in hashes]

    @asynccontextmanager
    async def pool(
        self,
        handler: Handler,
        *,
        workers: int = 16,
        per: Per = "group",
        timeout: float | None = None,
        grace: float = 30.0,
        wait: bool = True,
        forever: bool = False,
        max_groups: int | None = None,
        max_runtime: float | None = None,
    ) -> AsyncIterator[Pool]:
        """Run `handler` over everything that can be claimed, `workers` calls at a time, in the background of the block.

        `handler` gets a `WorkItem` (``per="group"``) or a path (``per="path"``; the paths of a group run concurrently,
        and the group is done when all are). It is a coroutine function, or a plain function, which runs in a thread.
        What it returns (JSON values) is kept with the completion; what it raises fails this attempt at its group and
        nothing else. A call that takes longer than `timeout` seconds fails.

        The pool ends when every group is done or dead (`Pool.wait` waits for that); without `wait`, when nothing is
        claimable; with `forever`, never: it waits for the index to grow. Leaving the block ends it: what runs then gets
        `grace` seconds before it is cancelled and its groups are handed back. Leaving by an exception or a cancellation
        hands everything back at once. What ends the search for work (`DamagedWorkspace`, a store's error that lasts)
        cancels the block and comes out of it, after the groups under way have ended.

        It also ends when it has worked on `max_groups` groups, and within `max_runtime` seconds: no call starts that
        would probably not end in time, judged by the time that nine of ten recent calls took at most (before the first
        has ended: by `grace`). What is not done shortly before the limit is cancelled and handed back. With
        ``per="path"`` the finished paths of such a group stay on record, so that nothing of it is lost.

        Raises `ConfigurationError`; also for a second pool at the same time: a group goes to one handler.
        """
        terms = Terms(
            workers=workers,
            per=per,
            grace=grace,
            wait=wait,
            forever=forever,
            max_groups=max_groups,
            max_runtime=max_runtime,
        )
        runner = Runner(handler, workers=workers, timeout=timeout)
        if self._pool is not None:
            raise ConfigurationError(
                "this queue has a pool at work: resize that one; for another handler open the workspace a second time"
            )
        pool = self._pool = Pool(self._workspace, self._claims, runner, terms)
        options = self._workspace.options
        try:
            async with AsyncExitStack() as stack:
                if not self._keeps:
                    await stack.enter_async_context(self._keeping(hand_back=False))  # a bare queue stays bare
                await stack.enter_async_context(
                    watch_loop(runner.name, options.block_warning, self._workspace.runtime, self._workspace.events)
                )
                await stack.enter_async_context(pool.working())
                yield pool
        finally:
            self._pool = None

    async def run(
        self,
        handler: Handler,
        *,
        workers: int = 16,
        per: Per = "group",
        timeout: float | None = None,
        grace: float = 30.0,
        handle_signals: bool = True,
        wait: bool = True,
        forever: bool = False,
        max_groups: int | None = None,
        max_runtime: float | None = None,
    ) -> RunSummary:
        """Run a `pool` until it ends: when every group is done or dead; without `wait`, when nothing is claimable.

        The first SIGTERM or SIGINT ends claiming, and after `grace` seconds cancels what still runs and hands its
        groups back; the second one ends the process at once. Everything else is as for `pool`.
        """
        async with (
            self.pool(
                handler,
                workers=workers,
                per=per,
                timeout=timeout,
                grace=grace,
                wait=wait,
                forever=forever,
                max_groups=max_groups,
                max_runtime=max_runtime,
            ) as pool,
            _stopped_by_signals(pool) if handle_signals else nullcontext(),
        ):
            return await pool.wait()

    def stop(self) -> None:
        """Make `run`, or the pool at work, stop as the first signal does. Does nothing if there is none."""
        if self._pool is not None:
            self._pool.stop()


@asynccontextmanager
async def open_queue(
    workspace: str,
    *,
    options: QueueOptions | None = None,
    put_args: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    client: Any = None,
    hooks: Hooks | None = None,
) -> AsyncIterator[WorkQueue]:
    """The queue of ``s3://bucket/prefix`` or of a folder, open, with a client of its own.

    Ordinary AWS configuration applies (profile, environment, ``AWS_ENDPOINT_URL_S3``). `put_args` are extra arguments
    of every write, such as ``ServerSideEncryption``. `observer` hears of everything, `hooks` of what becomes of groups.
    Several queues of one process share connections if they are given one `client`, of `open_client` or the caller's own
    aiobotocore client, which stays open; a folder needs none. Raises `ConfigurationError`, and `StoreUnsuitable` if the
    start-up check fails.
    """
    runtime = Runtime()
    async with (
        open_store(
            workspace, options=options or QueueOptions(), runtime=runtime, put_args=put_args, client=client
        ) as store,
        WorkQueue(Backend(store), options=options, runtime=runtime, observer=observer, hooks=hooks) as queue,
    ):
        yield queue


@asynccontextmanager
async def _stopped_by_signals(pool: Pool) -> AsyncIterator[None]:
    # Only the main thread may handle signals; a pool elsewhere is stopped by whoever runs it.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    async with task_group() as tasks:
        await tasks.start(_stop_on_signal, pool)
        yield
        tasks.cancel_scope.cancel()


async def _stop_on_signal(pool: Pool, *, task_status: TaskStatus[None]) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for number in signals:
            if pool.stopping:
                # The second one: leave as if nobody had ever handled it, with the exit status that says so.
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            pool.stop()
