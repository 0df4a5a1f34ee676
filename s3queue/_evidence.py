"""The records of failed attempts: evidence for people. Work goes on without them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from s3queue import _keys as keys
from s3queue._errors import StoreError
from s3queue._events import Events
from s3queue._intent import Intent, Unknown, settle
from s3queue._options import QueueOptions
from s3queue._outcomes import Lease
from s3queue._records import Failure, LockRecord, describe, timestamp
from s3queue._runtime import Runtime
from s3queue.stores._port import CREATE, Store

__all__ = ["Evidence"]

#: A failure record names no more paths than this, each no longer.
_PATHS_MOST, _PATH_LIMIT = 50, 200


class Evidence:
    """Writes one failure record an epoch, if there is none yet."""

    def __init__(self, store: Store, options: QueueOptions, runtime: Runtime, events: Events) -> None:
        self._store = store
        self._options = options
        self._runtime = runtime
        self._events = events

    async def of_failure(self, lease: Lease, owner: str, error: BaseException | str, paths: Sequence[str]) -> str:
        """Record that an attempt failed; returns the error in a line."""
        kind, line, detail = describe(error)
        await self._record(
            lease.group,
            Failure(
                token=self._runtime.token(),
                epoch=lease.epoch,
                attempt=lease.record.failures + 1,
                owner=owner,
                at=timestamp(self._runtime.wall()),
                kind=kind,
                error=line,
                detail=detail,
                host=self._runtime.host(),
                seconds=round(self._runtime.monotonic() - lease.began, 3),
                paths=tuple(path[:_PATH_LIMIT] for path in paths[:_PATHS_MOST]),
            ),
        )
        return line

    async def of_crash(self, group: str, lock: LockRecord, paths: Sequence[str]) -> None:
        """Record that the owner of this lock let its lease run out; `paths` are the group's."""
        running = lock.progress.running if lock.progress is not None else None
        suspects = () if running is None or not 0 <= running < len(paths) else (paths[running],)
        what = f" while it ran {suspects[0][:_PATH_LIMIT]}" if suspects else ""
        await self._record(
            group,
            Failure(
                token=self._runtime.token(),
                epoch=lock.epoch,
                attempt=lock.failures + 1,
                owner=lock.owner,
                at=timestamp(self._runtime.wall()),
                kind="lease expired",
                error=f"the owner {lock.owner or '(olmOCR)'} stopped renewing{what}: it died, or stood still",
                host=lock.owner.rsplit(":", 2)[0],
                paths=tuple(path[:_PATH_LIMIT] for path in suspects),
            ),
        )

    async def _record(self, group: str, failure: Failure) -> None:
        data = failure.encode()
        intent = Intent(key=keys.failure(group, failure.epoch), data=data, mode=CREATE, ours=lambda body: body == data)
        error = failure.error
        until = self._runtime.monotonic() + self._options.retry_for
        try:
            if not isinstance(await settle(self._store, self._runtime, intent, until=until), Unknown):
                return
        except StoreError as refused:
            error = f"{error} (and its record was refused: {refused})"
        self._events.emit("failure.unrecorded", logging.WARNING, hash=group, epoch=failure.epoch, error=error)
