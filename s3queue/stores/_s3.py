"""S3 and what speaks its protocol, through aiobotocore. The quirks of stores end here."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session

from s3queue._errors import AccessDenied, NotFound, PreconditionFailed, StoreError, Throttled, Unanswered, Unsupported
from s3queue._options import QueueOptions
from s3queue._tasks import compute, task_group
from s3queue.stores._port import Body, Create, Deleted, Head, Listed, Page, PutMode, Replace, Version, Written
from s3queue.stores._s3_errors import answer_date, mapped

__all__ = ["S3Store", "s3_client"]

_BATCH = 1000
#: Single deletes in flight where a store has no DeleteObjects.
_SINGLES = 16
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
    """One prefix of one bucket, on a client that the caller opened and closes."""

    def __init__(self, client: Any, bucket: str, prefix: str, *, put_args: Mapping[str, Any] | None = None) -> None:
        self._client = client
        self._bucket = bucket
        self._root = prefix.strip("/") + "/" if prefix.strip("/") else ""
        self._put_args = dict(put_args or {})
        self.name = f"s3://{bucket}/{self._root}".rstrip("/") + f" at {client.meta.endpoint_url}"
        self._express = bucket.endswith("--x-s3")
        # S3 Express directory buckets list in no order and refuse StartAfter.
        self.lists_in_order = not self._express
        #: Whether If-Match takes the ETag in quotes; None until one update has shown it.
        self._quoted: bool | None = None
        self._batches = True

    def __repr__(self) -> str:
        return f"<S3Store {self.name}>"

    async def get(self, key: str) -> Body:
        with mapped(f"GET {key!r}", self.name):
            answer = await self._client.get_object(Bucket=self._bucket, Key=self._root + key)
            async with answer["Body"] as stream:
                data = await self._read(stream, key)
            head = _head(answer)
        return Body(version=head.version, size=len(data), modified=head.modified, date=head.date, data=data)

    async def _read(self, stream: Any, key: str) -> bytes:
        try:
            data: bytes = await stream.read()
        except Exception as error:
            # A connection that breaks inside a body: the HTTP library's own errors come through as they are.
            what = f"{type(error).__name__}: {error}"
            raise Unanswered(f"{self.name}: the answer to GET {key!r} broke off ({what})") from error
        return data

    async def head(self, key: str) -> Head:
        try:
            with mapped(f"HEAD {key!r}", self.name):
                return _head(await self._client.head_object(Bucket=self._bucket, Key=self._root + key))
        except (NotFound, Throttled, Unanswered):
            raise
        except StoreError:
            # A refused HEAD has no body that says why (old credentials, a wrong clock, …): the same GET does.
            return await self.get(key)

    async def put(self, key: str, data: bytes, mode: PutMode) -> Written:
        match mode:
            case Create():
                return await self._put(key, data, {"IfNoneMatch": "*"})
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
            written = await self._put(key, data, {"IfMatch": _spelled(version, quoted)})
        except PreconditionFailed:
            if known is not None or (await self.head(key)).version != version:
                raise
            written = await self._put(key, data, {"IfMatch": _spelled(version, not quoted)})
            quoted = not quoted
        self._quoted = quoted
        return written

    async def _put(self, key: str, data: bytes, condition: Mapping[str, str]) -> Written:
        digest = await compute(len(data), self._digest, data)
        with mapped(f"PUT {key!r}", self.name):
            answer = await self._client.put_object(
                Bucket=self._bucket,
                Key=self._root + key,
                Body=data,
                **digest,
                **self._put_args,
                **condition,
            )
            return Written(version=_version(answer["ETag"]), date=_date(answer))

    def _digest(self, data: bytes) -> Mapping[str, str]:
        """What lets the store refuse a body that broke off: SeaweedFS (4.48) and VersityGW keep what came so far.

        A process killed in the middle of a PUT would leave an empty lock, which reads as olmOCR's, for half an hour.
        Content-MD5 is what every S3 knows, and what buckets with Object Lock demand; S3 Express takes CRC32 only.
        """
        if self._express:
            return {"ChecksumCRC32": base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode("ascii")}
        return {"ContentMD5": base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode("ascii")}

    async def delete(self, key: str) -> Deleted:
        with mapped(f"DELETE {key!r}", self.name):
            return Deleted(date=_date(await self._client.delete_object(Bucket=self._bucket, Key=self._root + key)))

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
        with mapped(f"DELETE of {len(keys)} objects", self.name):
            answer = await self._client.delete_objects(
                Bucket=self._bucket, Delete={"Objects": [{"Key": self._root + key} for key in keys], "Quiet": True}
            )
        for item in answer.get("Errors", []):
            code = str(item.get("Code"))
            if code != "NoSuchKey":
                kind = _KEY_ERRORS.get(code, StoreError)
                failures.append(kind(f"{self.name}: DELETE {item.get('Key')!r}: {code} {item.get('Message', '')}"))
        return _date(answer)

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
        where = {"ContinuationToken": resume} if resume is not None else {}
        if start_after is not None and resume is None and self.lists_in_order:
            where["StartAfter"] = self._root + start_after
        with mapped(f"LIST {prefix!r}", self.name):
            answer = await self._client.list_objects_v2(
                Bucket=self._bucket, Prefix=self._root + prefix, MaxKeys=limit, **where
            )
            objects = [
                Listed(
                    key=item["Key"][len(self._root) :],
                    version=_version(item["ETag"]),
                    size=item["Size"],
                    modified=item["LastModified"].timestamp(),
                )
                for item in answer.get("Contents", [])
            ]
            # A proxy's page would pass for a listing of nothing, but for this.
            truncated = answer["IsTruncated"]
            date = _date(answer)
        following = answer.get("NextContinuationToken") or None
        if truncated and following is None:
            raise StoreError(f"{self.name}: a listing of {prefix!r} is cut off and the store says not where to go on")
        return Page(objects=objects, next=following if truncated else None, date=date)


def _head(answer: Mapping[str, Any]) -> Head:
    return Head(
        version=_version(answer["ETag"]),
        size=answer["ContentLength"],
        modified=answer["LastModified"].timestamp(),
        date=_date(answer),
    )


def _date(answer: Mapping[str, Any]) -> float:
    return answer_date(answer["ResponseMetadata"]["HTTPHeaders"])


def _version(etag: str) -> Version:
    if etag.startswith("W/"):
        raise Unsupported(f"the store, or a proxy before it, gives weak ETags ({etag}), which no condition can use")
    if not etag.strip('"'):
        raise KeyError("ETag")
    return Version(etag.strip('"'))


def _spelled(version: Version, quoted: bool) -> str:
    return f'"{version}"' if quoted else version
