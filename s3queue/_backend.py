"""olmOCR's operations, by its names, on our protocol and any store.

A thin face of the lower layers for code that was written for olmOCR's queue. What olmOCR does by "look, then write" is
done here by compare-and-swap, so nothing is written over that somebody else wrote meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from s3queue import _lease_rules as rules
from s3queue._errors import LeaseLost, NotFound
from s3queue._options import QueueOptions
from s3queue._outcomes import Lease
from s3queue._runtime import Runtime
from s3queue._survey import list_flags
from s3queue._workspace import Workspace
from s3queue.stores._local import LocalStore
from s3queue.stores._open import s3_store
from s3queue.stores._port import Store, Version

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping

__all__ = ["Backend", "LocalBackend", "S3Backend"]


class Backend:
    """A workspace on any store. To support another storage, implement the store port, not this class.

    `store` is where it is; `options` and `runtime` are as for `WorkQueue`, for these operations alone. They raise what
    the store's answers mean, after retries: a `StoreError`.
    """

    def __init__(self, store: Store, *, options: QueueOptions | None = None, runtime: Runtime | None = None) -> None:
        self.store = store
        self._workspace = Workspace(store, options=options, runtime=runtime)
        self._leases: dict[str, Lease] = {}
        self._index_version: Version | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.store.name}>"

    async def load_index_lines(self) -> list[str]:
        """The records of the index, a line of CSV each. Raises `DamagedWorkspace`."""
        loaded = await self._workspace.catalogue.load()
        self._index_version = loaded.version
        return loaded.index.lines()

    async def save_index_lines(self, index_lines: Sequence[str]) -> None:
        """Write the index, provided that it is still what `load_index_lines` returned last.

        Raises `WriteConflict` if it is not (load and merge again), `DamagedWorkspace` for lines that are no index.
        """
        self._index_version = await self._workspace.catalogue.replace(index_lines, self._index_version)

    async def get_completed_hashes(self) -> set[str]:
        """The hashes of the groups with a done flag. Lists all flags."""
        return await list_flags(self._workspace.store)

    async def is_completed(self, work_hash: str) -> bool:
        """Whether the group has a done flag."""
        return await self._workspace.locks.is_done(work_hash)

    async def is_worker_lock_taken(self, work_hash: str, worker_lock_timeout_secs: float | None = None) -> bool:
        """Whether somebody holds the group now. A timeout (seconds) replaces the lock's own time to live."""
        try:
            lock, body = await self._workspace.locks.read(work_hash)
        except NotFound:
            return False
        age = body.date - body.modified
        if lock is not None and worker_lock_timeout_secs is not None:
            lock = replace(lock, ttl=worker_lock_timeout_secs)
        return lock is None or not isinstance(rules.standing(lock, age, self._workspace.options), rules.Takeable)

    async def create_worker_lock(self, work_hash: str) -> bool:
        """Claim the group, or take it over if that is allowed; whether it is ours now."""
        outcome = await self._workspace.leases.claim(work_hash)
        if not isinstance(outcome, Lease):
            outcome = await self._workspace.leases.take_over(work_hash)
        if not isinstance(outcome, Lease):
            return False
        self._leases[work_hash] = outcome
        return True

    async def delete_worker_lock(self, work_hash: str) -> None:
        """Hand an unfinished group of ours back; the lock of a completed one goes once nobody needs it any more.

        Another's lock is left alone."""
        lease = self._leases.pop(work_hash, None)
        if not await self.is_completed(work_hash) and lease is not None and not lease.ended:
            await self._workspace.leases.release(lease)

    async def create_done_flag(self, work_hash: str, result: Any = None) -> None:
        """Complete a group that `create_worker_lock` made ours.

        Raises `LeaseLost`, `OutcomeUnknown`, `HandlerError`.
        """
        lease = self._leases.get(work_hash)
        if lease is None:
            raise LeaseLost(f"group {work_hash} is not leased here: call create_worker_lock first")
        await self._workspace.leases.complete(lease, result)


class LocalBackend(Backend):
    """A workspace in a folder, which the first write makes. Raises `ConfigurationError` where there is no `flock`."""

    def __init__(
        self, workspace: str | os.PathLike[str], *, options: QueueOptions | None = None, runtime: Runtime | None = None
    ) -> None:
        runtime = runtime or Runtime()
        super().__init__(LocalStore(workspace, runtime), options=options, runtime=runtime)


class S3Backend(Backend):
    """A workspace under ``s3://bucket/prefix``, on an aiobotocore client of the caller's.

    `put_args` are extra arguments of every write (``ServerSideEncryption``, ``ACL``, …). Raises `ConfigurationError`.
    """

    def __init__(
        self,
        client: Any,
        workspace: str,
        *,
        put_args: Mapping[str, Any] | None = None,
        options: QueueOptions | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(s3_store(client, workspace, put_args=put_args), options=options, runtime=runtime)
