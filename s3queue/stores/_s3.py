"""S3 and what speaks its protocol. The quirks of stores end here; `_s3_lean` and `_s3_sdk` send the requests."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import anyio
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from s3queue._errors import AccessDenied, PreconditionFailed, StoreError, Throttled, Unanswered, Unsupported
from s3queue._options import QueueOptions
from s3queue._tasks import compute, task_group
from s3queue.stores._port import Body, Create, Deleted, Head, Page, PutMode, Replace, Version, Written
from s3queue.stores._s3_errors import mapped
from s3queue.stores._s3_lean import LeanBucket, Puzzled
from s3queue.stores._s3_sdk import SdkBucket
from s3queue.stores._s3_sign import md5

__all__ = ["S3Store", "s3_client"]

T = TypeVar("T")

_BATCH = 1000
#: Single deletes in flight where a store has no DeleteObjects.
_SINGLES = 16
#: After so many requests in a row that only the SDK could get through, all go its way.
_PUZZLES = 3
#: What an XML body cannot hold, escaped or not.
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")
#: What one key's failure in a DeleteObjects answer means.
_KEY_ERRORS: Mapping[str, type[StoreError]] = {
    "AccessDenied": AccessDenied,
    "SlowDown": Throttled,
    "ServiceUnavailable": Throttled,
    "InternalError": Unanswered,
}


@asynccontextmanager
async def s3_client(options: QueueOptions) -> AsyncIterator[Any]:
    """An S3 client from the ordinary AWS configuration; ours are only the pool, the timeouts and the retries.

    Raises `ConfigurationError` for a profile or a region that does not exist.
    """
    with mapped("opening a client", "AWS configuration"):
        session = get_session()
        config: dict[str, Any] = {
            # max_attempts would still send twice; a hidden second send would meet the first one's effect.
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            "max_pool_connections": options.connections,
            "connect_timeout": options.request_timeout,
            "read_timeout": options.request_timeout,
            "tcp_keepalive": True,
        }
        for setting in ("request_checksum_calculation", "response_checksum_validation"):
            # Many stores reject the SDK's newer default; whoever configured something keeps it.
            if f"AWS_{setting}".upper() not in os.environ and setting not in session.get_scoped_config():
                config[setting] = "when_required"
        opening = session.create_client("s3", config=AioConfig(**config))
        client = await opening.__aenter__()
    try:
        yield client
    finally:
        with anyio.CancelScope(shield=True):
            await opening.__aexit__(None, None, None)


class S3Store:
    """One prefix of one bucket, on a client that the caller opened and closes.

    `lean` false sends every request through the SDK's client API.
    """

    def __init__(
        self, client: Any, bucket: str, prefix: str, *, put_args: Mapping[str, Any] | None = None, lean: bool = True
    ) -> None:
        self._client = client
        self._bucket = bucket
        self._root = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._put_args = dict(put_args or {})
        self.name = f"s3://{bucket}/{self._root}".rstrip("/") + f" at {client.meta.endpoint_url}"
        # S3 Express directory buckets list in no order and refuse StartAfter.
        self.lists_in_order = not bucket.endswith("--x-s3")
        #: Whether If-Match takes the ETag in quotes; None until one update has shown it.
        self._quoted: bool | None = None
        self._batches = True
        self._sdk = SdkBucket(client, bucket, self._root, self.name, self._put_args)
        self._lean: LeanBucket | None = None
        self._opening = anyio.Lock()
        self._opened = not lean
        self._puzzles = 0

    def __repr__(self) -> str:
        return f"<S3Store {self.name}>"

    @property
    def is_lean(self) -> bool:
        """Whether requests go the lean way; known once the first one was sent."""
        return self._lean is not None

    async def _through(self, request: Callable[[LeanBucket | SdkBucket], Awaitable[T]]) -> T:
        """Send a request the lean way if that is open, and else, or if its answer wants that, through the SDK."""
        if not self._opened:
            await self._open()
        if self._lean is not None:
            try:
                answer = await request(self._lean)
            except Puzzled:
                self._puzzles += 1
            else:
                self._puzzles = 0
                return answer
        answer = await request(self._sdk)
        if self._puzzles >= _PUZZLES:
            self._lean = None
        return answer

    async def _open(self) -> None:
        async with self._opening:
            if not self._opened:
                self._lean = await LeanBucket.open(self._client, self._bucket, self._root, self.name, self._put_args)
                self._opened = True

    async def get(self, key: str) -> Body:
        return await self._through(lambda bucket: bucket.get(key))

    async def head(self, key: str) -> Head:
        return await self._through(lambda bucket: bucket.head(key))

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        match mode:
            case Create():
                return await self._put(key, data, {"if-none-match": "*"})
            case Replace(version):
                return await self._replace(key, data, version)
        return await self._put(key, data, {})

    async def _replace(self, key: str, data: bytes, version: Version) -> Written:
        """Ceph, DigitalOcean, Hetzner and OVH compare an ETag without quotes, most others one with them.

        The wrong spelling gets a 412 that looks like a lost race: until one is known to work, look, and try the other.
        """
        known = self._quoted
        quoted = known is not False
        try:
            written = await self._put(key, data, {"if-match": _spelled(version, quoted)})
        except PreconditionFailed:
            if known is not None or (await self.head(key)).version != version:
                raise
            written = await self._put(key, data, {"if-match": _spelled(version, not quoted)})
            quoted = not quoted
        self._quoted = quoted
        return written

    async def _put(self, key: str, data: bytes, condition: Mapping[str, str]) -> Written:
        # By its digest the store refuses a body that broke off. SeaweedFS (4.48) and VersityGW keep what came so far: a
        # process killed in the middle of a PUT would leave an empty lock, which reads as olmOCR's, for half an hour.
        # Content-MD5 is what every S3 knows, and what buckets with Object Lock demand.
        digest = await compute(len(data), md5, data)
        return await self._through(lambda bucket: bucket.put(key, data, condition, digest))

    async def delete(self, key: str) -> Deleted:
        return await self._through(lambda bucket: bucket.delete(key))

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        batched = [key for key in keys if not _NOT_XML.search(key)]
        singles = [key for key in keys if _NOT_XML.search(key)]
        failures: list[StoreError] = []
        date = 0.0
        for start in range(0, len(batched), _BATCH):
            batch = batched[start : start + _BATCH]
            if not self._batches:
                singles += batch
                continue
            try:
                date = max(date, await self._delete_batch(batch, failures))
            except Unsupported:
                self._batches = False  # no DeleteObjects, or none without a checksum that it rejects (old Ceph, GCS)
                singles += batch
            except StoreError as error:
                failures.append(error)
        date = max(date, await self._delete_singly(singles, failures))
        if failures:
            raise failures[0]
        return Deleted(date=date)

    async def _delete_batch(self, keys: list[str], failures: list[StoreError]) -> float:
        async def delete(bucket: LeanBucket | SdkBucket) -> tuple[float, Sequence[Mapping[str, str]]]:
            return await bucket.delete_batch(keys)

        date, errors = await self._through(delete)
        for item in errors:
            code = str(item.get("Code"))
            if code != "NoSuchKey":
                kind = _KEY_ERRORS.get(code, StoreError)
                failures.append(kind(f"{self.name}: DELETE {item.get('Key')!r}: {code} {item.get('Message', '')}"))
        return date

    async def _delete_singly(self, keys: Iterable[str], failures: list[StoreError]) -> float:
        dates = [0.0]
        limit = anyio.CapacityLimiter(_SINGLES)

        async def delete(key: str) -> None:
            async with limit:
                try:
                    dates.append((await self.delete(key)).date)
                except StoreError as error:
                    failures.append(error)

        async with task_group() as tasks:
            for key in keys:
                tasks.start_soon(delete, key)
        return max(dates)

    async def list(
        self, prefix: str, *, start_after: str | None = None, resume: str | None = None, limit: int = 1000
    ) -> Page:
        if self.lists_in_order:
            after = start_after if resume is None else None
            return await self._through(
                lambda bucket: bucket.list(prefix, start_after=after, resume=resume, limit=limit)
            )
        # S3 Express takes only prefixes that are folders.
        folder = prefix[: prefix.rfind("/") + 1]
        page = await self._through(lambda bucket: bucket.list(folder, start_after=None, resume=resume, limit=limit))
        return dataclasses.replace(page, objects=[item for item in page.objects if item.key.startswith(prefix)])


def _spelled(version: Version, quoted: bool) -> str:
    return f'"{version}"' if quoted else version
